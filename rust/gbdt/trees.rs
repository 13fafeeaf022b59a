//! The trees of a model's file, as the arrays that XGBoost writes.

use super::header::Header;
use super::{GbdtError, MAX_DEPTH};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use std::fmt;

/// One tree: an entry of each array is a node, node 0 is the root. Nodes that no other leads to were pruned.
#[derive(Deserialize)]
pub(super) struct Tree {
    /// -1 makes a leaf.
    pub left_children: Vec<i32>,
    /// Always the next node after the left one: XGBoost's own walk does not read this array.
    pub right_children: Vec<i32>,
    pub split_indices: Vec<u32>,
    /// The threshold, or a leaf's value.
    pub split_conditions: Vec<f32>,
    pub default_left: Vec<Flag>,
    #[serde(default)]
    split_type: Vec<u8>,
    #[serde(default)]
    tree_param: Param,
}

#[derive(Default, Deserialize)]
struct Param {
    size_leaf_vector: Option<String>,
}

/// The trees that the header announces, each of them checked, and the depth of the deepest.
pub(super) fn read(json: &[u8], header: &Header, features: usize) -> Result<(Vec<Tree>, usize), GbdtError> {
    let File { learner } = serde_json::from_slice(json)?;
    let trees = learner.gradient_booster.model.trees;
    if trees.len() != header.trees {
        return Err(GbdtError::field("length of trees", trees.len(), format!("num_trees, {}", header.trees)));
    }
    let mut depth = 0;
    for (index, tree) in trees.iter().enumerate() {
        depth = depth.max(tree.check(index, features)?);
    }
    Ok((trees, depth))
}

impl Tree {
    /// The left and the right child, or none of a leaf. For trees that were checked.
    pub fn children(&self, node: usize) -> Option<[usize; 2]> {
        let left = usize::try_from(self.left_children[node]).ok()?;
        Some([left, left + 1])
    }

    /// Walks level by level, and gives the number of splits on the longest way. What it has passed can be walked from
    /// node 0 to a leaf without another look at an index.
    fn check(&self, tree: usize, features: usize) -> Result<usize, GbdtError> {
        let nodes = self.check_arrays(tree)?;
        let mut reached = vec![false; nodes];
        let (mut level, mut depth) = (vec![0], 0);
        loop {
            let mut below = Vec::new();
            for node in level {
                if std::mem::replace(&mut reached[node], true) {
                    return Err(GbdtError::node(tree, node, "a second way to it", "a tree: one way to each node"));
                }
                below.extend(self.check_node(tree, node, features)?.into_iter().flatten());
            }
            if below.is_empty() {
                return Ok(depth);
            }
            if depth == MAX_DEPTH {
                return Err(GbdtError::tree(tree, format!("more than {depth} levels"), format!("at most {MAX_DEPTH}")));
            }
            (level, depth) = (below, depth + 1);
        }
    }

    /// The number of nodes.
    fn check_arrays(&self, tree: usize) -> Result<usize, GbdtError> {
        let leaf_vector = self.tree_param.size_leaf_vector.as_deref().unwrap_or("1");
        // Old files have 0.
        if !["0", "1"].contains(&leaf_vector) {
            return Err(GbdtError::tree(tree, format!("size_leaf_vector {leaf_vector:?}"), "\"1\": one output"));
        }
        if let Some(node) = self.split_type.iter().position(|kind| *kind != 0) {
            return Err(GbdtError::node(tree, node, "a categorical split (split_type)", "a numerical one"));
        }
        let nodes = self.left_children.len();
        let lengths =
            [self.right_children.len(), self.split_indices.len(), self.split_conditions.len(), self.default_left.len()];
        if nodes == 0 || lengths.iter().any(|length| *length != nodes) {
            let found = format!("arrays of {nodes}, {lengths:?} nodes");
            return Err(GbdtError::tree(tree, found, "arrays of one length, at least 1"));
        }
        Ok(nodes)
    }

    /// The node's children.
    fn check_node(&self, tree: usize, node: usize, features: usize) -> Result<Option<[usize; 2]>, GbdtError> {
        let (left, right) = (self.left_children[node], self.right_children[node]);
        let (feature, condition) = (self.split_indices[node], self.split_conditions[node]);
        if !condition.is_finite() {
            return Err(GbdtError::node(tree, node, format!("the value {condition}"), "a finite one"));
        }
        if (left, right) == (-1, -1) {
            return Ok(None);
        }
        let nodes = self.left_children.len();
        let in_range = usize::try_from(right).is_ok_and(|right| right < nodes);
        if left < 0 || left.checked_add(1) != Some(right) || !in_range {
            let expected = format!("neighbours of the {nodes} nodes, or -1 and -1");
            return Err(GbdtError::node(tree, node, format!("the children {left} and {right}"), expected));
        }
        if feature as usize >= features {
            return Err(GbdtError::node(tree, node, format!("feature {feature}"), format!("one below {features}")));
        }
        Ok(self.children(node))
    }
}

/// 0 or 1; in old files false or true.
#[derive(Clone, Copy)]
pub(super) struct Flag(pub bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlagVisitor;
        impl Visitor<'_> for FlagVisitor {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("0 or 1")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Flag, E> {
                Ok(Flag(value))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Flag, E> {
                match value {
                    0 | 1 => Ok(Flag(value == 1)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(FlagVisitor)
    }
}

#[derive(Deserialize)]
struct File {
    learner: Learner,
}

#[derive(Deserialize)]
struct Learner {
    gradient_booster: Booster,
}

#[derive(Deserialize)]
struct Booster {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    trees: Vec<Tree>,
}
