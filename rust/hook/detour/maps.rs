//! What `/proc/self/maps` says: where code lies, how it is protected, and where there is room.

use std::io;
use std::ops::Range;

/// Lowest and highest address that is asked of mmap.
const LOWEST: usize = 0x10000;
const HIGHEST: usize = 0x7fff_ffff_0000;
/// Kept free below the main stack and above the heap, which grow.
const GROWTH_BYTES: usize = 1 << 30;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: Range<usize>,
    /// PROT_* bits.
    pub(super) protection: i32,
    /// Writes go to the file, and to everyone else who maps it.
    pub(super) shared: bool,
    name: String,
}

/// All mappings, in order of address.
pub(super) fn read() -> io::Result<Vec<Mapping>> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    let flags = fields.next()?.as_bytes();
    let bit = |i: usize, c: u8, bit: i32| if flags.get(i) == Some(&c) { bit } else { 0 };
    let protection = bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC);
    Some(Mapping { range, protection, shared: flags.get(3) == Some(&b's'), name: fields.nth(3).unwrap_or("").into() })
}

/// The mapping that holds all `bytes` from `address` on.
pub(super) fn holding(maps: &[Mapping], address: usize, bytes: usize) -> Option<&Mapping> {
    let end = address.checked_add(bytes)?;
    maps.iter().find(|m| m.range.start <= address && end <= m.range.end)
}

/// Ranges where nothing is mapped and nothing grows into.
pub(super) fn gaps(maps: &[Mapping]) -> Vec<Range<usize>> {
    let mut gaps = Vec::new();
    let mut free_from = LOWEST;
    for m in maps {
        let grows_down = if m.name == "[stack]" { GROWTH_BYTES } else { 0 };
        let end = m.range.start.min(HIGHEST).saturating_sub(grows_down);
        if free_from < end {
            gaps.push(free_from..end);
        }
        let grows_up = if m.name == "[heap]" { GROWTH_BYTES } else { 0 };
        free_from = free_from.max(m.range.end.saturating_add(grows_up));
    }
    if free_from < HIGHEST {
        gaps.push(free_from..HIGHEST);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
555555554000-555555558000 r--p 00000000 fe:00 42                         /usr/bin/with space
555555558000-555555560000 r-xp 00004000 fe:00 42                         /usr/bin/with space
555555570000-555555590000 rw-p 00000000 00:00 0                          [heap]
7ffff7c00000-7ffff7c10000 rw-s 00000000 00:01 7                          /dev/shm/x
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    /// Fault: the protection that is put back after a patch is not the one that was there.
    #[test]
    fn test_lines_are_parsed() {
        let maps: Vec<Mapping> = MAPS.lines().filter_map(parse).collect();
        assert_eq!(maps.len(), 6);
        let text = holding(&maps, 0x5555_5555_8010, 16).unwrap();
        assert_eq!(text.protection, libc::PROT_READ | libc::PROT_EXEC);
        assert!(!text.shared && maps[3].shared);
        assert_eq!(maps[3].protection, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(holding(&maps, 0x5555_5555_fff8, 16), None, "runs over the end");
        assert_eq!(holding(&maps, usize::MAX, 16), None);
    }

    /// Fault: thunks are put where the heap or the stack is about to grow, or over something that is mapped.
    #[test]
    fn test_gaps_leave_room_to_grow() {
        let maps: Vec<Mapping> = MAPS.lines().filter_map(parse).collect();
        let gaps = gaps(&maps);
        assert_eq!(
            gaps,
            [LOWEST..0x5555_5555_4000, 0x5555_5556_0000..0x5555_5557_0000, 0x5555_9559_0000..0x7fff_f7c0_0000,]
        );
        assert!(maps.iter().all(|m| gaps.iter().all(|g| g.end <= m.range.start || m.range.end <= g.start)));
    }
}
