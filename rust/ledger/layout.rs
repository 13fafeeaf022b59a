//! The part of the file that belongs to this layout version. Any change here needs a new [`VERSION`].
//!
//! | offset from the prefix's end | bytes | what |
//! |---|---|---|
//! | 0 | 8 | BE mask, as the HP mask |
//! | 4096 | 64 × 1536 | HP records, one per HP slot |
//! | 102400 | 64 × 256 | BE slots |
//!
//! Times are CLOCK_MONOTONIC nanoseconds, stamped by the owner; 0 stands for "not known".

use super::prefix::{self, LANES, SLOTS};
use super::robust::Owner;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The layout version of this build.
pub(super) const VERSION: u32 = 2;
/// Number of BE slots.
pub(super) const BE_SLOTS: usize = 64;
/// Length of the whole file.
pub(super) const BYTES: usize = prefix::BYTES + size_of::<Body>();

#[repr(C, align(4096))]
pub(super) struct Body {
    pub be_mask: AtomicU64,
    zero: [AtomicU8; 4096 - size_of::<u64>()],
    pub hp: [HpRecord; SLOTS],
    pub be: [BeSlot; BE_SLOTS],
}

/// What is known of the HP job of one slot.
#[repr(C, align(256))]
pub(super) struct HpRecord {
    pub pid: AtomicU32,
    /// Counts the claims, so that a reader notices a change of owner.
    pub generation: AtomicU32,
    pub t_iso_ns: AtomicU64,
    pub t_iso_p99_ns: AtomicU64,
    pub fingerprint: AtomicU64,
    pub slo_ratio_bits: AtomicU64,
    /// Not to be claimed before: GPU work of a dead owner may still store 0 in a lane.
    pub rests_until_ns: AtomicU64,
    pub name: Name,
    zero: [AtomicU64; 2],
    pub lanes: [LaneRecord; LANES],
    pub progress: [LaneProgress; LANES],
}

/// Written about once a request: readers may look often.
#[repr(C)]
pub(super) struct LaneRecord {
    /// When the request arrived: its latency counts from here.
    pub arrived_ns: AtomicU64,
    /// When it was opened: its end is expected from here.
    pub begin_ns: AtomicU64,
    pub gpu_idle: AtomicU32,
    zero: AtomicU32,
}

/// Written at every launch: a cache line of its own, so that lanes do not slow each other down.
#[repr(C, align(64))]
pub(super) struct LaneProgress {
    pub last_launch_ns: AtomicU64,
    /// Kernels since the request began: the position in its sequence.
    pub kernels: AtomicU32,
}

/// A best-effort job.
#[repr(C, align(256))]
pub(super) struct BeSlot {
    pub owner: Owner,
    /// Kernels in flight, and in bit 32 "one of them has an unknown duration": one word, so that they agree.
    pub in_flight: AtomicU64,
    /// Predicted instant at which they are done.
    pub drained_at_ns: AtomicU64,
    pub launched: AtomicU64,
    pub held: AtomicU64,
    pub pid: AtomicU32,
    pub generation: AtomicU32,
    pub name: Name,
}

const _: () = {
    assert!(size_of::<HpRecord>() == 1536 && std::mem::offset_of!(HpRecord, lanes) == 128);
    assert!(std::mem::offset_of!(HpRecord, progress) == 512);
    assert!(size_of::<BeSlot>() == 256);
    assert!(std::mem::offset_of!(Body, hp) == 4096 && std::mem::offset_of!(Body, be) == 102_400);
    assert!(BYTES == 131_072);
};

/// Bit of `BeSlot::in_flight`.
pub(super) const IN_FLIGHT_UNKNOWN: u64 = 1 << 32;

/// A job's name: UTF-8, zero-padded, cut at 64 bytes.
#[repr(C)]
pub(super) struct Name([AtomicU64; 8]);

impl Name {
    pub const BYTES: usize = 64;

    pub fn store(&self, name: &str) {
        let mut end = name.len().min(Self::BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; Self::BYTES];
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        for (word, chunk) in self.0.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*chunk), Relaxed);
        }
    }

    pub fn load(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

/// `None` for the 0 that stands for "not known".
#[inline]
pub(super) fn known_ns(ns: u64) -> Option<u64> {
    (ns != 0).then_some(ns)
}
