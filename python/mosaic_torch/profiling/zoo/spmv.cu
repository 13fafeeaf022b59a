// SpMV: y = A x, A in compressed rows (CSR), FP32. The loads of x go where the columns say.
#include "common.cuh"

// One thread to a row: neighbours walk different rows, so loads are scattered and long rows hold up a warp.
KERNEL spmv_thread(const u32* __restrict__ begins, const u32* __restrict__ columns, const float* __restrict__ values,
                   const float* __restrict__ x, float* __restrict__ y, u32 rows) {
  const u32 row = thread_index();
  if (row >= rows) return;
  float sum = 0.0f;
  for (u32 i = begins[row]; i < begins[row + 1]; ++i) sum += values[i] * x[columns[i]];
  y[row] = sum;
}

// One warp to a row. Whole warps only.
KERNEL spmv_warp(const u32* __restrict__ begins, const u32* __restrict__ columns, const float* __restrict__ values,
                 const float* __restrict__ x, float* __restrict__ y, u32 rows) {
  const u32 row = thread_index() / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const u32 end = begins[row + 1];
  float sum = 0.0f;
  for (u32 i = begins[row] + lane; i < end; i += 32) sum += values[i] * x[columns[i]];
  sum = warp_sum(sum);
  if (lane == 0) y[row] = sum;
}
