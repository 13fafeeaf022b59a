//! The stable prefix. **No version may ever change it**: an old best-effort process must see a new HP.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `8f 4d 4f 53 4c 0d 1a 0a` |
//! | 8 | 4 | prefix version, 1 for ever |
//! | 12 | 4 | layout version: what follows the prefix |
//! | 16 | 8 | length of the file |
//! | 24 | 16 | GPU UUID |
//! | 40 | 16 | boot id of the kernel it was made under; 0 = not known |
//! | 56 | 8 | 0 |
//! | 64 | 8 | HP mask: bit *i* is set whenever HP slot *i* may be live |
//! | 72 | 4024 | 0 |
//! | 4096 | 64 × 128 | HP slots |
//!
//! One HP slot:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | owner word (robust futex): 0 = free; TID = live; bit 30 set = dead, or being claimed: counts for nothing |
//! | 4 | 4 | 0 |
//! | 8 | 8 | link of the owner thread's robust list, an address in the owner's process |
//! | 16 | 4 | exclusive: not 0 = BE stays away even between this HP's requests (it calibrates) |
//! | 20 | 44 | 0 |
//! | 64 | 16 × 4 | lanes: not 0 in a live slot = one HP request is active |
//!
//! All integers are little-endian. The mask is changed by a slot's owner only, and never lacks the bit of a live slot.

use super::robust::Owner;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// First bytes of the file; as in PNG they reveal a text-mode copy.
pub(super) const MAGIC: [u8; 8] = *b"\x8fMOSL\r\x1a\n";
/// The only prefix version.
pub(super) const VERSION: u32 = 1;
/// Number of HP slots.
pub(super) const SLOTS: usize = 64;
/// Lanes of a slot.
pub(super) const LANES: usize = 16;

/// Length of the header's fixed fields.
pub(super) const HEADER_BYTES: usize = 64;
/// Offset of the slots.
pub(super) const SLOTS_AT: usize = 4096;
/// Length of the prefix.
pub(super) const BYTES: usize = SLOTS_AT + SLOTS * size_of::<Slot>();

/// The prefix as it lies in memory.
#[repr(C, align(4096))]
pub(super) struct Prefix {
    /// Read and checked before the file is mapped, see [`Header`].
    header: [AtomicU8; HEADER_BYTES],
    pub hp_mask: AtomicU64,
    zero: [AtomicU8; SLOTS_AT - HEADER_BYTES - size_of::<u64>()],
    pub slots: [Slot; SLOTS],
}

/// An HP slot as it lies in memory: one cache line for its owner, one for the lanes (the GPU writes there).
#[repr(C, align(64))]
pub(super) struct Slot {
    pub owner: Owner,
    pub exclusive: AtomicU32,
    zero: [AtomicU32; 11],
    pub lanes: [AtomicU32; LANES],
}

const _: () = {
    assert!(cfg!(target_endian = "little") && cfg!(target_pointer_width = "64"));
    assert!(size_of::<Slot>() == 128 && std::mem::offset_of!(Slot, lanes) == 64);
    assert!(std::mem::offset_of!(Slot, exclusive) == 16);
    assert!(std::mem::offset_of!(Prefix, hp_mask) == 64 && std::mem::offset_of!(Prefix, slots) == SLOTS_AT);
    assert!(size_of::<Prefix>() == BYTES && BYTES == 12288);
};

/// The header's fixed fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub prefix_version: u32,
    pub layout_version: u32,
    pub total_bytes: u64,
    pub gpu_uuid: [u8; 16],
    /// All 0: not known.
    pub boot_id: [u8; 16],
}

const PREFIX_VERSION_AT: usize = MAGIC.len();
const LAYOUT_VERSION_AT: usize = PREFIX_VERSION_AT + size_of::<u32>();
const TOTAL_BYTES_AT: usize = LAYOUT_VERSION_AT + size_of::<u32>();
const GPU_UUID_AT: usize = TOTAL_BYTES_AT + size_of::<u64>();
const BOOT_ID_AT: usize = GPU_UUID_AT + 16;

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(PREFIX_VERSION_AT, &self.prefix_version.to_le_bytes());
        put(LAYOUT_VERSION_AT, &self.layout_version.to_le_bytes());
        put(TOTAL_BYTES_AT, &self.total_bytes.to_le_bytes());
        put(GPU_UUID_AT, &self.gpu_uuid);
        put(BOOT_ID_AT, &self.boot_id);
        bytes
    }

    /// The fields, or the first bytes where they are not the magic.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Header, [u8; 8]> {
        let magic = take(bytes, 0);
        if magic != MAGIC {
            return Err(magic);
        }
        Ok(Header {
            prefix_version: u32::from_le_bytes(take(bytes, PREFIX_VERSION_AT)),
            layout_version: u32::from_le_bytes(take(bytes, LAYOUT_VERSION_AT)),
            total_bytes: u64::from_le_bytes(take(bytes, TOTAL_BYTES_AT)),
            gpu_uuid: take(bytes, GPU_UUID_AT),
            boot_id: take(bytes, BOOT_ID_AT),
        })
    }
}

fn take<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}
