//! The types of `bpf/shared.h`, which the programs and their loader exchange, and their conversion from and
//! to bytes.

use std::mem::size_of;

pub(crate) const FRAMES_MAX: usize = 128;
pub(crate) const MAPPINGS_MAX: usize = 512;
pub(crate) const CALLS_MAX: usize = 512;

pub(crate) const COUNTS_MAX: usize = 256;
pub(crate) const SLOTS: usize = 256;
pub(crate) const PROBE_TOTALS_MAX: usize = 64;

pub(crate) const CALL_ON_FD: u8 = 1;
pub(crate) const CALL_FUTEX: u8 = 2;
pub(crate) const CALL_IDLE: u8 = 4;
pub(crate) const CALL_CLOSE: u8 = 8;
pub(crate) const CALL_POLL: u8 = 16;
pub(crate) const CALL_RECEIVE: u8 = 32;

pub(crate) const TIME_SLOTS: usize = 4096;

pub(crate) const FD_LOCK: i32 = -2;

pub(crate) const STACK_COMPLETE: u32 = 0;
pub(crate) const STACK_CUT: u32 = 1;
pub(crate) const STACK_BROKEN: u32 = 2;

pub(crate) const CFA_UNKNOWN: u8 = 0;
pub(crate) const CFA_SP: u8 = 1;
pub(crate) const CFA_BP: u8 = 2;
pub(crate) const CFA_PLT: u8 = 3;
pub(crate) const CFA_END: u8 = 4;

/// A type of integers without padding: any bytes of its size are a valid value, and all bytes of a value are
/// initialised.
///
/// # Safety
/// `repr(C)`, only integers and arrays of them, and no padding.
pub(crate) unsafe trait Plain: Copy {}

pub(crate) fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: enough bytes are there, any bytes are a `T`, and no alignment is asked for.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

pub(crate) fn as_bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: a `T` has no padding, so all its bytes are initialised; the length is that of the slice.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}

macro_rules! plain {
    ($($(#[$doc:meta])* struct $name:ident[$size:literal] { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type),*
            }
            const _: () = assert!(size_of::<$name>() == $size); // as clang lays it out
            const _: () = assert!(0 $(+ size_of::<$type>())* == $size); // without padding
            // SAFETY: integers only, by the fields; no padding, by the line above.
            unsafe impl Plain for $name {}
        )*
    };
}

// SAFETY: integers are plain.
unsafe impl Plain for u32 {}
// SAFETY: integers are plain.
unsafe impl Plain for u64 {}

plain! {
    struct Config[552] {
        tgid: u32,
        mappings: u32,
        stack_from_ns: u64,
        stall_from_ns: u64,
        begin_ns: u64,
        slot_ns: u64,
        call_flags: [u8; CALLS_MAX],
    }
    struct Thread[128] {
        epoch: u32,
        nr: i32,
        fd: i32,
        in_call: u32,
        sleeps: u32,
        sleeps_short: u32,
        call_at: u64,
        blocked_ns: u64,
        queued_ns: u64,
        address: u64,
        off_at: u64,
        woken_at: u64,
        idle_ns: u64,
        idle_count: u32,
        longest_nr: i32,
        turn_at: u64,
        turn_blocked_ns: u64,
        turn_queued_ns: u64,
        longest_ns: u64,
        longest_fd: i32,
        pad: u32,
    }
    struct CallKey[12] {
        tid: u32,
        nr: i32,
        fd: i32,
    }
    struct Call[128] {
        count: u64,
        wall_ns: u64,
        blocked_ns: u64,
        queued_ns: u64,
        longest_ns: u64,
        bytes: u64,
        errors: u64,
        would_block: u64,
        sleeps: u64,
        sleeps_short: u64,
        mode: u32,
        family: u16,
        local_port: u16,
        peer_port: u16,
        state: u8,
        pad: u8,
        peer_ip4: [u8; 4],
        name: [u8; 32],
    }
    struct SampleKey[32] {
        tid: u32,
        nr: i32,
        fd: i32,
        kernel_stack: i32,
        user_stack: u64,
        late: u32,
        pad: u32,
    }
    struct Stall[56] {
        at_ns: u64,
        length_ns: u64,
        blocked_ns: u64,
        queued_ns: u64,
        longest_ns: u64,
        tid: u32,
        longest_nr: i32,
        longest_fd: i32,
        pad: u32,
    }
    struct TimeSlot[24] {
        samples: u64,
        blocked_ns: u64,
        queued_ns: u64,
    }
    struct WaitKey[32] {
        tid: u32,
        nr: i32,
        fd: i32,
        pad: u32,
        address: u64,
        user_stack: u64,
    }
    struct Wait[24] {
        count: u64,
        blocked_ns: u64,
        longest_ns: u64,
    }
    struct WakerKey[12] {
        tid: u32,
        waker_tid: u32,
        nr: i32,
    }
    struct Waker[48] {
        count: u64,
        across: u64,
        slept_ns: u64,
        tgid: u32,
        pad: u32,
        name: [u8; 16],
    }
    struct UserStack[1032] {
        frames: u32,
        end: u32,
        pc: [u64; FRAMES_MAX],
    }
    struct Mapping[40] {
        start: u64,
        end: u64,
        bias: u64,
        first_row: u32,
        rows: u32,
        frame_pointers: u32,
        pad: u32,
    }
    struct Row[12] {
        pc: u32,
        cfa_offset: i32,
        bp_offset: i16,
        cfa: u8,
        bp_saved: u8,
    }
    struct Control[24] {
        epoch: u32,
        pad: u32,
        since: u64,
        until: u64,
    }
    struct Latency[2080] {
        begun: u64,
        count: u64,
        sum_ns: u64,
        longest_ns: u64,
        slots: [u64; SLOTS],
    }
    struct ProbeTotal[16] {
        count: u64,
        sum: u64,
    }
    struct Totals[48] {
        lost_calls: u64,
        lost_stacks: u64,
        lost_keys: u64,
        stacks: u64,
        stacks_complete: u64,
        stalls: u64,
    }
}

/// Text up to its first zero byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
