//! R15: memory that is not there when it is touched: it must be read from a disk, or the kernel must make it, again and again
//! where it is mapped and unmapped all the time.

use super::fork::COPIES;
use super::functions::is_foreign;
use super::{SHARE_MIN, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::Frame;

const CALLS: &[&str] = &["mmap", "munmap", "mremap", "brk", "madvise"];
/// What the kernel runs for these calls, and for the first touch of a page.
#[rustfmt::skip]
const FUNCTIONS: &[&str] = &["ksys_mmap_pgoff", "vm_mmap_pgoff", "__vm_munmap", "__do_sys_munmap", "do_vmi_munmap", "do_vmi_align_munmap",
                             "__do_sys_mremap", "__do_sys_brk", "do_madvise", "do_user_addr_fault", "handle_mm_fault", "exc_page_fault"];
/// A server that grows asks for more now and then.
const CALLS_MANY: f64 = 100.0;

/// Code of the kernel that makes memory, and takes it back.
pub(super) fn is_mapping(frame: &Frame) -> bool {
    frame.is_kernel() && FUNCTIONS.contains(&frame.name.as_str())
}

pub(crate) fn not_there(view: &View<'_>) -> Outcome {
    let names = ["page fault", "outside calls"];
    let blocked: u64 = view.calls().filter(|c| names.contains(&c.name.as_str())).map(|c| c.blocked_ns).sum();
    let waits = view.share(blocked);
    let thread = view.recording.threads.iter().find(|thread| thread.tid == view.critical.tid);
    let major = thread.map_or(0, |thread| thread.faults_major);
    let (count, place) = mapping(view);
    let mapping = view.sample_share(count);
    let mut findings = Vec::new();
    if waits >= SHARE_MIN {
        let title = format!(
            "The thread waits {} of the time for memory that is not there (page faults)",
            percent(waits)
        );
        let command = format!("pidstat -r -t -p {} 1   # majflt/s", view.pid());
        findings.push(
            Finding::new("R15", waits, view.confidence(0.7, false), title)
                .evidence(format!("{major} major faults"), command)
                .next("More memory, no swap for this process, or less reading by mmap."),
        );
    }
    if mapping >= SHARE_MIN {
        findings.push(made_again(view, count, place));
    }
    Outcome::found_or(findings, || {
        let mapping = if view.samples_kernel() {
            format!("; mapping memory and touching it first takes {}", percent(mapping))
        } else {
            String::new()
        };
        format!("{major} page faults needed a disk; they take {}{mapping}", percent(waits))
    })
}

/// Samples in the kernel's work on memory, and the function of the server's own that causes most of it.
fn mapping<'a>(view: &View<'a>) -> (u64, Option<&'a str>) {
    if !view.samples_kernel() {
        return (0, None);
    }
    let mapping = view.mark(is_mapping);
    // Those are R5's.
    let copies = view.mark(|frame| COPIES.contains(&frame.name.as_str()));
    let is_of_it = |stack| view.meets(stack, &mapping) && !view.meets(stack, &copies);
    let count: u64 = view.samples().filter(|s| is_of_it(s.stack)).map(|s| s.count).sum();
    let tree = view.tree(|sample| is_of_it(sample.stack), |frame| !is_foreign(frame));
    let place = tree.deepest((count / 2).max(1)).first().map(|hot| hot.name);
    (count, place)
}

fn made_again(view: &View<'_>, samples: u64, place: Option<&str>) -> Finding {
    let share = view.sample_share(samples);
    let calls: u64 =
        view.calls().filter(|c| CALLS.contains(&c.name.as_str())).map(|c| c.count.unwrap_or(0)).sum();
    let rate = view.per_second(calls);
    let place_text = place.map_or_else(String::new, |place| format!(", most of it in {place}"));
    let (title, next) = if rate >= CALLS_MANY {
        (
            format!(
                "Mapping and unmapping memory {rate:.0} times a second takes {} of the thread's time{place_text}",
                percent(share)
            ),
            "Keep the buffer and use it again; with glibc, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD keep large ones in the process.",
        )
    } else {
        (
            format!(
                "Memory that is touched for the first time takes {} of the thread's time{place_text}",
                percent(share)
            ),
            "Use buffers again, touch them before they are needed, or use huge pages.",
        )
    };
    let perf = format!("perf record -g -p {} -- sleep 10; perf report --children", view.pid());
    let mut finding = Finding::new("R15", share, view.confidence(0.8, true), title)
        .about("making memory")
        .within(&[view.sample_error(samples)])
        .evidence(
            format!("{} of the time is the kernel's work on the process's memory", percent(share)),
            perf,
        );
    if view.counts_calls() {
        let command = format!("strace -c -f -e trace={} -p {}", CALLS.join(","), view.pid());
        finding =
            finding.evidence(format!("{} calls a second that map and unmap", view.rate(calls)), command);
    }
    finding
        .next(next)
        .frames(place.map(str::to_string).into_iter().chain(FUNCTIONS.iter().map(ToString::to_string)))
}

#[cfg(test)]
mod tests {
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{Call, Tier};

    const LINE: &[&str] = &["main", "log_line", "memset", "asm_exc_page_fault", "exc_page_fault"];
    const UNMAP: &[&str] = &["main", "log_line", "munmap", "entry_SYSCALL_64_after_hwframe", "__vm_munmap"];

    #[test]
    fn memory_that_is_mapped_for_each_line_is_found_with_its_place() {
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, LINE, 700);
        golden::add_samples(&mut recording, UNMAP, 700);
        let call =
            Call { tid: golden::TID, name: "munmap".to_string(), count: Some(50_000), ..Call::default() };
        recording.calls.push(call);
        let first = diagnose(&recording).findings.remove(0);
        assert_eq!(first.rule, "R15", "{}", first.title);
        assert!(
            first.title.starts_with("Mapping and unmapping memory 5000 times a second takes 4"),
            "{}",
            first.title
        );
        assert!(first.title.ends_with(", most of it in log_line"), "{}", first.title);
        let again = |title: &str| title.contains("The function log_line");
        assert!(
            !diagnose(&recording).findings.iter().any(|finding| again(&finding.title)),
            "the same once more"
        );
        // User code alone shows nothing of it.
        recording.tier = Tier::T2;
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R15"));
    }

    #[test]
    fn first_touches_and_copies_for_a_child_are_told_apart() {
        let title = |names: &[&str]| {
            let mut recording = golden::busy();
            golden::add_samples(&mut recording, names, 700);
            let found = diagnose(&recording).findings.into_iter().find(|finding| finding.rule == "R15");
            found.map(|finding| finding.title)
        };
        let title_of_line = title(LINE).expect("a quarter of its time");
        assert!(
            title_of_line.starts_with("Memory that is touched for the first time takes "),
            "{title_of_line}"
        );
        assert_eq!(title(&[LINE, &["do_wp_page"]].concat()), None);
    }
}
