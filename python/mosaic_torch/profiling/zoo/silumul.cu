// SiluMul: out[t, i] = silu(in[t, i]) * in[t, width + i], in [tokens, 2 * width]; one block to a token.
#include "common.cuh"

__device__ __forceinline__ float silu_times(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }
__device__ __forceinline__ u32 silu_times(u32 gate, u32 up) {
  return bf16_pair(silu_times(bf16_low(gate), bf16_low(up)), silu_times(bf16_high(gate), bf16_high(up)));
}

// V: 16 bytes, that is 4 FP32 or 8 bfloat16. vectors: `width` in units of V.
template <class V>
__device__ void silumul(const V* __restrict__ in, V* __restrict__ out, u32 vectors) {
  const V* gates = in + u64(blockIdx.x) * 2 * vectors;
  const V* ups = gates + vectors;
  for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
    const V gate = gates[i], up = ups[i];
    V y;
    y.x = silu_times(gate.x, up.x);
    y.y = silu_times(gate.y, up.y);
    y.z = silu_times(gate.z, up.z);
    y.w = silu_times(gate.w, up.w);
    out[u64(blockIdx.x) * vectors + i] = y;
  }
}

KERNEL silumul_f32(const float4* in, float4* out, u32 vectors) { silumul(in, out, vectors); }
KERNEL silumul_bf16(const uint4* in, uint4* out, u32 vectors) { silumul(in, out, vectors); }
