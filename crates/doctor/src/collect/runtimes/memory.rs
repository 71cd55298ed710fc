//! Memory of another process, by `process_vm_readv`: read only, and without stopping it.

use std::io;

use anyhow::{Context, Result, bail};

/// Blocks per call: the kernel's limit on the parts of a transfer.
const BLOCKS_MAX: usize = 1_024;

#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pid: i32,
}

impl Memory {
    pub(super) fn of(pid: i32) -> Memory {
        Memory { pid }
    }

    /// Fills `into` from `address` on; an error if any part of it is not mapped.
    pub(super) fn read(self, address: u64, into: &mut [u8]) -> Result<()> {
        let wanted = into.len();
        let read = self.transfer(into, &[remote(address, wanted)]);
        let read = read.with_context(|| format!("memory of process {} cannot be read", self.pid))?;
        if read < wanted {
            bail!("address {address:#x} of process {} is not mapped", self.pid);
        }
        Ok(())
    }

    pub(super) fn words<const N: usize>(self, address: u64) -> Result<[u64; N]> {
        let mut bytes = vec![0; N * 8];
        self.read(address, &mut bytes)?;
        Ok(std::array::from_fn(|index| word(&bytes, index * 8)))
    }

    /// Reads `length` bytes at each address, one after another; unreadable blocks are zero.
    pub(super) fn blocks(self, addresses: &[u64], length: usize) -> Vec<u8> {
        let mut bytes = vec![0; addresses.len() * length];
        let mut at = 0;
        while at < addresses.len() {
            let until = addresses.len().min(at + BLOCKS_MAX);
            let parts: Vec<libc::iovec> =
                addresses[at..until].iter().map(|&address| remote(address, length)).collect();
            let read = self.transfer(&mut bytes[at * length..until * length], &parts).unwrap_or(0);
            let whole = read / length;
            // The transfer ends at the first unreadable block: the next one continues behind it.
            bytes[(at + whole) * length..until * length].fill(0);
            at = if whole == until - at { until } else { at + whole + 1 };
        }
        bytes
    }

    fn transfer(self, into: &mut [u8], parts: &[libc::iovec]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: the kernel writes at most `iov_len` bytes to `into`, which is borrowed mutably; the remote
        // addresses are checked by the kernel.
        let read = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, parts.as_ptr(), parts.len() as u64, 0)
        };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

fn remote(address: u64, length: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: length }
}

/// The little-endian word at an offset; zero beyond the end.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

pub(super) fn half_word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_blocks_are_zero_and_the_others_are_read() {
        let own = Memory::of(std::process::id().cast_signed());
        let numbers = [7_u64, 8, 9];
        let address = (&raw const numbers).expose_provenance() as u64;
        assert_eq!(own.words::<3>(address).expect("own memory"), numbers);
        assert!(own.words::<1>(8).is_err());
        let read = own.blocks(&[address, 8, address + 16], 8);
        assert_eq!([word(&read, 0), word(&read, 8), word(&read, 16)], [7, 0, 9]);
        assert_eq!(word(&read, 20), 0, "beyond the end");
    }
}
