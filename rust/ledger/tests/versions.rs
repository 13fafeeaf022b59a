//! Files of other versions. The numbers here are literal on purpose: the prefix is a promise between builds.

use super::peer::Peer;
use super::*;
use crate::ledger::LedgerError;
use crate::ledger::layout::VERSION;
use std::os::unix::fs::{FileExt, PermissionsExt};

fn patch(dir: &TempDir, at: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(dir.file()).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn the_prefix_stands_where_its_first_version_put_it() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let claims: Vec<_> = (0..3).map(|_| ledger.claim_hp(&info("a")).unwrap()).collect();
    for _ in 0..6 {
        claims[2].open_lane(1).unwrap();
    }
    claims[1].set_calibrating(true);
    let bytes = std::fs::read(dir.file()).unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(bytes[..8], [0x8f, b'M', b'O', b'S', b'L', 0x0d, 0x1a, 0x0a]);
    assert_eq!((u32_at(8), u32_at(16), u32_at(20)), (1, bytes.len() as u32, 0));
    assert_eq!(bytes[24..40], GPU);
    assert_eq!(bytes[64..72], [0b111, 0, 0, 0, 0, 0, 0, 0]);
    let slot = 4096 + 2 * 128;
    let owner = u32_at(slot);
    assert!(Path::new(&format!("/proc/self/task/{owner}")).exists(), "owner word {owner:#x} is no thread of ours");
    assert_eq!((u32_at(slot + 64 + 5 * 4), u32_at(slot + 64 + 6 * 4)), (1, 0));
    assert_eq!((u32_at(4096 + 16), u32_at(4096 + 128 + 16)), (0, 1));
    drop(claims);
    let bytes = std::fs::read(dir.file()).unwrap();
    assert_eq!((&bytes[64..72], &bytes[slot..slot + 4]), (&[0; 8][..], &[0; 4][..]));
}

/// A claimer writes bit 30 with its TID while it still clears what the last owner left.
#[test]
fn a_slot_counts_only_with_an_owner_and_without_the_dead_bit() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    patch(&dir, 64, &[1]);
    patch(&dir, 4096 + 64, &[1]);
    for (word, counts) in [(0_u32, 0), (77, 1), (0x4000_0000, 0), (0x4000_0000 | 77, 0), (0xc000_0000, 0)] {
        patch(&dir, 4096, &word.to_le_bytes());
        assert_eq!(ledger.snapshot(0, 0).hp_active, counts, "owner word {word:#x}");
    }
}

const NEWER: u32 = VERSION + 1;

/// An old BE build meets a new HP: it must see the activity, and its end by death, in a file it cannot fully read.
#[test]
fn hp_activity_is_seen_in_a_file_of_a_newer_layout_but_nothing_is_claimed() {
    for total_bytes in [12_288_u64, 131_072, 1 << 20] {
        let dir = TempDir::new();
        drop(dir.ledger());
        let mut newer = Peer::start(&dir.0);
        newer.ask("hp newer");
        newer.ask("open 0");
        newer.ask("open 0");
        newer.ask("calibrating");
        // From here on the file is one of a newer build, in which that HP runs.
        let copy = TempDir::new();
        let file = if total_bytes >= 131_072 { &dir } else { &copy };
        if total_bytes >= 131_072 {
            let handle = std::fs::OpenOptions::new().write(true).open(dir.file()).unwrap();
            handle.set_len(total_bytes).unwrap();
        } else {
            // A shorter file cannot be cut while the peer has it mapped: a copy has the same words.
            let bytes = std::fs::read(dir.file()).unwrap();
            std::fs::write(copy.file(), &bytes[..total_bytes as usize]).unwrap();
            std::fs::set_permissions(copy.file(), PermissionsExt::from_mode(0o600)).unwrap();
        }
        patch(file, 12, &NEWER.to_le_bytes());
        patch(file, 16, &total_bytes.to_le_bytes());

        let old = Ledger::open(&file.0, GPU).unwrap();
        assert!(old.prefix_only());
        let s = old.snapshot(u64::MAX, 0);
        assert_eq!((s.hp_active, s.hp_calibrating, s.hp_stalled), (2, true, false));
        assert_eq!((s.hp_expected_end_ns, s.min_t_iso_ns), (None, None));
        assert_eq!(old.describe().len(), 1);
        for refused in [old.claim_hp(&info("a")).err(), old.claim_be("b").err()] {
            assert!(
                matches!(refused, Some(LedgerError::OtherLayout { found: NEWER, expected: VERSION, .. })),
                "{refused:?}"
            );
        }
        newer.kill_and_wait();
        if total_bytes >= 131_072 {
            assert_eq!(old.snapshot(0, 0), Default::default());
        }
    }
}
