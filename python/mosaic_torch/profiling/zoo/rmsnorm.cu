// RmsNorm: out[t, i] = in[t, i] * weight[i] / sqrt(mean(in[t]^2) + epsilon); one block to a row, which stays in
// shared memory as FP32 between the two passes.
#include "common.cuh"

// The block's sum, to every thread. partial: 32 words of shared memory; whole warps only.
__device__ float block_sum(float x, float* partial) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_sum(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < blockDim.x / 32 ? partial[lane] : 0.0f);
}

// width: a multiple of 4.
KERNEL rmsnorm_f32(const float4* __restrict__ in, const float4* __restrict__ weight, float4* __restrict__ out,
                   u32 width, float epsilon) {
  DYNAMIC_SHARED(float4, row);
  __shared__ float partial[32];
  const u32 vectors = width / 4;
  const u64 first = u64(blockIdx.x) * vectors;
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
    const float4 x = in[first + i];
    row[i] = x;
    sum += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
  }
  const float scale = rsqrtf(block_sum(sum, partial) / width + epsilon);
  for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
    const float4 x = row[i], w = weight[i];
    out[first + i] = make_float4(x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w);
  }
}

// width: a multiple of 8; a vector is 8 bfloat16.
KERNEL rmsnorm_bf16(const uint4* __restrict__ in, const uint4* __restrict__ weight, uint4* __restrict__ out, u32 width,
                    float epsilon) {
  DYNAMIC_SHARED(float4, row);
  __shared__ float partial[32];
  const u32 vectors = width / 8;
  const u64 first = u64(blockIdx.x) * vectors;
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
    const uint4 x = in[first + i];
    const float4 a = make_float4(bf16_low(x.x), bf16_high(x.x), bf16_low(x.y), bf16_high(x.y));
    const float4 b = make_float4(bf16_low(x.z), bf16_high(x.z), bf16_low(x.w), bf16_high(x.w));
    row[2 * i] = a;
    row[2 * i + 1] = b;
    sum += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w + b.x * b.x + b.y * b.y + b.z * b.z + b.w * b.w;
  }
  const float scale = rsqrtf(block_sum(sum, partial) / width + epsilon);
  for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
    const float4 a = row[2 * i], b = row[2 * i + 1];
    const uint4 w = weight[i];
    uint4 y;
    y.x = bf16_pair(a.x * scale * bf16_low(w.x), a.y * scale * bf16_high(w.x));
    y.y = bf16_pair(a.z * scale * bf16_low(w.y), a.w * scale * bf16_high(w.y));
    y.z = bf16_pair(b.x * scale * bf16_low(w.z), b.y * scale * bf16_high(w.z));
    y.w = bf16_pair(b.z * scale * bf16_low(w.w), b.w * scale * bf16_high(w.w));
    out[first + i] = y;
  }
}
