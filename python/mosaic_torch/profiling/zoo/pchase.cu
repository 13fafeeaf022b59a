// Pchase: each thread follows pointers; every load has to wait for the one before. Limited by latency.
#include "common.cuh"

// next[i]: the word index of the node after the one at word i. out: where each thread ends.
KERNEL pchase_l1(const u32* next, const u32* starts, u32* out, u32 steps) {
  u32 at = starts[thread_index()];
#pragma unroll 8
  for (u32 k = 0; k < steps; ++k) at = load_l1(next + at);
  out[thread_index()] = at;
}

KERNEL pchase_l2(const u32* next, const u32* starts, u32* out, u32 steps) {
  u32 at = starts[thread_index()];
#pragma unroll 8
  for (u32 k = 0; k < steps; ++k) at = load_l2(next + at);
  out[thread_index()] = at;
}
