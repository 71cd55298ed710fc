//! The process title: what `ps` and /proc/PID/cmdline show in place of the arguments.
//!
//! The kernel reads the arguments from the process's own memory, between two addresses that the process may
//! move (`PR_SET_MM_MAP`), so a title may be longer than the arguments. A kernel without that option
//! (`CONFIG_CHECKPOINT_RESTORE`) keeps the arguments, and so does a sandbox that forbids it.

use std::io;
use std::sync::Mutex;

use libc::{c_int, c_ulong};

/// The longest title, in bytes.
pub const LEN_MAX: usize = 4095;

/// The memory that holds the title. The process keeps it to its end.
static BUFFER: Mutex<Option<&'static mut [u8; LEN_MAX + 1]>> = Mutex::new(None);

/// `struct prctl_mm_map` of the kernel.
#[repr(C)]
struct MemoryMap {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_brk: u64,
    brk: u64,
    start_stack: u64,
    arg_start: u64,
    arg_end: u64,
    env_start: u64,
    env_end: u64,
    auxv: *mut u64,
    auxv_size: u32,
    exe_fd: u32,
}

/// Replaces the title. It is cut off at a zero byte, and at [`LEN_MAX`] bytes.
///
/// # Errors
/// The kernel keeps the arguments; the title is as before.
pub fn set(title: &[u8]) -> io::Result<()> {
    let title = title.split(|byte| *byte == 0).next().unwrap_or_default();
    let title = &title[..title.len().min(LEN_MAX)];
    let mut buffer = BUFFER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let buffer = buffer.get_or_insert_with(|| Box::leak(Box::new([0; LEN_MAX + 1])));
    let before = **buffer;
    buffer.fill(0);
    buffer[..title.len()].copy_from_slice(title);
    let start = buffer.as_ptr() as u64;
    let result = move_arguments(start, start + title.len() as u64 + 1);
    if result.is_err() {
        **buffer = before;
    }
    result
}

/// Has the kernel take these addresses for the start and end of the arguments.
fn move_arguments(arg_start: u64, arg_end: u64) -> io::Result<()> {
    const PR_SET_MM: c_int = 35;
    const PR_SET_MM_MAP: c_ulong = 14;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in brackets, may contain anything. The field behind it is the third.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |number: usize| {
        let text = fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
        text.ok_or_else(|| io::Error::other("/proc/self/stat has another form"))
    };
    // SAFETY: `sbrk(0)` changes nothing.
    let brk = unsafe { libc::sbrk(0) } as u64;
    let map = MemoryMap {
        start_code: field(26)?,
        end_code: field(27)?,
        start_data: field(45)?,
        end_data: field(46)?,
        start_brk: field(47)?,
        brk,
        start_stack: field(28)?,
        arg_start,
        arg_end,
        env_start: field(50)?,
        env_end: field(51)?,
        auxv: std::ptr::null_mut(),
        auxv_size: 0,
        exe_fd: u32::MAX,
    };
    let (map, size) = (&raw const map as c_ulong, size_of::<MemoryMap>() as c_ulong);
    // SAFETY: the kernel reads `size` bytes of the map, and checks them. All its addresses but those of the
    // arguments are the present ones, and the memory of the arguments is never freed.
    let done = unsafe { libc::prctl(PR_SET_MM, PR_SET_MM_MAP, map, size, 0 as c_ulong) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Vec<u8> {
        std::fs::read("/proc/self/cmdline").expect("it can be read")
    }

    #[test]
    fn titles_replace_the_arguments() {
        let long = vec![b'x'; LEN_MAX + 100];
        let titles = [&b"evenkeel *:6379"[..], b"a\0b", &long, b"", b"short"];
        if set(b"first").is_err() {
            return; // a kernel without it
        }
        for title in titles {
            set(title).expect("it could be set before");
            let expected = title.split(|byte| *byte == 0).next().unwrap_or_default();
            let expected = &expected[..expected.len().min(LEN_MAX)];
            assert_eq!(shown(), [expected, b"\0"].concat());
        }
        assert!(std::env::var("PATH").is_ok(), "the environment stays");
    }
}
