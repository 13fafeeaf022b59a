// Meet: the last kernels before a pair, one thread on each of its streams. Neither ends before both are there; then the
// first ends, and the second `later_ns` after it has seen that. here, go: zero before.
//
// Two streams that share a hardware queue never meet: after LIMIT_NS each goes on.
#include "common.cuh"

constexpr u64 LIMIT_NS = 1'000'000;

__device__ void wait_for(const volatile u32* flag) {
  const u64 begin_ns = global_time_ns();
  while (*flag == 0 && global_time_ns() - begin_ns < LIMIT_NS) {
  }
}

KERNEL meet_first(const volatile u32* here, volatile u32* go) {
  wait_for(here);
  *go = 1;
}

KERNEL meet_second(volatile u32* here, const volatile u32* go, u32 later_ns) {
  *here = 1;
  wait_for(go);
  const u64 begin_ns = global_time_ns();
  while (global_time_ns() - begin_ns < later_ns) {
  }
}
