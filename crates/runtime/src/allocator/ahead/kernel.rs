//! Requests to the kernel about memory, and to the allocator about its arenas.

use std::ops::Range;

use evenkeel_store::memory::regions::{self, REGION};

use super::{Memory, PAGE};
use crate::sandbox::{self, Call};

/// Collapses small pages into a huge page; from Linux 6.1 on.
const MADV_COLLAPSE: i32 = 25;

unsafe extern "C" {
    /// Returns the memory of an arena, counted from 1; null if there is none.
    fn mi_arena_area(arena: std::ffi::c_int, size: *mut usize) -> *mut libc::c_void;
}

pub(super) fn has_several_nodes() -> bool {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    nodes.contains(['-', ','])
}

/// Whether the machine is configured to give no huge pages at all.
pub(super) fn is_never_huge() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|choices| choices.contains("[never]"))
}

/// Whether more address space may be taken than there is memory.
fn overcommits() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() != "2")
}

/// Maps `len` bytes of new memory for the life of the process. Returns `None` without address space.
fn map(len: usize) -> Option<Range<usize>> {
    use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE};
    // SAFETY: maps new pages and changes no existing mapping.
    let memory = unsafe {
        let (access, kind) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0)
    };
    (memory != MAP_FAILED).then_some(memory as usize..memory as usize + len)
}

/// Maps a new region.
fn map_region() -> Option<Range<usize>> {
    let start = map(2 * REGION)?.start.next_multiple_of(REGION);
    Some(start..start + REGION)
}

/// Tries with a page whether the kernel populates memory (Linux 5.14) and reports resident pages. A sandbox
/// may report all pages as resident, or forbid the question.
pub(super) fn can_ask() -> bool {
    if !sandbox::permits(Call::Mincore) {
        return false;
    }
    let Some(page) = map(PAGE) else { return false };
    let can = resident(&page) == 0 && populate(&page) && resident(&page) == 1;
    // SAFETY: mapped above, and not used otherwise.
    unsafe { libc::munmap(page.start as *mut libc::c_void, PAGE) };
    can
}

pub(super) struct Kernel {
    may_reserve: bool,
    huge_pages: bool,
    /// An empty region for [`Memory::warm`].
    own: Option<Range<usize>>,
    /// Workers' first writes take small pages.
    small_first: bool,
    /// Arenas whose advice the kernel has.
    advised: usize,
}

/// Returns the number of resident pages of a range; all where the kernel refuses the question.
fn resident(range: &Range<usize>) -> usize {
    let mut pages = vec![0u8; range.len().div_ceil(PAGE)];
    // SAFETY: writes at most a byte for each page of the range, which is mapped.
    let result =
        unsafe { libc::mincore(range.start as *mut libc::c_void, range.len(), pages.as_mut_ptr().cast()) };
    if result != 0 { pages.len() } else { pages.iter().filter(|page| *page & 1 == 1).count() }
}

/// Populates the range. Returns whether all of it is resident now.
fn populate(range: &Range<usize>) -> bool {
    const MADV_POPULATE_WRITE: i32 = 23;
    // SAFETY: missing pages of the range, which is mapped, appear as zeros, as on the first write.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), MADV_POPULATE_WRITE) == 0 }
}

/// Advises the kernel about mapped memory.
pub(super) fn advise(range: &Range<usize>, advice: i32) -> bool {
    // SAFETY: of the advices given here only MADV_DONTNEED changes readable bytes, and it is given for a
    // region without data.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), advice) == 0 }
}

impl Kernel {
    pub(super) fn new(huge_pages: bool) -> Kernel {
        let own = map_region().inspect(|own| _ = advise(own, libc::MADV_HUGEPAGE));
        // On an empty range, the call reports whether the kernel knows the advice.
        let can_gather = advise(&(0..0), MADV_COLLAPSE);
        let small_first = huge_pages && can_gather;
        Kernel { may_reserve: overcommits(), huge_pages, own, small_first, advised: 0 }
    }

    /// Makes the kernel free a huge page that has been written to: the page freed last is taken next.
    fn touch_own(&self) {
        if let Some(own) = &self.own {
            populate(own);
            advise(own, libc::MADV_DONTNEED);
        }
    }
}

impl Memory for Kernel {
    fn arenas(&mut self) -> Vec<Range<usize>> {
        let area = |number| {
            let mut size = 0;
            // SAFETY: writes the size; the allocator's arenas are never unmapped.
            let start = unsafe { mi_arena_area(number, &mut size) } as usize;
            (start != 0).then_some(start..start + size)
        };
        let arenas: Vec<Range<usize>> = (1..).map_while(area).collect();
        for arena in &arenas[self.advised.min(arenas.len())..] {
            if self.huge_pages {
                advise(arena, if self.small_first { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE });
            }
        }
        self.advised = arenas.len();
        arenas
    }

    fn resident(&self, range: Range<usize>) -> usize {
        resident(&range)
    }

    fn is_used(&self, address: usize) -> bool {
        regions::is_known(address)
    }

    fn forget(&mut self, regions: Range<usize>) {
        self.close(regions.clone());
        regions::forget(regions);
    }

    fn warm(&self) {
        if self.small_first {
            self.touch_own();
        }
    }

    fn open(&mut self, range: Range<usize>) {
        if self.small_first {
            advise(&range, libc::MADV_HUGEPAGE);
        }
    }

    fn populate(&mut self, region: usize) -> bool {
        populate(&(region..region + REGION))
    }

    fn close(&mut self, range: Range<usize>) {
        if self.small_first {
            advise(&range, libc::MADV_NOHUGEPAGE);
        }
    }

    fn gathers(&self) -> bool {
        self.small_first
    }

    fn gather(&mut self, region: usize) -> bool {
        self.touch_own();
        let region = region..region + REGION;
        advise(&region, libc::MADV_HUGEPAGE) && advise(&region, MADV_COLLAPSE)
    }

    /// Reserves as much as the allocator would: there are at most 132 arenas, so the size doubles with every
    /// eighth.
    fn reserve(&mut self, arenas: usize) {
        let len = 1 << (30 + (arenas / 8).min(16));
        if self.may_reserve {
            // SAFETY: takes address space and gives it to the allocator.
            unsafe {
                libmimalloc_sys::mi_reserve_os_memory_ex(len, true, false, false, std::ptr::null_mut())
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_can_be_asked() {
        assert!(can_ask(), "Linux 5.14 or later");
    }

    /// Returns the pages of a range that belong to huge pages, by the kernel's count.
    fn huge_in(range: &Range<usize>) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("it can be read");
        let start = format!("{:x}-{:x} ", range.start, range.end);
        let of_range = maps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
        let huge = of_range.into_iter().find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib: usize = huge.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0);
        kib * 1024 / PAGE
    }

    /// Maps a region of small pages and fills every byte.
    fn filled() -> (Range<usize>, &'static mut [u8]) {
        let range = map_region().expect("there is address space");
        advise(&range, libc::MADV_NOHUGEPAGE);
        // SAFETY: mapped above for the life of the process, and no other reference exists.
        let bytes = unsafe { std::slice::from_raw_parts_mut(range.start as *mut u8, REGION) };
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 37) as u8);
        assert_eq!((resident(&range), huge_in(&range)), (REGION / PAGE, 0));
        (range, bytes)
    }

    #[test]
    fn the_kernel_gathers_pages_and_keeps_what_is_in_them() {
        // Some kernels cannot: older than 6.1, without huge pages, or sandboxed.
        let (other, _) = filled();
        let can = advise(&other, libc::MADV_HUGEPAGE) && advise(&other, MADV_COLLAPSE);
        let (range, bytes) = filled();
        assert_eq!(Kernel::new(true).gather(range.start), can);
        assert_eq!(huge_in(&range), if can { REGION / PAGE } else { 0 });
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at / 37) as u8));
    }
}
