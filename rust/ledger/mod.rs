//! Who runs what on a GPU now: one shared-memory file per GPU, for all threads and processes of one user.
//!
//! A process that wants a role on a GPU claims a slot: [`Ledger::claim_hp`], [`Ledger::claim_be`]. An HP claim has
//! 16 lanes, one per open request; a lane's word is non-zero from the request's arrival until the GPU (or the CPU)
//! stores 0 there. BE reads it all with [`Ledger::snapshot`], in tens of nanoseconds and without a system call.
//!
//! A slot belongs to a thread of its process, the [`Keeper`], through a robust futex: the kernel marks the slot when
//! that thread dies, whatever kills it and wherever the process stands, be it a zombie or in another PID namespace.
//! Nobody has to poll for dead processes.
//!
//! The file: a *stable prefix* that no version ever changes (byte table in `prefix.rs`), then the part that belongs to
//! this version (`layout.rs`). A build that meets another version's file reads the prefix, which is enough to see
//! that HP is active, and refuses to claim.
//!
//! Trust domain: one uid. The directory and the file must be the user's own and closed to others; what another program
//! of the same user writes there is believed, but cannot make this one crash (short of truncating the file).

mod be;
mod claim;
pub mod clock;
mod describe;
mod error;
mod file;
mod hp;
mod keeper;
mod layout;
mod prefix;
mod robust;
mod snapshot;
mod sys;
#[cfg(test)]
mod tests;

pub use be::BeClaim;
pub use describe::{BeEntry, Entry, HpEntry, LaneEntry};
pub use error::LedgerError;
pub use file::default_dir;
pub use hp::{HpClaim, HpInfo, LaneId};
pub use keeper::Keeper;

use layout::Body;
use memmap2::MmapRaw;
use prefix::Prefix;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The mapped ledger of one GPU.
pub struct Ledger {
    map: MmapRaw,
    path: PathBuf,
    gpu_uuid: [u8; 16],
    /// The file's layout version; unless it is this build's, only the prefix is touched.
    layout_version: u32,
    /// Which file it is: device and inode.
    identity: (u64, u64),
}

impl Ledger {
    /// Opens the ledger of a GPU, and makes it (and `dir`, not its parents) where it does not exist.
    ///
    /// A file of another layout version opens too, with [`Ledger::prefix_only`] true.
    pub fn open(dir: &Path, gpu_uuid: [u8; 16]) -> Result<Arc<Ledger>, LedgerError> {
        let opened = file::open(dir, gpu_uuid)?;
        let identity = opened.file.metadata().map(|m| (m.dev(), m.ino())).map_err(|source| LedgerError::Io {
            what: "look at",
            path: opened.path.clone(),
            source,
        })?;
        let map = memmap2::MmapOptions::new()
            .len(opened.bytes)
            .populate()
            .map_raw(&opened.file)
            .map_err(|source| LedgerError::Io { what: "map", path: opened.path.clone(), source })?;
        Ok(Arc::new(Ledger { map, path: opened.path, gpu_uuid, layout_version: opened.layout_version, identity }))
    }

    /// The file belongs to a build with another layout: HP activity is seen, nothing can be claimed.
    pub fn prefix_only(&self) -> bool {
        self.layout_version != layout::VERSION
    }

    /// The file at its path is another one now, or none: who opens it from now on is not seen here, nor sees this.
    pub fn was_removed(&self) -> bool {
        self.path
            .symlink_metadata()
            .map_or_else(|e| e.kind() == std::io::ErrorKind::NotFound, |m| (m.dev(), m.ino()) != self.identity)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose GPU it is.
    pub fn gpu_uuid(&self) -> [u8; 16] {
        self.gpu_uuid
    }

    /// The pages that hold every lane word, to be registered with the driver: address and length in bytes, both
    /// multiples of the page size.
    pub fn gpu_page(&self) -> (*mut u8, usize) {
        let page_bytes = sys::page_bytes();
        let first = prefix::SLOTS_AT / page_bytes * page_bytes;
        let end = prefix::BYTES.next_multiple_of(page_bytes);
        (self.map.as_mut_ptr().wrapping_add(first), end - first)
    }

    #[inline]
    fn prefix(&self) -> &Prefix {
        // SAFETY: the map is page-aligned, at least `prefix::BYTES` long (checked at open) and lives as long as `self`;
        // `Prefix` is made of atomics only, valid for every bit pattern and for writes by other processes.
        unsafe { &*self.map.as_ptr().cast::<Prefix>() }
    }

    /// The part of this version, if the file is of this version.
    #[inline]
    fn body(&self) -> Option<&Body> {
        if self.prefix_only() {
            return None;
        }
        // SAFETY: with this build's layout version the file is `layout::BYTES` long (checked at open), `prefix::BYTES`
        // keeps the alignment of `Body`, and `Body` is made of atomics only.
        Some(unsafe { &*self.map.as_ptr().add(prefix::BYTES).cast::<Body>() })
    }

    /// The part of this version, or the refusal to claim.
    fn claimable(&self) -> Result<&Body, LedgerError> {
        self.body().ok_or_else(|| LedgerError::OtherLayout {
            path: self.path.clone(),
            found: self.layout_version,
            expected: layout::VERSION,
        })
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("path", &self.path).field("layout_version", &self.layout_version).finish()
    }
}
