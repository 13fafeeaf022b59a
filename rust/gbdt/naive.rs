//! The oracle: XGBoost's own walk, plainly written.

use super::trees::Tree;

/// The prediction for one row, every array indexed as in the file.
pub(super) fn predict(base: f32, trees: &[Tree], row: &[f32]) -> f32 {
    let mut sum = base;
    for tree in trees {
        let mut node = 0;
        while tree.left_children[node] != -1 {
            let x = row[tree.split_indices[node] as usize];
            let left = if x.is_nan() { tree.default_left[node].0 } else { x < tree.split_conditions[node] };
            node = if left { tree.left_children[node] } else { tree.right_children[node] } as usize;
        }
        sum += tree.split_conditions[node];
    }
    sum
}
