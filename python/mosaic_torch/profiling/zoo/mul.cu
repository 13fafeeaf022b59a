// Mul: FP32 multiplications in registers, ILP independent chains in a thread. out: one sum per thread.
#include "common.cuh"

// `up` and `down` are each other's inverse but for rounding, so values stay near where they began.
template <int ILP>
__device__ void multiply(float* out, u32 iterations, float up, float down) {
  float x[ILP];
#pragma unroll
  for (int i = 0; i < ILP; ++i) x[i] = 1.0f + 0.0625f * ((threadIdx.x + i) % 32);
#pragma unroll 8
  for (u32 k = 0; k < iterations; ++k) {
#pragma unroll
    for (int i = 0; i < ILP; ++i) x[i] *= up;
#pragma unroll
    for (int i = 0; i < ILP; ++i) x[i] *= down;
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < ILP; ++i) sum += x[i];
  out[thread_index()] = sum;
}

#define MUL(ILP) \
  KERNEL mul_ilp##ILP(float* out, u32 iterations, float up, float down) { multiply<ILP>(out, iterations, up, down); }
MUL(1)
MUL(2)
MUL(4)
MUL(8)
