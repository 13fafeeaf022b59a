//! How many kernels a launch of an executable graph runs: read from its graph when it is instantiated.

use super::driver::{self, Handle};
use super::handles::HandleMap;

/// Deepest nesting of child graphs that is followed.
const MAX_DEPTH: usize = 16;

/// Executable graph -> its kernel nodes plus 1 (0 means absent).
static KERNELS: HandleMap<8192> = HandleMap::new();

/// `exec` was made from `graph`.
pub fn instantiated(exec: Handle, graph: Handle) {
    KERNELS.set(exec as usize, kernels_in(graph, 0) + 1);
}

/// `exec` is being destroyed.
pub fn destroyed(exec: Handle) {
    KERNELS.remove(exec as usize);
}

/// Kernels that one launch of it runs; 1 for a graph that was instantiated before the hook was there.
pub fn kernels(exec: Handle) -> u64 {
    KERNELS.get(exec as usize).map_or(1, |n| n as u64 - 1)
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
