//! How many kernels a launch of an executable graph runs: read from its graph when it is instantiated.

use super::driver::{self, Handle};
use super::handles::HandleMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Deepest nesting of child graphs that is followed.
const MAX_DEPTH: usize = 16;

/// Bits of a count of kernels; above them stands the graph's number.
const COUNT_BITS: u32 = 24;

/// Executable graph -> its number and its kernel nodes (0 means absent).
static GRAPHS: HandleMap<8192> = HandleMap::new();
/// Number of the last one: a handle is given out again once its graph is destroyed.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// `exec` was made from `graph`.
pub fn instantiated(exec: Handle, graph: Handle) {
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let kernels = kernels_in(graph, 0).min((1 << COUNT_BITS) - 1);
    GRAPHS.set(exec as usize, number << COUNT_BITS | kernels);
}

/// `exec` is being destroyed.
pub fn destroyed(exec: Handle) {
    GRAPHS.remove(exec as usize);
}

/// Kernels that one launch of it runs; 1 for a graph that was instantiated before the hook was there.
pub fn kernels(exec: Handle) -> u64 {
    GRAPHS.get(exec as usize).map_or(1, |g| g as u64 & ((1 << COUNT_BITS) - 1))
}

/// What tells it from every other graph of this process; its handle, if it was instantiated before the hook was there.
pub fn number(exec: Handle) -> usize {
    GRAPHS.get(exec as usize).map_or(exec as usize, |g| g >> COUNT_BITS)
}

fn kernels_in(graph: Handle, depth: usize) -> usize {
    if depth > MAX_DEPTH {
        return 0;
    }
    let mut count = 0usize;
    // SAFETY: with a null array the number of nodes is written.
    if unsafe { driver::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) } != driver::SUCCESS {
        return 0;
    }
    let mut nodes: Vec<Handle> = vec![std::ptr::null_mut(); count];
    // SAFETY: the array has room for `count` nodes.
    if unsafe { driver::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) } != driver::SUCCESS {
        return 0;
    }
    nodes.truncate(count);
    let kernels = nodes.into_iter().map(|node| {
        let mut kind = u32::MAX;
        // SAFETY: a node of this graph.
        unsafe { driver::cuGraphNodeGetType(node, &mut kind) };
        match kind {
            driver::NODE_KERNEL => 1,
            driver::NODE_CHILD_GRAPH => {
                let mut child = std::ptr::null_mut();
                // SAFETY: a child-graph node; writes one handle.
                match unsafe { driver::cuGraphChildGraphNodeGetGraph(node, &mut child) } {
                    driver::SUCCESS => kernels_in(child, depth + 1),
                    _ => 0,
                }
            }
            _ => 0,
        }
    });
    kernels.sum()
}
