//! The layout that is evaluated.
//!
//! ```text
//! keys = the row's features as integers of the same order, twice: a missing one is above every threshold in the
//!        first half, below every threshold in the second
//! for each group of 8 trees:
//!     at = [-1; 8]
//!     depth times: for each tree of the group: at = 2 at - (keys[slot of node at] < key of node at)
//!     for each tree of the group, in order: sum += its leaf at
//! ```
//!
//! 1. A tree is a heap, padded to the depth of the deepest: no branch but the loops' own, and those are unrolled. What
//!    the padding asks does not matter, as all slots below a leaf hold its value.
//! 2. Eight trees in lock step: a step waits for the one before it, and eight of them wait together.
//! 3. The way that a missing feature takes is in the node's slot and costs nothing.
//! 4. Keys are integers, and nodes are numbered down from -1, the children of n being 2n and 2n - 1: the comparison
//!    leaves its carry, and what takes it off `at` is one instruction more. Counted up from 1, it is three, and spills.
//! 5. A node stands at its number modulo the heap's width, a power of two, so that the index is provably in range. A node
//!    is one word with the key at the bottom and the slot at the top, where the shift that takes it out is the proof.
//! 6. The sum starts from the base score and is in the order of the file: so are XGBoost's bits. The last group is
//!    filled up with trees of -0.0, which changes no sum.

use super::trees::Tree;

/// Trees in lock step.
const LANES: usize = 8;
/// Slots of a row: two per feature. Most models have few features, and a row is written for each prediction.
const FEW: usize = 64;
const MANY: usize = 2 * super::MAX_FEATURES;

/// Trees, ready to be evaluated.
#[derive(Clone, Debug)]
pub(super) struct Table {
    base: f32,
    features: usize,
    /// Levels of splits, at least 1.
    depth: usize,
    /// Of each tree `1 << depth`, one of them unused.
    nodes: Vec<u64>,
    /// Of each tree `1 << depth`.
    leaves: Vec<f32>,
}

impl Table {
    /// Of checked trees that are no deeper than `depth`.
    pub fn new(base: f32, trees: &[Tree], features: usize, depth: usize) -> Self {
        let depth = depth.max(1);
        let width = 1 << depth;
        let slots = if features <= FEW / 2 { FEW } else { MANY };
        let heaps = trees.len().next_multiple_of(LANES);
        let (mut nodes, mut leaves) = (vec![0; heaps * width], vec![-0.0; heaps * width]);
        let heaps = nodes.chunks_exact_mut(width).zip(leaves.chunks_exact_mut(width));
        for (tree, (nodes, leaves)) in trees.iter().zip(heaps) {
            // The tree's node for each of the heap's.
            let mut from = vec![0; 2 * width];
            // Of node -n what comes to n.
            for n in 1..width {
                let node = from[n];
                let Some([left, right]) = tree.children(node) else {
                    from[2 * n..][..2].fill(node);
                    continue;
                };
                from[2 * n..][..2].copy_from_slice(&[right, left]);
                let half = if tree.default_left[node].0 { slots / 2 } else { 0 };
                let slot = (half + tree.split_indices[node] as usize) as u64;
                nodes[width - n] = slot << slot_shift(slots) | u64::from(key(tree.split_conditions[node]));
            }
            for n in width..2 * width {
                leaves[(2 * width - n) % width] = tree.split_conditions[from[n]];
            }
        }
        Table { base, features, depth, nodes, leaves }
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.nodes) + size_of_val(&*self.leaves)
    }

    pub fn predict(&self, row: &[f32]) -> f32 {
        if self.features <= FEW / 2 { self.by_depth(&keys::<FEW>(row)) } else { self.by_depth(&keys::<MANY>(row)) }
    }

    fn by_depth<const SLOTS: usize>(&self, keys: &[u32; SLOTS]) -> f32 {
        match self.depth {
            1 => self.sum::<SLOTS, 2>(keys),
            2 => self.sum::<SLOTS, 4>(keys),
            3 => self.sum::<SLOTS, 8>(keys),
            4 => self.sum::<SLOTS, 16>(keys),
            5 => self.sum::<SLOTS, 32>(keys),
            6 => self.sum::<SLOTS, 64>(keys),
            7 => self.sum::<SLOTS, 128>(keys),
            _ => self.sum::<SLOTS, 256>(keys),
        }
    }

    fn sum<const SLOTS: usize, const WIDTH: usize>(&self, keys: &[u32; SLOTS]) -> f32 {
        let (nodes, _) = self.nodes.as_chunks::<WIDTH>().0.as_chunks::<LANES>();
        let (leaves, _) = self.leaves.as_chunks::<WIDTH>().0.as_chunks::<LANES>();
        let mut sum = self.base;
        for (nodes, leaves) in nodes.iter().zip(leaves) {
            let mut at = [-1_isize; LANES];
            for _ in 0..WIDTH.ilog2() {
                for (at, nodes) in at.iter_mut().zip(nodes) {
                    let node = nodes[*at as usize % WIDTH];
                    let slot = (node >> slot_shift(SLOTS)) as usize;
                    *at = 2 * *at - isize::from(keys[slot] < node as u32);
                }
            }
            for (at, leaves) in at.iter().zip(leaves) {
                sum += leaves[*at as usize % WIDTH];
            }
        }
        sum
    }
}

const fn slot_shift(slots: usize) -> u32 {
    u64::BITS - slots.ilog2()
}

/// Keys compare as the floats do, infinities too: none of them is 0 or `u32::MAX`.
fn key(x: f32) -> u32 {
    // Of the two zeros, which are equal, this makes one.
    let bits = (x + 0.0).to_bits();
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

/// The row as slots. Features that the row does not have are missing.
#[inline]
fn keys<const SLOTS: usize>(row: &[f32]) -> [u32; SLOTS] {
    let mut keys = [0; SLOTS];
    let (high, low) = keys.split_at_mut(SLOTS / 2);
    high.fill(u32::MAX);
    for ((high, low), &x) in high.iter_mut().zip(low).zip(row) {
        (*high, *low) = if x.is_nan() { (u32::MAX, 0) } else { (key(x), key(x)) };
    }
    keys
}
