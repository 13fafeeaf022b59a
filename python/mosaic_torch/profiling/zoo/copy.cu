// Copy: n elements of 4 or 16 bytes, each grid stride apart. Limited by the memory's bandwidth.
#include "common.cuh"

template <class T>
__device__ void copy(const T* __restrict__ in, T* __restrict__ out, u32 n) {
  for (u32 i = thread_index(); i < n; i += thread_count()) out[i] = in[i];
}

KERNEL copy_4(const float* in, float* out, u32 n) { copy(in, out, n); }
KERNEL copy_16(const float4* in, float4* out, u32 n) { copy(in, out, n); }
