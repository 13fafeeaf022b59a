// Histogram: counts in shared memory by atomics, added up in global memory at the end; or in global memory at once.
#include "common.cuh"

// Each word holds 32 / BITS values; the upper bits of a value choose its bin.
// `copies` sub-histograms in a block, of which a warp uses one: fewer copies, more conflicts.
template <int BITS>
__device__ void histogram(const u32* words, u32* counts, u32 n, u32 bins, u32 shift, u32 copies) {
  DYNAMIC_SHARED(u32, local);
  for (u32 i = threadIdx.x; i < bins * copies; i += blockDim.x) local[i] = 0;
  __syncthreads();
  u32* mine = local + threadIdx.x / 32 % copies * bins;
  for (u32 i = thread_index(); i < n; i += thread_count()) {
    const u32 word = words[i];
#pragma unroll
    for (int bit = 0; bit < 32; bit += BITS) atomicAdd(mine + ((word >> bit & ((1u << BITS) - 1)) >> shift), 1u);
  }
  __syncthreads();
  for (u32 bin = threadIdx.x; bin < bins; bin += blockDim.x) {
    u32 sum = 0;
    for (u32 copy = 0; copy < copies; ++copy) sum += local[copy * bins + bin];
    atomicAdd(counts + bin, sum);
  }
}

KERNEL histogram_8(const u32* words, u32* counts, u32 n, u32 bins, u32 shift, u32 copies) {
  histogram<8>(words, counts, n, bins, shift, copies);
}
KERNEL histogram_16(const u32* words, u32* counts, u32 n, u32 bins, u32 shift, u32 copies) {
  histogram<16>(words, counts, n, bins, shift, copies);
}

KERNEL histogram_global_16(const u32* words, u32* counts, u32 n, u32 shift) {
  for (u32 i = thread_index(); i < n; i += thread_count()) {
    const u32 word = words[i];
    atomicAdd(counts + ((word & 0xffffu) >> shift), 1u);
    atomicAdd(counts + (word >> 16 >> shift), 1u);
  }
}
