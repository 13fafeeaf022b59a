//! Memory for thunks and trampolines, at the distances from a function that its prologue allows.
//!
//! A region of addresses is reserved without access; each detour takes a page of it, which is filled and then made
//! read-execute for good. So no page is ever writable and executable at once, and none that may be running is written.

use std::io;
use std::ops::Range;
use std::ptr;

use super::maps::{self, Mapping};
use crate::hook::prologue::{JUMP_BYTES, Patch, Prologue};

pub(super) const PAGE_BYTES: usize = 4096;
const REGION_BYTES: usize = 256 * PAGE_BYTES;
/// Bytes that one top displacement byte spans.
const WINDOW_BYTES: i64 = 1 << 24;
/// `jmp [rip+d]`: changes no register and reaches every address.
const FAR_JUMP_BYTES: usize = 6;

/// Reserved pages, and which of them are in use.
struct Region {
    start: usize,
    used: Vec<bool>,
}

/// All regions of this process.
pub(super) struct Near {
    regions: Vec<Region>,
}

/// A page of its own for one detour, and the patch that leads to `thunk` in it.
pub(super) struct Place {
    pub(super) page: usize,
    pub(super) thunk: usize,
    pub(super) patch: Patch,
}

impl Near {
    pub(super) const fn new() -> Self {
        Self { regions: Vec::new() }
    }

    /// A page whence a safe jump from `target` leads. None: everything in reach is taken.
    /// `tops`: the top displacement bytes to try, of [`Prologue::top_bytes`].
    pub(super) fn take(&mut self, target: usize, prologue: &Prologue, tops: &[u8], maps: &[Mapping]) -> Option<Place> {
        self.take_reserved(target, prologue, tops).or_else(|| {
            self.reserve(target, prologue, tops, maps)?;
            self.take_reserved(target, prologue, tops)
        })
    }

    fn take_reserved(&mut self, target: usize, prologue: &Prologue, tops: &[u8]) -> Option<Place> {
        for region in &mut self.regions {
            for (i, used) in region.used.iter_mut().enumerate() {
                if !*used && let Some(place) = fit(target, prologue, tops, region.start + i * PAGE_BYTES) {
                    *used = true;
                    return Some(place);
                }
            }
        }
        None
    }

    /// Reserves a region whose first page fits.
    fn reserve(&mut self, target: usize, prologue: &Prologue, tops: &[u8], maps: &[Mapping]) -> Option<()> {
        let gaps = maps::gaps(maps);
        for &top in tops {
            let Some(window) = window(target, top) else { continue };
            for gap in &gaps {
                let start = gap.start.max(window.start).next_multiple_of(PAGE_BYTES);
                let last = gap.end.min(window.end).saturating_sub(PAGE_BYTES);
                let fits = |page: &usize| fit(target, prologue, &[top], *page).is_some();
                let Some(page) = (start..=last).step_by(PAGE_BYTES).find(fits) else { continue };
                let pages = REGION_BYTES.min(gap.end - page) / PAGE_BYTES;
                if reserve_at(page, pages * PAGE_BYTES) {
                    self.regions.push(Region { start: page, used: vec![false; pages] });
                    return Some(());
                }
            }
        }
        None
    }
}

/// Where a jump from `target` with this top displacement byte can lead.
fn window(target: usize, top: u8) -> Option<Range<usize>> {
    let start = (target + JUMP_BYTES) as i64 + i64::from(top as i8) * WINDOW_BYTES;
    Some(usize::try_from(start).ok()?..usize::try_from(start + WINDOW_BYTES).ok()?)
}

/// A place for the thunk in this page, if the prologue allows one.
fn fit(target: usize, prologue: &Prologue, tops: &[u8], page: usize) -> Option<Place> {
    let from = (target + JUMP_BYTES) as i64;
    let rel32 = |thunk: usize| i32::try_from(thunk as i64 - from).ok().filter(|r| tops.contains(&r.to_le_bytes()[3]));
    let last = page + PAGE_BYTES - FAR_JUMP_BYTES;
    // A page spans at most two top bytes: most pages are ruled out here.
    rel32(page).or(rel32(last))?;
    (page..=last).find_map(|thunk| {
        let patch = prologue.patch(rel32(thunk)?)?;
        Some(Place { page, thunk, patch })
    })
}

/// Reserves addresses without access; never over something that is mapped.
fn reserve_at(start: usize, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let address = ptr::without_provenance_mut(start);
    // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping; a kernel that does not know it takes the address as a hint.
    unsafe {
        let got = libc::mmap(address, bytes, libc::PROT_NONE, flags, -1, 0);
        if got != libc::MAP_FAILED && got != address {
            libc::munmap(got, bytes);
        }
        got == address
    }
}

impl Place {
    /// Fills the page: a thunk that jumps to `replacement`, and a trampoline made of `moved` and a jump to `rest`.
    /// Returns the trampoline's address. The page is executable and read-only from then on.
    pub(super) fn fill(&self, replacement: usize, moved: &[u8], rest: usize) -> io::Result<usize> {
        // The thunk's offset is given; the rest goes to the half of the page where it is not.
        let base = if self.thunk - self.page < PAGE_BYTES / 2 { PAGE_BYTES / 2 } else { 0 };
        let (replacement_at, rest_at, trampoline_at) = (base, base + 8, base + 16);

        let mut bytes = [0xcc; PAGE_BYTES];
        bytes[replacement_at..][..8].copy_from_slice(&replacement.to_le_bytes());
        bytes[rest_at..][..8].copy_from_slice(&rest.to_le_bytes());
        let thunk_at = self.thunk - self.page;
        bytes[thunk_at..][..FAR_JUMP_BYTES].copy_from_slice(&far_jump(thunk_at, replacement_at));
        bytes[trampoline_at..][..moved.len()].copy_from_slice(moved);
        let jump_at = trampoline_at + moved.len();
        bytes[jump_at..][..FAR_JUMP_BYTES].copy_from_slice(&far_jump(jump_at, rest_at));

        let page = ptr::without_provenance_mut::<u8>(self.page);
        // SAFETY: the page belongs to this place alone, and nothing runs in it yet.
        unsafe {
            protect(self.page, libc::PROT_READ | libc::PROT_WRITE)?;
            ptr::copy_nonoverlapping(bytes.as_ptr(), page, PAGE_BYTES);
            protect(self.page, libc::PROT_READ | libc::PROT_EXEC)?;
        }
        Ok(self.page + trampoline_at)
    }
}

/// `jmp [rip+d]` at offset `at`, through the address that is stored at offset `pointer`.
fn far_jump(at: usize, pointer: usize) -> [u8; FAR_JUMP_BYTES] {
    let d = (pointer as i32 - (at + FAR_JUMP_BYTES) as i32).to_le_bytes();
    [0xff, 0x25, d[0], d[1], d[2], d[3]]
}

/// Sets the protection of the page at `page`.
///
/// # Safety
/// Nothing may rely on an access that is taken away.
pub(super) unsafe fn protect(page: usize, protection: i32) -> io::Result<()> {
    // SAFETY: passed on to the caller; mprotect itself checks the range.
    match unsafe { libc::mprotect(ptr::without_provenance_mut(page), PAGE_BYTES, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
