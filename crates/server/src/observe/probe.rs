//! Static probes (USDT): places in the program that a tool may watch at run time, such as bpftrace, SystemTap
//! and `evenkeel-doctor stages`.
//!
//! A probe is a `nop` instruction, and a note in the file (`.note.stapsdt`) with its address and the
//! registers of its two arguments. A tool replaces the instruction by a trap. While no tool watches, the
//! probe costs the `nop` and two moves between registers.
//!
//! ```text
//! bpftrace -p PID -e 'usdt:*:evenkeel:stage { @[arg0] = sum(arg1); }'
//! ```

/// The probe `evenkeel:NAME` with two numbers.
///
/// It may stand in code that the compiler copies to many places: each copy has a note of its own.
macro_rules! probe {
    ($name:literal, $first:expr, $second:expr) => {{
        let (first, second): (u64, u64) = ($first, $second);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: executes a `nop`; the directives fill a section that is not loaded.
        unsafe {
            std::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt, \"\", @note",
                ".balign 4",
                // lengths of owner and content, and the type of the note
                ".4byte 992f - 991f, 994f - 993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b, 0, 0", // address; no base to correct it by, and no semaphore
                ".asciz \"evenkeel\"",
                concat!(".asciz \"", $name, "\""),
                ".asciz \"8@%rdi 8@%rsi\"",
                "994: .balign 4",
                ".popsection",
                in("rdi") first,
                in("rsi") second,
                options(nomem, nostack, preserves_flags, att_syntax)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (first, second);
    }};
}

pub(super) use probe;
