//! Making and opening the file: hostile places, hostile bytes.

use super::peer::{Peer, command};
use super::*;
use crate::ledger::LedgerError as E;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

fn open(dir: &Path) -> Result<Arc<Ledger>, E> {
    Ledger::open(dir, GPU)
}

fn refusal(dir: &Path) -> E {
    open(dir).err().unwrap_or_else(|| panic!("{} was opened", dir.display()))
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    // SAFETY: always succeeds.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED: needs root");
    }
    root
}

#[test]
fn a_ledger_that_is_removed_or_replaced_is_noticed() {
    let dir = TempDir::new();
    let first = dir.ledger();
    assert!(!first.was_removed());
    std::fs::remove_file(dir.file()).unwrap();
    assert!(first.was_removed());
    let second = dir.ledger();
    assert!(first.was_removed() && !second.was_removed());
}

#[test]
fn a_new_ledger_is_the_owners_alone_whatever_the_umask() {
    for umask in ["0", "511"] {
        let parent = TempDir::new();
        let dir = parent.0.join("made");
        let mut peer = Peer::start(&dir);
        if umask == "511" {
            // With such a umask even the directory would be unusable: it exists already.
            fs::create_dir(&dir).unwrap();
            chmod(&dir, 0o700);
        }
        peer.ask(&format!("umask {umask}"));
        assert_eq!(peer.ask("hp a"), "0");
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
        let file = fs::metadata(dir.join(GPU_FILE)).unwrap();
        assert_eq!((file.mode() & 0o7777, file.len(), file.nlink()), (0o600, 131_072, 1));
        assert!(file.blocks() * 512 >= file.len(), "its space is not reserved: a full disk would be a SIGBUS");
    }
}

#[test]
fn the_directory_must_be_a_directory_of_our_own_and_closed_to_others() {
    let parent = TempDir::new();
    let real = parent.0.join("real");
    fs::create_dir(&real).unwrap();
    chmod(&real, 0o700);
    let link = parent.0.join("link");
    symlink(&real, &link).unwrap();
    assert!(matches!(refusal(&link), E::NotADirectory { .. }));
    let dangling = parent.0.join("dangling");
    symlink(parent.0.join("nowhere"), &dangling).unwrap();
    assert!(matches!(refusal(&dangling), E::NotADirectory { .. }));
    let file = parent.0.join("file");
    File::create(&file).unwrap();
    assert!(matches!(refusal(&file), E::NotADirectory { .. }));
    assert!(matches!(refusal(&parent.0.join("no/parent")), E::Io { what: "make directory", .. }));
    for mode in [0o750, 0o701, 0o777] {
        chmod(&real, mode);
        let e = refusal(&real);
        assert!(matches!(e, E::Mode { found, .. } if found == mode), "{e}");
        assert!(e.to_string().contains("chmod 0700"), "{e}");
    }
    chmod(&real, 0o700);
    assert!(open(&real).is_ok());
}

#[test]
fn a_directory_or_file_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    drop(open(&dir.0).unwrap());
    std::os::unix::fs::chown(dir.file(), Some(12345), None).unwrap();
    let e = refusal(&dir.0);
    assert!(matches!(e, E::Owner { found_uid: 12345, expected_uid: 0, .. }), "{e}");
    std::os::unix::fs::chown(dir.file(), Some(0), None).unwrap();
    std::os::unix::fs::chown(&dir.0, Some(12345), None).unwrap();
    let e = refusal(&dir.0);
    assert!(matches!(e, E::Owner { found_uid: 12345, .. }), "{e}");
}

#[test]
fn anything_but_a_plain_file_is_refused_and_nothing_is_followed() {
    let dir = TempDir::new();
    let victim = dir.0.join("victim");
    fs::write(&victim, "precious").unwrap();
    chmod(&victim, 0o600);

    symlink(&victim, dir.file()).unwrap();
    assert!(matches!(refusal(&dir.0), E::Symlink { .. }));
    fs::remove_file(dir.file()).unwrap();
    // Where it leads nowhere, following it would make a file there.
    symlink(dir.0.join("made"), dir.file()).unwrap();
    assert!(matches!(refusal(&dir.0), E::Symlink { .. }));
    assert!(!dir.0.join("made").exists());
    fs::remove_file(dir.file()).unwrap();

    fs::hard_link(&victim, dir.file()).unwrap();
    assert!(matches!(refusal(&dir.0), E::NotAPlainFile { .. }));
    fs::remove_file(dir.file()).unwrap();

    fs::create_dir(dir.file()).unwrap();
    assert!(matches!(refusal(&dir.0), E::NotAPlainFile { .. }));
    fs::remove_dir(dir.file()).unwrap();

    let name = std::ffi::CString::new(dir.file().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(matches!(refusal(&dir.0), E::NotAPlainFile { .. }));
    fs::remove_file(dir.file()).unwrap();

    let socket = std::os::unix::net::UnixListener::bind(dir.file()).unwrap();
    assert!(matches!(refusal(&dir.0), E::NotAPlainFile { .. }));
    drop(socket);
    fs::remove_file(dir.file()).unwrap();

    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(open(&dir.0).is_ok());
}

/// The maker's temporary name is predictable: what lies there must be removed, not written through.
#[test]
fn a_symlink_under_the_temporary_name_is_not_written_through() {
    let dir = TempDir::new();
    let victim = dir.0.join("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, dir.0.join(format!(".{}.new", GPU_FILE.trim_end_matches(".ledger")))).unwrap();
    assert!(open(&dir.0).is_ok());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(fs::symlink_metadata(dir.file()).unwrap().is_file());
}

#[test]
fn each_malformed_file_has_its_own_error_and_is_left_as_it_is() {
    type Damage = fn(&File);
    type Check = fn(&E) -> bool;
    let cases: [(&str, Damage, Check); 12] = [
        ("empty", |f| f.set_len(0).unwrap(), |e| matches!(e, E::Size { found_bytes: 0, expected_bytes: 12_288, .. })),
        ("header only", |f| f.set_len(64).unwrap(), |e| matches!(e, E::Size { found_bytes: 64, .. })),
        (
            "one byte short",
            |f| f.set_len(131_071).unwrap(),
            |e| matches!(e, E::Size { found_bytes: 131_071, expected_bytes: 131_072, .. }),
        ),
        (
            "one byte long",
            |f| f.set_len(131_073).unwrap(),
            |e| matches!(e, E::Size { found_bytes: 131_073, expected_bytes: 131_072, .. }),
        ),
        ("zeros", |f| f.write_all_at(&[0; 64], 0).unwrap(), |e| matches!(e, E::Magic { found: [0, ..], .. })),
        ("text mode", |f| f.write_all_at(b"\n\x1a\n\n", 5).unwrap(), |e| matches!(e, E::Magic { .. })),
        (
            "prefix version",
            |f| f.write_all_at(&[2], 8).unwrap(),
            |e| matches!(e, E::PrefixVersion { found: 2, expected: 1, .. }),
        ),
        (
            "huge length",
            |f| f.write_all_at(&[0xff; 8], 16).unwrap(),
            |e| matches!(e, E::Size { expected_bytes: u64::MAX, .. }),
        ),
        // This build's layout in a file too short for it: mapped, it would be a SIGBUS.
        ("short for its layout", cut_to_prefix, |e| {
            matches!(e, E::Size { found_bytes: 12_288, expected_bytes: 131_072, .. })
        }),
        ("other GPU", |f| f.write_all_at(&[9], 24).unwrap(), |e| matches!(e, E::GpuUuid { found: [9, ..], .. })),
        (
            "open to the group",
            |f| f.set_permissions(Permissions::from_mode(0o640)).unwrap(),
            |e| matches!(e, E::Mode { found: 0o640, expected: 0o600, .. }),
        ),
        (
            "open to all",
            |f| f.set_permissions(Permissions::from_mode(0o602)).unwrap(),
            |e| matches!(e, E::Mode { found: 0o602, .. }),
        ),
    ];
    for (name, damage, check) in cases {
        let dir = TempDir::new();
        drop(open(&dir.0).unwrap());
        damage(&OpenOptions::new().write(true).open(dir.file()).unwrap());
        let before = fs::read(dir.file()).unwrap();
        let e = refusal(&dir.0);
        assert!(check(&e), "{name}: {e:?}");
        assert!(e.to_string().contains(GPU_FILE), "{name}: {e}");
        assert_eq!(fs::read(dir.file()).unwrap(), before, "{name}");
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "{name}");
    }
}

fn cut_to_prefix(file: &File) {
    file.set_len(12_288).unwrap();
    file.write_all_at(&12_288_u64.to_le_bytes(), 16).unwrap();
}

/// Every single-byte change of the header gives a named error or a ledger that can be read, never a crash.
#[test]
fn no_byte_of_the_header_crashes_the_reader() {
    let dir = TempDir::new();
    drop(open(&dir.0).unwrap());
    let good = fs::read(dir.file()).unwrap();
    let (mut changed, mut refused) = (0, 0);
    for at in 0..64 {
        for value in [0, 1, 2, 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            changed += u32::from(bytes != good);
            // Anew each time: an old boot id has the file replaced.
            fs::write(dir.file(), bytes).unwrap();
            match open(&dir.0) {
                Ok(ledger) => assert_eq!(ledger.snapshot(0, 0), Default::default()),
                Err(_) => refused += 1,
            }
        }
    }
    // Accepted: 12 to 15 (another layout), 40 to 55 (boot id, on a disk) and 56 to 63 (unused).
    assert!(refused >= changed - 28 * 5 && refused > 100, "{refused} of {changed} changes were refused");
}

/// After a power cut the owners in a file on a disk are gone, although no kernel marked them.
#[test]
fn a_file_from_before_the_last_boot_is_made_anew_on_a_disk_and_refused_in_memory() {
    let old_boot = |dir: &TempDir| {
        drop(open(&dir.0).unwrap());
        let file = OpenOptions::new().write(true).open(dir.file()).unwrap();
        file.write_all_at(&[0x5a; 16], 40).unwrap();
        // A live owner with an open request.
        file.write_all_at(&[1], 64).unwrap();
        file.write_all_at(&[1], 4096).unwrap();
        file.write_all_at(&[1], 4096 + 64).unwrap();
    };
    let memory = TempDir::new_in(Path::new("/dev/shm"));
    old_boot(&memory);
    assert!(matches!(refusal(&memory.0), E::ForeignKernel { .. }));

    let disk = TempDir::new_in(std::env::current_exe().unwrap().parent().unwrap());
    old_boot(&disk);
    match open(&disk.0) {
        Ok(ledger) => assert_eq!(ledger.snapshot(0, 0), Default::default()),
        Err(E::ForeignKernel { .. }) => eprintln!("SKIPPED: the build directory is in memory"),
        Err(e) => panic!("{e}"),
    }
}

/// Without reserved space the first store to the mapping would be a SIGBUS.
#[test]
fn a_full_file_system_is_an_error_at_open_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let path = dir.0.clone();
    // A mount namespace of this thread's own, in which the directory is a file system of 64 KiB.
    let result = std::thread::spawn(move || {
        let name = std::ffi::CString::new(path.clone().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: C strings and null pointers where mount(2) allows them; only this thread's mounts change.
        let mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(
                    c"t".as_ptr(),
                    name.as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    c"size=64k,mode=0700".as_ptr().cast(),
                ) == 0
        };
        mounted.then(|| (refusal(&path), fs::read_dir(&path).unwrap().count()))
    })
    .join()
    .unwrap();
    let Some((e, files)) = result else {
        eprintln!("SKIPPED: no mount namespace here");
        return;
    };
    assert!(matches!(e, E::Io { what: "reserve space for", .. }), "{e}");
    assert_eq!(files, 0);
}

#[test]
fn the_default_directory_is_the_variables_or_the_users_own() {
    let dir = TempDir::new();
    let ask = |value: Option<&str>| {
        let mut command = command(&dir.0);
        match value {
            Some(value) => command.env("MOSAIC_LEDGER_DIR", value),
            None => command.env_remove("MOSAIC_LEDGER_DIR"),
        };
        Peer::from(command).unwrap().ask("default-dir")
    };
    // SAFETY: always succeeds.
    let own = format!("/dev/shm/mosaic-{}", unsafe { libc::geteuid() });
    assert_eq!(ask(Some("/some/where")), "/some/where");
    assert_eq!(ask(None), own);
    assert_eq!(ask(Some("")), own);
}
