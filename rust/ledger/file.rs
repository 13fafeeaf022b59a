//! The file: made whole or not at all, and believed only after every check.

use super::error::LedgerError;
use super::layout;
use super::prefix::{self, HEADER_BYTES, Header};
use super::sys;
use std::ffi::{CStr, CString};
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// `$MOSAIC_LEDGER_DIR`, else `/dev/shm/mosaic-<uid>`. Containers that share a GPU must share this directory.
pub fn default_dir() -> PathBuf {
    match std::env::var_os("MOSAIC_LEDGER_DIR") {
        Some(dir) if !dir.is_empty() => dir.into(),
        _ => format!("/dev/shm/mosaic-{}", sys::euid()).into(),
    }
}

pub(super) struct Opened {
    pub file: File,
    pub path: PathBuf,
    pub bytes: usize,
    pub layout_version: u32,
}

/// What a file turned out to be.
enum Found {
    Good(Opened),
    /// Made before the machine's last start, on a disk: its owners are gone.
    Stale,
    Absent,
}

struct Place<'a> {
    dir: &'a File,
    name: CString,
    path: PathBuf,
    gpu_uuid: [u8; 16],
    boot_id: [u8; 16],
}

pub(super) fn open(dir_path: &Path, gpu_uuid: [u8; 16]) -> Result<Opened, LedgerError> {
    let dir = open_dir(dir_path)?;
    let name = format!("{}.ledger", uuid_text(&gpu_uuid));
    let path = dir_path.join(&name);
    let place = Place { dir: &dir, name: c_string(name), path, gpu_uuid, boot_id: boot_id() };
    if let Found::Good(opened) = place.look()? {
        return Ok(opened);
    }
    // One maker at a time; the directory's lock ends with its holder, however that ends.
    sys::flock(&dir, true).map_err(io_error("lock", dir_path))?;
    let made = match place.look() {
        Ok(Found::Good(opened)) => Ok(opened),
        Ok(Found::Stale | Found::Absent) => place.make(),
        Err(e) => Err(e),
    };
    // A child that was forked meanwhile shares the lock: closing `dir` would not be enough.
    sys::flock(&dir, false).map_err(io_error("unlock", dir_path))?;
    made
}

fn open_dir(path: &Path) -> Result<File, LedgerError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(io_error("make directory", path)(e)),
    }
    let dir = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path).map_err(
        |e| match e.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP) => LedgerError::NotADirectory { path: path.into() },
            _ => io_error("open directory", path)(e),
        },
    )?;
    let meta = dir.metadata().map_err(io_error("look at", path))?;
    check_owner(path, &meta, 0o700)?;
    Ok(dir)
}

fn check_owner(path: &Path, meta: &Metadata, expected: u32) -> Result<(), LedgerError> {
    let (found_uid, expected_uid) = (meta.uid(), sys::euid());
    if found_uid != expected_uid {
        return Err(LedgerError::Owner { path: path.into(), found_uid, expected_uid });
    }
    let found = meta.mode() & 0o7777;
    if found & 0o077 != 0 {
        return Err(LedgerError::Mode { path: path.into(), found, expected });
    }
    Ok(())
}

impl Place<'_> {
    /// Opens and checks what is there: kind, owner, length, magic, versions, GPU, kernel, in this order.
    fn look(&self) -> Result<Found, LedgerError> {
        let file = match sys::open_at(self.dir, &self.name, 0) {
            Ok(file) => file,
            Err(e) => match e.raw_os_error() {
                Some(libc::ENOENT) => return Ok(Found::Absent),
                Some(libc::ELOOP) => return Err(LedgerError::Symlink { path: self.path.clone() }),
                Some(libc::EISDIR | libc::ENXIO) => return Err(LedgerError::NotAPlainFile { path: self.path.clone() }),
                _ => return Err(io_error("open", &self.path)(e)),
            },
        };
        let meta = file.metadata().map_err(io_error("look at", &self.path))?;
        if !meta.is_file() || meta.nlink() > 1 {
            return Err(LedgerError::NotAPlainFile { path: self.path.clone() });
        }
        check_owner(&self.path, &meta, 0o600)?;

        let found_bytes = meta.len();
        let size_error =
            |expected_bytes| Err(LedgerError::Size { path: self.path.clone(), found_bytes, expected_bytes });
        if found_bytes < prefix::BYTES as u64 {
            return size_error(prefix::BYTES as u64);
        }
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0).map_err(io_error("read", &self.path))?;
        let header =
            Header::from_bytes(&bytes).map_err(|found| LedgerError::Magic { path: self.path.clone(), found })?;
        if header.prefix_version != prefix::VERSION {
            return Err(LedgerError::PrefixVersion {
                path: self.path.clone(),
                found: header.prefix_version,
                expected: prefix::VERSION,
            });
        }
        if header.total_bytes != found_bytes {
            return size_error(header.total_bytes);
        }
        if header.layout_version == layout::VERSION && found_bytes != layout::BYTES as u64 {
            return size_error(layout::BYTES as u64);
        }
        if header.gpu_uuid != self.gpu_uuid {
            return Err(LedgerError::GpuUuid { path: self.path.clone(), found: header.gpu_uuid });
        }
        if header.boot_id != self.boot_id && header.boot_id != [0; 16] && self.boot_id != [0; 16] {
            return match sys::in_memory(&file).map_err(io_error("look at", &self.path))? {
                true => Err(LedgerError::ForeignKernel { path: self.path.clone() }),
                false => Ok(Found::Stale),
            };
        }
        let Ok(bytes) = usize::try_from(found_bytes) else { return size_error(layout::BYTES as u64) };
        Ok(Found::Good(Opened { file, path: self.path.clone(), bytes, layout_version: header.layout_version }))
    }

    /// Makes the file under the directory's lock: complete under another name, then renamed.
    fn make(&self) -> Result<Opened, LedgerError> {
        let temporary = c_string(format!(".{}.new", uuid_text(&self.gpu_uuid)));
        match sys::unlink_at(self.dir, &temporary) {
            // Left by a maker that was killed: we have the lock, so nobody is at work on it.
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(io_error("remove the remains of", &self.path)(e)),
        }
        let result = self.make_as(&temporary);
        if result.is_err() {
            // The first error is the one to tell.
            let _ = sys::unlink_at(self.dir, &temporary);
        }
        result
    }

    fn make_as(&self, temporary: &CStr) -> Result<Opened, LedgerError> {
        let file =
            sys::open_at(self.dir, temporary, libc::O_CREAT | libc::O_EXCL).map_err(io_error("make", &self.path))?;
        // Whatever the umask is.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(io_error("set the mode of", &self.path))?;
        sys::reserve(&file, layout::BYTES).map_err(io_error("reserve space for", &self.path))?;
        let header = Header {
            prefix_version: prefix::VERSION,
            layout_version: layout::VERSION,
            total_bytes: layout::BYTES as u64,
            gpu_uuid: self.gpu_uuid,
            boot_id: self.boot_id,
        };
        file.write_all_at(&header.to_bytes(), 0).map_err(io_error("write", &self.path))?;
        file.sync_all().map_err(io_error("sync", &self.path))?;
        sys::rename_at(self.dir, temporary, &self.name).map_err(io_error("rename", &self.path))?;
        Ok(Opened { file, path: self.path.clone(), bytes: layout::BYTES, layout_version: layout::VERSION })
    }
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LedgerError + 'a {
    move |source| LedgerError::Io { what, path: path.into(), source }
}

fn c_string(text: String) -> CString {
    // Made from hexadecimal digits and constants: no NUL in it.
    CString::new(text).unwrap_or_default()
}

/// A GPU's UUID as `nvidia-smi` writes it, less "GPU-".
pub(super) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The running kernel's boot id; zeros where it is not told.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut id = [0; 16];
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    if digits.len() == 32 {
        for (byte, pair) in id.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = pair[0] << 4 | pair[1];
        }
    }
    id
}
