// Spin: every thread waits for `cycles` SM clock cycles, and `step` more for each block before its own; loads nothing.
#include "common.cuh"

// The bound keeps it within 32 registers a thread, so that two blocks of 1,024 threads fit an SM.
// out, per block: cycles waited, SM index, begin and end in ns of the GPU's global timer.
extern "C" __global__ void __launch_bounds__(1024, 2) spin(u64* out, u64 cycles, u64 step) {
  cycles += blockIdx.x * step;
  const u64 begin_ns = global_time_ns();
  const u64 begin = clock64();
  u64 waited;
  do {
    waited = clock64() - begin;
  } while (waited < cycles);
  if (threadIdx.x == 0) {
    u64* row = out + 4 * blockIdx.x;
    row[0] = waited;
    row[1] = sm_index();
    row[2] = begin_ns;
    row[3] = global_time_ns();
  }
}
