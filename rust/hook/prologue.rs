//! What a detour needs to know about the first bytes of a function: where its instructions begin, whether they may be
//! moved, and which jumps over them are safe for a thread that stands in their midst.
//!
//! A jump is five bytes: `e9 d0 d1 d2 d3`. A thread that was stopped before an instruction at offset 1 to 4 resumes
//! inside the displacement. So the displacement is chosen, not given: the byte at each such offset must trap. `cc`
//! (int3) does so by itself. At offset 4 it would leave a single window of 16 MiB for the jump's destination, which a
//! big library may fill; there a harmless instruction or prefix followed by `cc` at offset 5 does as well, if offset 5
//! is ours and nobody can stand there.

use std::fmt;

/// Bytes of a `jmp rel32`.
pub const JUMP_BYTES: usize = 5;
/// Bytes of a function that [`decode`] looks at: the longest run that it can accept is 11 bytes.
pub const LOOK_BYTES: usize = 16;

const INT3: u8 = 0xcc;
/// Top displacement bytes that may stand before an int3 at offset 5, by preference. None of them changes what the
/// original instruction sees: clc (flags are dead in a prologue), cld (DF is clear by the ABI), REX and the segment
/// prefixes that 64-bit mode ignores, nop.
const BEFORE_INT3: [u8; 23] = [
    0xf8, 0xfc, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x4b, 0x4c, 0x4d, 0x4e, 0x4f, 0x3e,
    0x36, 0x2e, 0x26, 0x90,
];

/// Where the first whole instructions of a function lie: at least [`JUMP_BYTES`] of them, all position-independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prologue {
    len: u8,
    /// Bit `i`: an instruction begins at offset `i`, below [`JUMP_BYTES`].
    starts: u8,
}

/// The bytes to write over a function's start, and where a thread can trap in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    bytes: [u8; 6],
    len: u8,
    traps: [(u8, u8); 5],
    trap_count: u8,
}

/// The first instructions of a function can't be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrologueError {
    /// An instruction is not on the short list of those that mean the same at another address.
    Unknown {
        /// Its offset.
        offset: usize,
        /// The function's first bytes.
        bytes: [u8; LOOK_BYTES],
    },
}

impl fmt::Display for PrologueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Unknown { offset, bytes } = self;
        write!(f, "unknown instruction at offset {offset} of the first bytes")?;
        bytes.iter().try_for_each(|b| write!(f, " {b:02x}"))?;
        write!(f, "; expected endbr64, push, mov, movd, xor or pxor between registers, or sub rsp")
    }
}

impl std::error::Error for PrologueError {}

/// Finds the whole instructions that cover a jump.
pub fn decode(bytes: &[u8; LOOK_BYTES]) -> Result<Prologue, PrologueError> {
    let (mut len, mut starts) = (0, 0);
    while len < JUMP_BYTES {
        starts |= 1 << len;
        match instruction_len(&bytes[len..]) {
            Some(n) => len += n,
            None => return Err(PrologueError::Unknown { offset: len, bytes: *bytes }),
        }
    }
    Ok(Prologue { len: len as u8, starts })
}

/// A short list on purpose: each entry neither names an address relative to itself nor leaves the straight path.
fn instruction_len(bytes: &[u8]) -> Option<usize> {
    // A ModRM byte from 0xc0 on names two registers and no memory.
    match *bytes {
        [0xf3, 0x0f, 0x1e, 0xfa, ..] => Some(4),                              // endbr64
        [0x50..=0x57, ..] => Some(1),                                         // push r64
        [0x41, 0x50..=0x57, ..] => Some(2),                                   // push r8..r15
        [0x48 | 0x49 | 0x4c | 0x4d, 0x89 | 0x8b, 0xc0..=0xff, ..] => Some(3), // mov r64, r64
        [0x41 | 0x44 | 0x45, 0x89 | 0x8b | 0x31 | 0x33, 0xc0..=0xff, ..] => Some(3), // mov/xor r32, r32
        [0x89 | 0x8b | 0x31 | 0x33, 0xc0..=0xff, ..] => Some(2),              // mov/xor r32, r32
        // movd xmm, r32, and pxor xmm, xmm: how Nsight Compute's entry points begin
        [0x66, 0x0f, 0x6e | 0xef, 0xc0..=0xff, ..] => Some(4),
        [0x66, 0x41, 0x0f, 0x6e, 0xc0..=0xff, ..] => Some(5),
        [0x48, 0x83, 0xec, _, ..] => Some(4),          // sub rsp, imm8
        [0x48, 0x81, 0xec, _, _, _, _, ..] => Some(7), // sub rsp, imm32
        _ => None,
    }
}

impl Prologue {
    /// Bytes of the instructions that must be moved.
    pub fn moved_bytes(&self) -> usize {
        self.len.into()
    }

    fn starts_at(&self, offset: usize) -> bool {
        self.starts & (1 << offset) != 0
    }

    /// Top displacement bytes with which a jump can be safe, by preference: the nearest below first if any will do.
    pub fn top_bytes(&self) -> Vec<u8> {
        if !self.starts_at(4) {
            return (0x80..=0xff).rev().chain(0..0x80).collect();
        }
        let mut tops = vec![INT3];
        if self.owns_offset_5() {
            tops.extend(BEFORE_INT3);
        }
        tops
    }

    /// Whether offset 5 is the tail of the instruction that the jump cuts.
    fn owns_offset_5(&self) -> bool {
        self.moved_bytes() > JUMP_BYTES
    }

    /// The patch that jumps by `rel32` from its own end, if every thread inside the old instructions would trap.
    pub fn patch(&self, rel32: i32) -> Option<Patch> {
        let d = rel32.to_le_bytes();
        let mut patch = Patch { bytes: [0xe9, d[0], d[1], d[2], d[3], 0], len: 5, traps: [(0, 0); 5], trap_count: 1 };
        for offset in (1..JUMP_BYTES).filter(|&o| self.starts_at(o)) {
            let byte = patch.bytes[offset];
            let trap = if byte == INT3 {
                offset
            } else if offset == 4 && self.owns_offset_5() && BEFORE_INT3.contains(&byte) {
                (patch.bytes[5], patch.len) = (INT3, 6);
                5
            } else {
                return None;
            };
            patch.traps[usize::from(patch.trap_count)] = (trap as u8, offset as u8);
            patch.trap_count += 1;
        }
        Some(patch)
    }
}

impl Patch {
    /// `old`, a function's first eight bytes, with the patch over them.
    pub fn over(&self, old: [u8; 8]) -> [u8; 8] {
        let mut new = old;
        let len = usize::from(self.len);
        new[..len].copy_from_slice(&self.bytes[..len]);
        new
    }

    /// Pairs of (offset of an int3, offset of the old instruction that a thread trapped there was about to run).
    /// Offset 0 is among them: it holds an int3 while the patch is being written.
    pub fn traps(&self) -> &[(u8, u8)] {
        &self.traps[..usize::from(self.trap_count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(bytes: &[u8]) -> Result<Prologue, PrologueError> {
        let mut all = [0x90; LOOK_BYTES];
        all[..bytes.len()].copy_from_slice(bytes);
        decode(&all)
    }

    const LIBCUDA: [u8; 10] = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08];

    /// Fault: an instruction is cut in two, so that the trampoline runs garbage.
    #[test]
    fn test_whole_instructions_are_moved() {
        let cases: [(&[u8], usize, &[usize]); 9] = [
            (&LIBCUDA, 6, &[0, 1, 4]),
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x55], 5, &[0, 4]),
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x81, 0xec, 1, 2, 3, 4], 11, &[0, 4]),
            (&[0x48, 0x81, 0xec, 0, 1, 0, 0], 7, &[0]),
            (&[0x41, 0x57, 0x41, 0x56, 0x53], 5, &[0, 2, 4]),
            (&[0x31, 0xc0, 0x45, 0x31, 0xc9], 5, &[0, 2]),
            (&[0x41, 0x54, 0x66, 0x0f, 0x6e, 0xc9, 0x66, 0x41, 0x0f, 0x6e, 0xd0], 6, &[0, 2]),
            (&[0x53, 0x66, 0x41, 0x0f, 0x6e, 0xd0], 6, &[0, 1]),
            (&[0x55, 0x66, 0x0f, 0xef, 0xc0], 5, &[0, 1]),
        ];
        for (bytes, len, starts) in cases {
            let p = look(bytes).unwrap();
            assert_eq!(p.moved_bytes(), len, "{bytes:02x?}");
            let found: Vec<usize> = (0..JUMP_BYTES).filter(|&o| p.starts_at(o)).collect();
            assert_eq!(found, starts, "{bytes:02x?}");
        }
    }

    /// Fault: something that means another thing at another address (or ends the function) is moved.
    #[test]
    fn test_refused_prologues() {
        let cases: [(&str, &[u8], usize); 14] = [
            ("lea rax, [rip+d]", &[0x48, 0x8d, 0x05, 0, 0, 0, 0], 0),
            ("mov rax, [rip+d]", &[0x55, 0x48, 0x8b, 0x05, 0, 0, 0, 0], 1),
            ("call", &[0x55, 0xe8, 0, 0, 0, 0], 1),
            ("jmp rel32, another hook", &[0xe9, 0, 0, 0, 0], 0),
            ("jmp [rip+d], another hook", &[0xff, 0x25, 0, 0, 0, 0], 0),
            ("jmp rel8", &[0xeb, 0x10], 0),
            ("jz", &[0x55, 0x74, 0x10], 1),
            ("ret", &[0x31, 0xc0, 0xc3], 2),
            ("int3, a breakpoint", &[0xcc, 0x48, 0x89, 0xe5, 0x41, 0x54], 0),
            ("sub rax, imm8", &[0x48, 0x83, 0xe8, 0x08], 0),
            ("mov r64, [r64]", &[0x48, 0x89, 0x07], 0),
            ("xor r64, r64 with an unlisted prefix", &[0x66, 0x31, 0xc0], 0),
            ("movd xmm, [rip+d]", &[0x66, 0x0f, 0x6e, 0x05, 0, 0, 0, 0], 0),
            ("pxor xmm, [rip+d]", &[0x66, 0x0f, 0xef, 0x05, 0, 0, 0, 0], 0),
        ];
        for (what, bytes, at) in cases {
            let Err(error) = look(bytes) else { panic!("{what} was accepted") };
            let PrologueError::Unknown { offset, .. } = error;
            assert_eq!(offset, at, "{what}");
            assert!(error.to_string().contains(&format!("{:02x}", bytes[at])), "{error}");
        }
    }

    /// Fault: a thread at an old boundary runs bytes of the displacement that do not trap.
    #[test]
    fn test_patch_traps_at_each_boundary() {
        let p = look(&LIBCUDA).unwrap();
        let old: [u8; 8] = LIBCUDA[..8].try_into().unwrap();

        let patch = p.patch(i32::from_le_bytes([0xcc, 1, 2, 0xcc])).unwrap();
        assert_eq!(patch.over(old), [0xe9, 0xcc, 1, 2, 0xcc, 0x54, 0x48, 0x83]);
        assert_eq!(patch.traps(), [(0, 0), (1, 1), (4, 4)]);

        let patch = p.patch(i32::from_le_bytes([0xcc, 1, 2, 0x41])).unwrap();
        assert_eq!(patch.over(old), [0xe9, 0xcc, 1, 2, 0x41, 0xcc, 0x48, 0x83]);
        assert_eq!(patch.traps(), [(0, 0), (1, 1), (5, 4)]);

        assert_eq!(p.patch(i32::from_le_bytes([0, 1, 2, 0xcc])), None, "offset 1 would not trap");
        assert_eq!(p.patch(i32::from_le_bytes([0xcc, 1, 2, 0x00])), None, "offset 4 would not trap");
    }

    /// Fault: offset 5 is overwritten though a thread may stand there, or though it is not among the moved bytes.
    #[test]
    fn test_offset_5_is_left_alone_when_not_ours() {
        for bytes in [&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x53][..], &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x53]] {
            let p = look(bytes).unwrap();
            assert_eq!(p.moved_bytes(), 5);
            assert_eq!(p.top_bytes(), [0xcc]);
            assert_eq!(p.patch(i32::from_le_bytes([0xcc, 0xcc, 0xcc, 0x41])), None);
        }
    }

    /// Fault: the list of top bytes and the check of a displacement disagree, so that room is looked for in vain.
    #[test]
    fn test_top_bytes_agree_with_patch() {
        for bytes in [&LIBCUDA[..], &[0x48, 0x81, 0xec, 0, 1, 0, 0], &[0xf3, 0x0f, 0x1e, 0xfa, 0x55]] {
            let p = look(bytes).unwrap();
            let tops = p.top_bytes();
            for top in 0..=255 {
                let fits = p.patch(i32::from_le_bytes([0xcc, 0xcc, 0xcc, top])).is_some();
                assert_eq!(tops.contains(&top), fits, "{bytes:02x?} top byte {top:02x}");
            }
        }
    }
}
