//! R1: the server's own functions that take its CPU time. R14: chores that every server has: memory, copying,
//! the clock, logging.
//!
//! "Own" excludes the kernel's functions and chores. A function on the path to a hotter function is not
//! named: the deepest function with `SHARE_MIN` is where a change can help.

use super::activities::Named;
use super::memory::is_mapping;
use super::{SHARE_MIN, percent};
use super::{calls, sends};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::stacks::Hot;
use crate::analyse::view::View;
use crate::recording::{Frame, Sample};

/// Two suffice: the third rarely has half of the first.
const HOT_MAX: usize = 2;
/// A hot function is a place to look at, not yet a cause: more specific findings should rank before it.
pub(super) const HOT_CONFIDENCE: f64 = 0.6;
/// A function with this part of the samples below it, and less than `SHARE_MIN` in itself, is the main loop.
const LOOP_SHARE: f64 = 0.7;
/// A chore of this part explains the whole function.
const ONLY_SHARE: f64 = 0.9;

/// A kind of chore, and the functions or libraries that do it.
struct Chore {
    name: &'static str,
    functions: &'static [&'static str],
    modules: &'static [&'static str],
    next: &'static str,
}

#[rustfmt::skip]
const CHORES: &[Chore] = &[
    Chore {
        name: "allocating and freeing memory",
        functions: &["malloc", "free", "calloc", "realloc", "cfree", "aligned_alloc", "posix_memalign", "je_",
                     "mi_", "tc_", "evenkeel_slab", "zmalloc", "zfree", "zrealloc", "operator new",
                     "operator delete", "__libc_malloc", "_int_malloc", "_int_free"],
        modules: &["libjemalloc", "libtcmalloc", "libmimalloc"],
        next: "Reuse buffers; check that the allocator is not fighting over one arena.",
    },
    Chore {
        name: "copying and comparing bytes",
        functions: &["memcpy", "memmove", "memset", "memcmp", "__memcpy", "__memmove", "__memset", "__memcmp",
                     "bcmp", "strlen", "__strlen"],
        modules: &[],
        next: "See in the flame graph who copies; large values copied more than once are the usual cause.",
    },
    Chore {
        name: "reading the clock",
        functions: &["clock_gettime", "__clock_gettime", "gettimeofday", "__vdso_clock_gettime",
                     "__vdso_gettimeofday", "mstime", "ustime"],
        modules: &["[vdso]"],
        next: "Read it once per turn of the loop. If it is a system call here, the clock source is not the \
               time-stamp counter.",
    },
    Chore {
        name: "formatting and logging",
        functions: &["vsnprintf", "snprintf", "__vsnprintf", "vfprintf", "fprintf", "fputs", "fwrite",
                     "fflush", "syslog", "vsyslog", "serverLog", "serverLogRaw", "_serverLog", "strftime",
                     "localtime_r"],
        modules: &[],
        next: "Lower the log level, or log less often on this path.",
    },
];

fn is_chore(frame: &Frame, chore: &Chore) -> bool {
    let name = frame.name.as_str();
    chore.functions.iter().any(|known| {
        name == *known || (known.ends_with('_') && name.starts_with(known)) || starts_variant(name, known)
    }) || chore.modules.iter().any(|known| frame.module.starts_with(known))
}

/// glibc's variants for a processor: `__memmove_avx_unaligned_erms`.
fn starts_variant(name: &str, known: &str) -> bool {
    known.starts_with("__") && name.strip_prefix(known).is_some_and(|rest| rest.starts_with('_'))
}

/// Code that is not the server's own: R1 attributes its time to the caller.
pub(super) fn is_foreign(frame: &Frame) -> bool {
    frame.is_kernel()
        // "(broken stack)" and the like are no functions.
        || frame.name.starts_with('(')
        || CHORES.iter().any(|chore| is_chore(frame, chore))
        || ["libc.so", "libc-", "libpthread", "ld-linux", "libm.so", "[vdso]", "libgcc"]
            .iter()
            .any(|module| frame.module.starts_with(module))
}

pub(crate) fn hot(view: &View<'_>) -> Outcome {
    if !view.has_samples() {
        return Outcome::Unseen("shares of functions need CPU samples with stacks".to_string());
    }
    // Samples that R2, R12 and R25 explain are not counted again.
    let (feeds, is_small_receive) = (sends::feeds(view), calls::is_small_receive(view));
    let named = Named::new(view);
    let activities: Vec<usize> = named.counts(view).into_iter().map(|(activity, _)| activity).collect();
    let is_named = |s: &Sample| {
        view.meets(s.stack, &feeds)
            || sends::is_send(s)
            || is_small_receive(s)
            || named.explains(view, s, &activities)
    };
    let tree = view.tree(|sample| !is_named(sample), |frame| !is_foreign(frame));
    let total: u64 = view.samples().map(|sample| sample.count).sum();
    let cpu_share = view.sample_share(total);
    if cpu_share < SHARE_MIN {
        return Outcome::RuledOut(format!("all of its CPU time is {}", percent(cpu_share)));
    }
    let least = (SHARE_MIN / cpu_share * total as f64).ceil() as u64;
    let deepest = tree.deepest(least);
    let is_loop = |hot: &&Hot<'_>| hot.itself < least && hot.inclusive as f64 >= LOOP_SHARE * total as f64;
    let findings =
        deepest.iter().filter(|hot| !is_loop(hot) && !is_only_a_chore(view, hot)).take(HOT_MAX).map(|hot| {
            let share = view.sample_share(hot.inclusive);
            let path: Vec<&str> = hot.path.iter().rev().take(5).rev().copied().collect();
            let title = format!(
                "The function {}{} takes {} of the thread's time with what it calls",
                hot.name,
                named_caller(view, hot),
                percent(share)
            );
            // The removable part of a function is unknown: half of it is the best likely case.
            let mut finding = Finding::new("R1", share, view.confidence(HOT_CONFIDENCE, true), title);
            finding.ceiling = 1.0 / (1.0 - share / 2.0);
            finding
            .evidence(
                format!("{} samples; reached by {}", hot.inclusive, path.join(" > ")),
                format!(
                    "perf record -F 199 --call-graph dwarf -p {} -- sleep 10; perf report --children",
                    view.pid()
                ),
            )
            .next("Look at it in the flame graph (--html FILE): what it calls, and who calls it that often.")
            .frames([hot.name.to_string()])
            .about(hot.name)
            .within(&[view.sample_error(hot.inclusive)])
        });
    Outcome::found_or(findings.collect(), || "no function of its own has 5%".to_string())
}

/// ", without a name and called by deflate," for a function that has only an address.
fn named_caller(view: &View<'_>, hot: &Hot<'_>) -> String {
    let is_unnamed =
        |name: &str| view.recording.frames.iter().any(|frame| frame.name == name && frame.unnamed.is_some());
    if !is_unnamed(hot.name) {
        return String::new();
    }
    let caller = hot.path.iter().rev().skip(1).find(|name| !is_unnamed(name));
    caller.map_or_else(String::new, |caller| format!(" (without a name, called by {caller})"))
}

/// Whether nearly all of a function is a chore, or the kernel's work on its memory. R14 and R15 name that
/// time, for all callers.
fn is_only_a_chore(view: &View<'_>, hot: &Hot<'_>) -> bool {
    let is_chore = |frame: &Frame| is_mapping(frame) || CHORES.iter().any(|chore| is_chore(frame, chore));
    let (hot, chores) = (view.mark(|frame| frame.name == hot.name), view.mark(is_chore));
    let inside = |sample: &&Sample| view.meets(sample.stack, &hot);
    let does_chore = |sample: &&Sample| view.meets_below(sample.stack, &chores, &hot);
    let all: u64 = view.samples().filter(inside).map(|sample| sample.count).sum();
    let chore: u64 = view.samples().filter(inside).filter(does_chore).map(|sample| sample.count).sum();
    chore as f64 >= ONLY_SHARE * all as f64
}

pub(crate) fn chores(view: &View<'_>) -> Outcome {
    if !view.has_samples() {
        return Outcome::Unseen("shares of functions need CPU samples with stacks".to_string());
    }
    let count_of = |chore: &Chore| -> u64 {
        let chores = view.mark(|frame| is_chore(frame, chore));
        view.samples().filter(|sample| view.meets(sample.stack, &chores)).map(|sample| sample.count).sum()
    };
    let findings: Vec<Finding> = CHORES
        .iter()
        .map(|chore| (chore, count_of(chore)))
        .filter(|(_, count)| view.sample_share(*count) >= SHARE_MIN)
        .map(|(chore, count)| {
            let share = view.sample_share(count);
            let title =
                format!("{} takes {} of the thread's time", sentence_case(chore.name), percent(share));
            let mut finding = Finding::new("R14", share, view.confidence(0.5, true), title);
            finding.ceiling = 1.0 / (1.0 - share / 2.0);
            let perf = format!("perf record -F 199 -p {} -- sleep 10; perf report --sort symbol", view.pid());
            finding
                .evidence(format!("{} of CPU samples", percent(share)), perf)
                .about(chore.name)
                .next(chore.next)
                .frames(chore.functions.iter().map(ToString::to_string))
                .within(&[view.sample_error(count)])
        })
        .collect();
    Outcome::found_or(findings, || {
        "memory, copying, the clock and logging take less than 5% each".to_string()
    })
}

pub(super) fn sentence_case(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;

    fn frame(name: &str, module: &str) -> Frame {
        Frame { name: name.to_string(), module: module.to_string(), unnamed: None }
    }

    #[test]
    fn the_variants_of_a_chore_are_known_and_namesakes_are_not() {
        assert!(is_chore(&frame("__memmove_avx_unaligned_erms", "libc.so.6"), &CHORES[1]));
        assert!(is_chore(&frame("libjemalloc.so.2+0x1f00", "libjemalloc.so.2"), &CHORES[0]));
        assert!(!is_chore(&frame("freeClient", "redis-server"), &CHORES[0]));
        assert!(!is_chore(&frame("memcpyish", "x"), &CHORES[1]));
    }

    #[test]
    fn a_hot_function_is_named_and_its_callers_are_not() {
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, &["main", "aeMain", "call", "sortCommand"], 500);
        golden::add_samples(&mut recording, &["main", "aeMain", "call", "sortCommand", "memcpy"], 300);
        golden::add_samples(&mut recording, &["main", "aeMain", "call", "copyOnly", "memcpy"], 300);
        let diagnosis = diagnose(&recording);
        let first = diagnosis.findings.iter().find(|finding| finding.rule == "R1").expect("a hot function");
        assert!(first.title.starts_with("The function sortCommand takes "), "{}", first.title);
        assert!(
            diagnosis.findings.iter().any(|finding| finding.title.starts_with("Copying and comparing bytes"))
        );
    }
}
