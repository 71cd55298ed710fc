//! The mmap'ed ring through which the kernel delivers perf records.
//!
//! The kernel writes records and moves `head`; this side reads up to `head` and moves `tail`. Records may
//! wrap around the end.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of data. With the page before it, the mapping stays under the memory that an unprivileged user may
/// lock for each CPU (516 KiB).
pub(crate) const DATA_BYTES: usize = 256 << 10;
const _: () = assert!(DATA_BYTES.is_power_of_two()); // positions are masked
const PAGE: usize = 4096;
const LENGTH: usize = PAGE + DATA_BYTES;
/// Offsets of the two positions in `struct perf_event_mmap_page`.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
const HEADER: usize = 8;

/// Memory shared with the kernel; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Ring {
    at: *mut u8,
}

/// A record: its kind, and its bytes after the header.
pub(crate) type Record = (u32, Vec<u8>);

impl Ring {
    pub(crate) fn map(event: BorrowedFd<'_>) -> io::Result<Ring> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of an open descriptor.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), LENGTH, rights, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Ring { at: at.cast() }) }
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside of the first page, aligned to 8, and only ever used as an atomic on our side.
        unsafe { &*self.at.add(offset).cast::<AtomicU64>() }
    }

    /// Takes out all complete records.
    pub(crate) fn drain(&mut self) -> Vec<Record> {
        let head = self.position(HEAD).load(Ordering::Acquire); // records before it are complete
        let mut tail = self.position(TAIL).load(Ordering::Relaxed);
        let mut records = Vec::new();
        while head.wrapping_sub(tail) >= HEADER as u64 {
            let header = self.copy(tail, HEADER);
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if size < HEADER || size as u64 > head.wrapping_sub(tail) {
                break; // impossible, and the loop would not end
            }
            records.push((kind, self.copy(tail.wrapping_add(HEADER as u64), size - HEADER)));
            tail = tail.wrapping_add(size as u64);
        }
        self.position(TAIL).store(head, Ordering::Release); // the kernel may overwrite the bytes from here on
        records
    }

    fn copy(&self, from: u64, length: usize) -> Vec<u8> {
        let start = from as usize & (DATA_BYTES - 1);
        let first = length.min(DATA_BYTES - start);
        let mut bytes = Vec::with_capacity(length);
        // SAFETY: both parts are inside the data, and the kernel writes to neither before `tail` is moved.
        unsafe {
            let data = self.at.add(PAGE);
            bytes.extend_from_slice(std::slice::from_raw_parts(data.add(start), first));
            bytes.extend_from_slice(std::slice::from_raw_parts(data, length - first));
        }
        bytes
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the address and length of the mapping, which is unmapped once.
        unsafe { libc::munmap(self.at.cast(), LENGTH) };
    }
}
