//! R15: memory that is absent when it is touched. Either a disk must be read, or the kernel must provide
//! pages, again and again if memory is mapped and unmapped all the time. Delays of the kernel are part of the
//! rule: direct reclaim, compaction, and waits until another thread has changed the same address space.

use super::fork::COPIES;
use super::functions::is_foreign;
use super::{SHARE_MIN, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::Frame;

const CALLS: &[&str] = &["mmap", "munmap", "mremap", "brk", "madvise"];
/// Kernel functions of these calls, and of the first touch of a page.
#[rustfmt::skip]
const FUNCTIONS: &[&str] = &[
    "ksys_mmap_pgoff", "vm_mmap_pgoff", "__vm_munmap", "__do_sys_munmap", "do_vmi_munmap",
    "do_vmi_align_munmap", "__do_sys_mremap", "__do_sys_brk", "do_madvise", "do_user_addr_fault",
    "handle_mm_fault", "exc_page_fault",
];
/// Work or a wait of the thread itself before the kernel has memory for it.
struct Delay {
    title: &'static str,
    functions: &'static [&'static str],
    command: &'static str,
    next: &'static str,
}

#[rustfmt::skip]
const DELAYS: &[Delay] = &[
    Delay {
        title: "The thread reclaims memory before it can allocate (direct reclaim)",
        functions: &["try_to_free_pages", "__alloc_pages_direct_reclaim", "__perform_reclaim",
                     "try_to_free_mem_cgroup_pages", "mem_cgroup_handle_over_high"],
        command: "grep -E 'allocstall|pgscan_direct|pgsteal_direct' /proc/vmstat; cat /proc/pressure/memory",
        next: "More memory, a higher limit of its control group (memory.high, memory.max), or more kept free \
               (vm.min_free_kbytes).",
    },
    Delay {
        title: "The thread compacts memory for a huge page",
        functions: &["try_to_compact_pages", "__alloc_pages_direct_compact", "compact_zone",
                     "collapse_huge_page"],
        command: "grep -E 'compact_stall|thp_' /proc/vmstat; cat /sys/kernel/mm/transparent_hugepage/defrag",
        next: "Set transparent_hugepage/defrag to defer or madvise, or leave huge pages out for this server.",
    },
];
/// Waits for the lock of the address space, if they are below a function that works on mappings.
const LOCK_WAITS: &[&str] =
    &["rwsem_down_read_slowpath", "rwsem_down_write_slowpath", "down_read_killable", "down_write_killable"];
/// Part of its memory in the swap, and page faults a second that read from it, from which the swap is the
/// cause.
const SWAPPED_MIN: f64 = 0.05;
const MAJOR_MIN: f64 = 20.0;
/// A growing server asks for more memory now and then.
const CALLS_MANY: f64 = 100.0;

/// Kernel code that provides memory, or takes it back.
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
        let title = format!("The thread waits {} of the time for page faults", percent(waits));
        let command = format!("pidstat -r -t -p {} 1   # majflt/s", view.pid());
        findings.push(
            Finding::new("R15", waits, view.confidence(0.7, false), title)
                .evidence(format!("{major} major faults"), command)
                .next("More memory, no swap for this process, or less reading by mmap."),
        );
    }
    findings.extend(DELAYS.iter().filter_map(|delay| delayed(view, delay)));
    findings.extend(address_space(view));
    if mapping >= SHARE_MIN {
        findings.push(made_again(view, count, place));
    }
    let part: f64 = findings.iter().filter_map(|finding| finding.share).sum();
    if let Some(finding) = swapped(view, part, major) {
        return Outcome::Found(vec![finding]); // page faults and reclaim are effects of the swap
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

/// Memory that was written to the swap and is needed again. `part`: the time that missing memory takes.
fn swapped(view: &View<'_>, part: f64, major: u64) -> Option<Finding> {
    let memory = &view.recording.memory;
    let all = memory.resident_bytes + memory.swapped_bytes;
    let share = memory.swapped_bytes as f64 / all.max(1) as f64;
    if share < SWAPPED_MIN || part < SHARE_MIN || view.per_second(major) < MAJOR_MIN {
        return None;
    }
    let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    // A group that is nearly full is the cause; else the machine is.
    let full = memory.limit.as_ref().filter(|(_, limit)| memory.resident_bytes >= limit / 4 * 3);
    let cause = full.map_or_else(
        || "the machine has too little memory".to_string(),
        |(group, limit)| format!("its control group {group} may have {}", mb(*limit)),
    );
    let title = format!(
        "{} of its {} are swapped out, and it needs them: {cause}; that takes {} of the thread's time",
        mb(memory.swapped_bytes),
        mb(all),
        percent(part)
    );
    Some(
        Finding::new("R15", part, view.confidence(0.95, false).max(0.9), title)
            .about("swapped out")
            .evidence(
                format!("{:.0} page faults a second read from a disk", view.per_second(major)),
                format!("grep -E 'VmRSS|VmSwap' /proc/{}/status; vmstat 1   # si, so", view.pid()),
            )
            .next("More memory, a lower limit of its own (maxmemory), or no swap for it."),
    )
}

/// Samples in the kernel's work on memory, and the server's own function that causes most of it.
fn mapping<'a>(view: &View<'a>) -> (u64, Option<&'a str>) {
    if !view.samples_kernel() {
        return (0, None);
    }
    let mapping = view.mark(is_mapping);
    // Copies belong to R5, and delays have findings of their own.
    let named = |frame: &Frame| {
        let name = frame.name.as_str();
        COPIES.contains(&name) || DELAYS.iter().any(|delay| delay.functions.contains(&name))
    };
    let others = view.mark(|frame| frame.is_kernel() && named(frame));
    let is_of_it = |stack| view.meets(stack, &mapping) && !view.meets(stack, &others);
    let count: u64 = view.samples().filter(|s| is_of_it(s.stack)).map(|s| s.count).sum();
    let tree = view.tree(|sample| is_of_it(sample.stack), |frame| !is_foreign(frame));
    let place = tree.deepest((count / 2).max(1)).first().map(|hot| hot.name);
    (count, place)
}

/// Share by samples of the thread's own work, and by the stacks of its waits.
fn delayed(view: &View<'_>, delay: &Delay) -> Option<Finding> {
    if !view.samples_kernel() {
        return None;
    }
    let marks = view.mark(|frame| frame.is_kernel() && delay.functions.contains(&frame.name.as_str()));
    let samples: u64 = view.samples().filter(|s| view.meets(s.stack, &marks)).map(|s| s.count).sum();
    let blocked =
        view.share(view.waits().filter(|w| view.meets(w.stack, &marks)).map(|w| w.blocked_ns).sum());
    let share = view.sample_share(samples) + blocked;
    (share >= SHARE_MIN).then(|| {
        Finding::new(
            "R15",
            share,
            view.confidence(0.9, true),
            format!("{}: {} of its time", delay.title, percent(share)),
        )
        .about(delay.functions[0])
        .evidence(
            format!("{} of its time on a CPU there, {} asleep", percent(share - blocked), percent(blocked)),
            delay.command.to_string(),
        )
        .within(&[view.sample_error(samples)])
        .next(delay.next)
        .frames(delay.functions.iter().map(ToString::to_string))
    })
}

/// A page fault waits while another thread maps or unmaps, and vice versa.
fn address_space(view: &View<'_>) -> Option<Finding> {
    let (locks, mapping) = (
        view.mark(|frame| frame.is_kernel() && LOCK_WAITS.contains(&frame.name.as_str())),
        view.mark(is_mapping),
    );
    let waits = || view.waits().filter(|w| view.meets(w.stack, &locks) && view.meets(w.stack, &mapping));
    let share = view.share(waits().map(|wait| wait.blocked_ns).sum());
    let count = waits().map(|wait| wait.count).sum();
    (share >= SHARE_MIN).then(|| {
        let title = format!(
            "The thread waits {} of the time for the lock on its address space (mmap_lock): other \
             threads map and unmap",
            percent(share)
        );
        let command = format!("strace -c -f -e trace={} -p {}", CALLS.join(","), view.pid());
        Finding::new("R15", share, view.confidence(0.9, true), title)
            .about("mmap_lock")
            .evidence(format!("{} such waits a second", view.rate(count)), command)
            .next(
                "Map and unmap less often, in larger pieces, or keep freed memory in the process \
                 (malloc_trim, madvise less often).",
            )
            .frames(LOCK_WAITS.iter().map(ToString::to_string))
    })
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
                "Mapping and unmapping memory {rate:.0} times a second takes {} of the thread's \
                 time{place_text}",
                percent(share)
            ),
            "Keep the buffer and use it again; with glibc, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD keep large \
             ones in the process.",
        )
    } else {
        (
            format!(
                "The first touch of memory pages takes {} of the thread's time{place_text}",
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
    use crate::recording::{Call, KERNEL, Memory, Tier, Wait};

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
        // Samples of user code alone do not show it.
        recording.tier = Tier::T2;
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R15"));
    }

    #[test]
    fn a_server_in_the_swap_has_one_finding_with_the_limit_of_its_group() {
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, LINE, 700);
        recording.threads[0].faults_major = 5_000;
        let limit = Some(("/sys/fs/cgroup/memory/app".to_string(), 120 << 20));
        let (resident_bytes, swapped_bytes) = (110 << 20, 107 << 20);
        recording.memory = Memory { resident_bytes, swapped_bytes, limit };
        let findings = diagnose(&recording).findings;
        let of_memory: Vec<&str> =
            findings.iter().filter(|it| it.rule == "R15").map(|it| it.title.as_str()).collect();
        assert_eq!(of_memory.len(), 1, "{of_memory:?}");
        assert!(
            of_memory[0].starts_with(
                "112 MB of its 228 MB are swapped out, and it needs them: its control group \
                                         /sys/fs/cgroup/memory/app may have 126 MB"
            ),
            "{of_memory:?}"
        );
        // Memory in the swap that no page fault reads back is no cause.
        recording.threads[0].faults_major = 3;
        assert!(diagnose(&recording).findings.iter().all(|it| it.subject != "swapped out"));
    }

    #[test]
    fn delays_of_page_allocation_are_named() {
        let title = |names: &[&str], sleeps: bool| {
            let mut recording = golden::busy();
            let names = [&["main", "set", "exc_page_fault"], names].concat();
            if sleeps {
                let stack = golden::add_stack(&mut recording, &names);
                let blocked_ns = golden::WINDOW_NS / 10;
                recording.waits.push(Wait {
                    tid: golden::TID,
                    stack,
                    count: 100,
                    blocked_ns,
                    ..Wait::default()
                });
            } else {
                golden::add_samples(&mut recording, &names, 300);
            }
            for frame in &mut recording.frames {
                if names[3..].contains(&frame.name.as_str()) {
                    frame.module = KERNEL.to_string();
                }
            }
            let found = diagnose(&recording).findings;
            found
                .into_iter()
                .filter(|finding| finding.rule == "R15")
                .map(|finding| finding.title)
                .collect::<Vec<_>>()
        };
        for sleeps in [false, true] {
            let titles = title(&["try_to_free_pages"], sleeps);
            assert!(titles[0].starts_with("The thread reclaims memory before it can allocate"), "{titles:?}");
            let titles = title(&["try_to_compact_pages"], sleeps);
            assert!(titles[0].starts_with("The thread compacts memory for a huge page: 1"), "{titles:?}");
        }
        let titles = title(&["rwsem_down_read_slowpath"], true);
        assert!(
            titles[0].starts_with("The thread waits 10% of the time for the lock on its address space"),
            "{titles:?}"
        );
        assert!(title(&["folio_wait_bit"], true).is_empty(), "a page that comes from a disk is not that");
    }

    #[test]
    fn first_touches_and_copies_for_a_child_are_distinguished() {
        let title = |names: &[&str]| {
            let mut recording = golden::busy();
            golden::add_samples(&mut recording, names, 700);
            let found = diagnose(&recording).findings.into_iter().find(|finding| finding.rule == "R15");
            found.map(|finding| finding.title)
        };
        let title_of_line = title(LINE).expect("a quarter of its time");
        assert!(title_of_line.starts_with("The first touch of memory pages takes "), "{title_of_line}");
        assert_eq!(title(&[LINE, &["do_wp_page"]].concat()), None);
    }
}
