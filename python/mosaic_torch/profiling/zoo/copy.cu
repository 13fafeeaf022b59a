// Copy: n elements of 4 or 16 bytes, each grid stride apart. Limited by the memory's bandwidth.
#include "common.cuh"

// AHEAD: how many loads a thread has in flight.
template <class T, int AHEAD>
__device__ void copy(const T* __restrict__ in, T* __restrict__ out, u32 n) {
  u32 stride = thread_count(), i = thread_index();
  for (; i + (AHEAD - 1) * stride < n; i += AHEAD * stride) {
    T x[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) x[k] = in[i + k * stride];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) out[i + k * stride] = x[k];
  }
  for (; i < n; i += stride) out[i] = in[i];
}

KERNEL copy_4(const float* in, float* out, u32 n) { copy<float, 1>(in, out, n); }
KERNEL copy_16(const float4* in, float4* out, u32 n) { copy<float4, 1>(in, out, n); }
KERNEL copy_16x8(const float4* in, float4* out, u32 n) { copy<float4, 8>(in, out, n); }
