// Stands in for the zoo's common.cuh and for CUDA itself: kernels run on the CPU, one block after another, the threads
// of a block as fibers. Slow, and blind to races between threads that no barrier separates; it is for small shapes.
#pragma once

#include <ucontext.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define KERNEL extern "C" void
#define DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(cpu::shared)

typedef unsigned int u32;
typedef unsigned long long u64;

struct uint2 {
  u32 x, y;
};
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct Index {
  u32 x, y, z;
};
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static Index threadIdx, blockIdx, blockDim, gridDim;

namespace cpu {

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 * 1024);
  bool done = false;
};
struct Barrier {
  u32 arrived = 0, phase = 0;
};

static ucontext_t scheduler;
static std::vector<std::unique_ptr<Fiber>> fibers;
static u32 current;
static Barrier block_barrier, warp_barriers[32];
static u32 slots[32][32];
alignas(16) static unsigned char shared[256 * 1024];

inline void wait(Barrier& barrier, u32 threads) {
  const u32 phase = barrier.phase;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.phase;
  }
  while (barrier.phase == phase) swapcontext(&fibers[current]->context, &scheduler);
}

inline u32 threads() { return blockDim.x * blockDim.y * blockDim.z; }
inline void wait_for_warp() {
  const u32 begin = current / 32 * 32;
  wait(warp_barriers[current / 32], threads() - begin < 32 ? threads() - begin : 32);
}

// The value that a lane of this warp gives.
template <class T>
T exchange(T mine, u32 from) {
  static_assert(sizeof(T) == sizeof(u32));
  const u32 warp = current / 32;
  std::memcpy(&slots[warp][current % 32], &mine, sizeof(T));
  wait_for_warp();
  T theirs;
  std::memcpy(&theirs, &slots[warp][from], sizeof(T));
  wait_for_warp();
  return theirs;
}

static void (*entry)(void**);
static void** arguments;
inline void run_fiber() {
  entry(arguments);
  fibers[current]->done = true;
  swapcontext(&fibers[current]->context, &scheduler);
}

inline void run_block() {
  std::memset(shared, 0xff, sizeof shared);
  for (u32 i = 0; i < threads(); ++i) {
    if (i >= fibers.size()) fibers.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers[i];
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (u32 left = threads(); left > 0;) {
    for (current = 0; current < threads(); ++current) {
      if (fibers[current]->done) continue;
      threadIdx = {current % blockDim.x, current / blockDim.x % blockDim.y, current / (blockDim.x * blockDim.y)};
      swapcontext(&scheduler, &fibers[current]->context);
      left -= fibers[current]->done;
    }
  }
}

template <auto kernel>
struct Entry;
template <class... A, void (*kernel)(A...)>
struct Entry<kernel> {
  static void call(void** args) { call(args, std::index_sequence_for<A...>()); }
  template <std::size_t... I>
  static void call(void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<A>*>(args[I])...);
  }
};

template <auto kernel>
void launch(const u32* grid, const u32* block, void** args) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  entry = Entry<kernel>::call;
  arguments = args;
  for (u32 z = 0; z < grid[2]; ++z)
    for (u32 y = 0; y < grid[1]; ++y)
      for (u32 x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        run_block();
      }
}

}  // namespace cpu

inline void __syncthreads() { cpu::wait(cpu::block_barrier, cpu::threads()); }
template <class T>
T __shfl_up_sync(u32, T x, u32 apart) {
  const u32 lane = cpu::current % 32;
  return cpu::exchange(x, lane >= apart ? lane - apart : lane);
}
template <class T>
T __shfl_xor_sync(u32, T x, u32 apart) {
  return cpu::exchange(x, cpu::current % 32 ^ apart);
}
inline u32 atomicAdd(u32* p, u32 x) { return std::exchange(*p, *p + x); }
inline float __uint_as_float(u32 bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fmaf_rn(float x, float a, float b) { return std::fma(x, a, b); }
inline double __fma_rn(double x, double a, double b) { return std::fma(x, a, b); }
inline long long clock64() {
  static long long now = 0;
  return now += 100;
}

// From here on, common.cuh.

inline u32 thread_index() { return blockIdx.x * blockDim.x + threadIdx.x; }
inline u32 thread_count() { return gridDim.x * blockDim.x; }
inline float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
inline float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
inline u32 bf16_of(float x) {
  u32 bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline u32 bf16_pair(float low, float high) { return bf16_of(low) | bf16_of(high) << 16; }
inline float warp_sum(float x) {
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
  return x;
}
inline u32 load_l1(const u32* p) { return *p; }
inline u32 load_l2(const u32* p) { return *p; }
inline void touch_cg(uint4* p, bool store, u32 word, uint4& loaded) {
  if (store)
    *p = {word, word, word, word};
  else
    loaded = *p;
}
inline u64 global_time_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline u32 sm_index() { return blockIdx.x % 132; }
