//! What can go wrong when a ledger is opened or a slot is claimed.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a ledger could not be opened, or a slot not be claimed.
#[derive(Debug)]
#[non_exhaustive]
pub enum LedgerError {
    /// A system call on the directory or the file failed.
    Io {
        /// What was being done.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The directory is a symlink or no directory.
    NotADirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The file is a symlink.
    Symlink {
        /// The file.
        path: PathBuf,
    },
    /// The file is a directory, a FIFO, a device or the like, or has a second name.
    NotAPlainFile {
        /// The file.
        path: PathBuf,
    },
    /// The directory or the file belongs to another user.
    Owner {
        /// The directory or the file.
        path: PathBuf,
        /// Its owner.
        found_uid: u32,
        /// This process.
        expected_uid: u32,
    },
    /// Others than the owner may use the directory or the file.
    Mode {
        /// The directory or the file.
        path: PathBuf,
        /// Its permission bits.
        found: u32,
        /// What they may be at most.
        expected: u32,
    },
    /// The file is shorter than the prefix, or its length is not the one its header states.
    Size {
        /// The file.
        path: PathBuf,
        /// Its length.
        found_bytes: u64,
        /// What its header or the layout asks for.
        expected_bytes: u64,
    },
    /// The file does not begin with a ledger's magic bytes.
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        found: [u8; 8],
    },
    /// The prefix has a version that cannot exist.
    PrefixVersion {
        /// The file.
        path: PathBuf,
        /// Its prefix version.
        found: u32,
        /// The only one there is.
        expected: u32,
    },
    /// The file is the ledger of another GPU.
    GpuUuid {
        /// The file.
        path: PathBuf,
        /// The GPU it names.
        found: [u8; 16],
    },
    /// The file in memory was made under another kernel, whose processes this one cannot see die.
    ForeignKernel {
        /// The file.
        path: PathBuf,
    },
    /// The ledger has the layout of another version of mosaic_torch: it can be read but not claimed.
    OtherLayout {
        /// The file.
        path: PathBuf,
        /// Its layout version.
        found: u32,
        /// This build's.
        expected: u32,
    },
    /// Every slot of this role is taken.
    Full {
        /// "HP" or "BE".
        role: &'static str,
        /// Slots of living processes.
        live: u32,
        /// Slots that rest because a dead process's GPU work may still write there.
        resting: u32,
    },
    /// The slowdown bound is not a finite number of at least 1.
    SloRatio {
        /// The bound.
        found: f64,
    },
    /// The thread that holds the claims could not be started or is gone.
    Keeper {
        /// What failed.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use LedgerError as E;
        match self {
            E::Io { what, path, source } => write!(f, "cannot {what} {}: {source}", path.display()),
            E::NotADirectory { path } => write!(
                f,
                "{} is a symlink or no directory: remove it, or set MOSAIC_LEDGER_DIR to a directory of your own",
                path.display()
            ),
            E::Symlink { path } => write!(f, "{} is a symlink, which is not followed: remove it", path.display()),
            E::NotAPlainFile { path } => {
                write!(f, "{} is no plain file, or has hard links to it: remove it", path.display())
            }
            E::Owner { path, found_uid, expected_uid } => write!(
                f,
                "{} belongs to uid {found_uid}, expected {expected_uid}: \
                 set MOSAIC_LEDGER_DIR to a directory of your own",
                path.display()
            ),
            E::Mode { path, found, expected } => write!(
                f,
                "{} has mode {found:04o}, expected at most {expected:04o}: run chmod {expected:04o} on it",
                path.display()
            ),
            E::Size { path, found_bytes, expected_bytes } => write!(
                f,
                "{} has {found_bytes} bytes, expected {expected_bytes}: \
                 stop the jobs that use it, then remove it",
                path.display()
            ),
            E::Magic { path, found } => {
                write!(f, "{} is no ledger, it begins with {found:02x?}: remove it", path.display())
            }
            E::PrefixVersion { path, found, expected } => write!(
                f,
                "{} has prefix version {found}, expected {expected}: stop the jobs that use it, then remove it",
                path.display()
            ),
            E::GpuUuid { path, found } => write!(
                f,
                "{} is the ledger of GPU {}: it was renamed or copied; remove it",
                path.display(),
                super::file::uuid_text(found)
            ),
            E::ForeignKernel { path } => write!(
                f,
                "{} was made under another kernel (its boot id differs), where deaths of processes go unnoticed here: \
                 set MOSAIC_LEDGER_DIR to a directory that only this kernel uses",
                path.display()
            ),
            E::OtherLayout { path, found, expected } => write!(
                f,
                "{} has layout version {found}, expected {expected}: another version of mosaic_torch is running on \
                 this GPU; use one version, or stop those jobs and remove the file",
                path.display()
            ),
            E::Full { role, live, resting } => write!(
                f,
                "no free {role} slot: {live} taken by living processes, {resting} resting for up to a second after \
                 the death of theirs; close jobs or try again"
            ),
            E::SloRatio { found } => {
                write!(f, "slowdown bound {found}, expected a finite number of at least 1, such as 1.1")
            }
            E::Keeper { what, source } => write!(f, "cannot {what} for the ledger: {source}"),
        }
    }
}

impl std::error::Error for LedgerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LedgerError::Io { source, .. } | LedgerError::Keeper { source, .. } => Some(source),
            _ => None,
        }
    }
}
