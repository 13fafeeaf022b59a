// What several sources share. All inline PTX is here, so that the sources themselves are plain CUDA C++.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void

// The block's dynamic shared memory as an array of T, aligned to 16 bytes.
#define DYNAMIC_SHARED(T, name)                               \
  extern __shared__ __align__(16) unsigned char zoo_shared[]; \
  T* name = reinterpret_cast<T*>(zoo_shared)

__device__ __forceinline__ u32 thread_index() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u32 thread_count() { return gridDim.x * blockDim.x; }

// Two bfloat16 in one word, the first in the low half.
__device__ __forceinline__ float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ u32 bf16_pair(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
  return x;
}

// Loads that the compiler neither drops nor merges: through L1, and past it (cached in L2 only).
__device__ __forceinline__ u32 load_l1(const u32* p) {
  u32 x;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
}
__device__ __forceinline__ u32 load_l2(const u32* p) {
  u32 x;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
}

// One access past L1 of 16 bytes, a store of four times `word` or a load into `loaded`: predicated, not branched.
__device__ __forceinline__ void touch_cg(uint4* p, bool store, u32 word, uint4& loaded) {
  asm volatile(
      "{\n\t"
      ".reg .pred store;\n\t"
      "setp.ne.u32 store, %6, 0;\n\t"
      "@store st.global.cg.v4.u32 [%4], {%5, %5, %5, %5};\n\t"
      "@!store ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "+r"(loaded.x), "+r"(loaded.y), "+r"(loaded.z), "+r"(loaded.w)
      : "l"(p), "r"(word), "r"(static_cast<u32>(store))
      : "memory");
}

__device__ __forceinline__ u64 global_time_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ u32 sm_index() {
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}
