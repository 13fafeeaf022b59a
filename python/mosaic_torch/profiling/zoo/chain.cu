// Chain: fused multiply-adds in registers, ILP independent chains in a thread. out: one sum per thread.
//
// x = x * a + x reads one register and a constant, so that no two operands meet in a register bank; the loop's own
// instructions come once in about a hundred multiply-adds.
#include "common.cuh"

__device__ __forceinline__ float fused(float x, float a) { return __fmaf_rn(x, a, x); }
__device__ __forceinline__ double fused(double x, double a) { return __fma_rn(x, a, x); }

template <class T, int ILP>
__device__ void chain(T* out, u32 iterations, T a) {
  T x[ILP];
#pragma unroll
  for (int i = 0; i < ILP; ++i) x[i] = T((threadIdx.x + i) % 32);
#pragma unroll(128 / ILP)
  for (u32 k = 0; k < iterations; ++k) {
#pragma unroll
    for (int i = 0; i < ILP; ++i) x[i] = fused(x[i], a);
  }
  T sum = 0;
#pragma unroll
  for (int i = 0; i < ILP; ++i) sum += x[i];
  out[thread_index()] = sum;
}

#define CHAIN(ILP)                                                                                          \
  KERNEL chain_f32_ilp##ILP(float* out, u32 iterations, float a) { chain<float, ILP>(out, iterations, a); } \
  KERNEL chain_f64_ilp##ILP(double* out, u32 iterations, double a) { chain<double, ILP>(out, iterations, a); }
CHAIN(1)
CHAIN(2)
CHAIN(3)
CHAIN(4)
CHAIN(5)
CHAIN(6)
CHAIN(7)
CHAIN(8)
