//! Static probes: places in the program that a tool may watch while it runs, as bpftrace, SystemTap and `evenkeel-doctor
//! stages` know them (USDT).
//!
//! A probe is one instruction that does nothing, and a note in the file (`.note.stapsdt`) that says where it is and in which
//! registers its two arguments are. Who watches puts a trap in the place of the instruction; while nobody does, it costs that
//! one instruction and two moves between registers.
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
        // SAFETY: one instruction that does nothing; what else stands there goes into a section that is not loaded.
        unsafe {
            std::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt, \"\", @note",
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3", // lengths of owner and content, and the kind of note
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b, 0, 0", // where it is; no base to correct that by, and no semaphore
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
