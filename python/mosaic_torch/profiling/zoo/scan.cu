// Scan: exclusive prefix sums of many segments, one block to a segment at a time, in three ways.
#include "common.cuh"

// Hillis and Steele: log2(threads) rounds, a barrier in each. A segment has blockDim.x values.
KERNEL scan_steele(const u32* in, u32* out, u32 segments) {
  DYNAMIC_SHARED(u32, buffer);
  const u32 t = threadIdx.x, n = blockDim.x;
  for (u32 s = blockIdx.x; s < segments; s += gridDim.x) {
    u32 *from = buffer, *to = buffer + n;
    const u32 mine = in[u64(s) * n + t];
    from[t] = mine;
    __syncthreads();
    for (u32 apart = 1; apart < n; apart *= 2) {
      to[t] = from[t] + (t >= apart ? from[t - apart] : 0);
      __syncthreads();
      u32* swap = from;
      from = to;
      to = swap;
    }
    out[u64(s) * n + t] = from[t] - mine;
    __syncthreads();
  }
}

// A tree up and down: less work, more barriers and branches, bank conflicts. A segment has 2 * blockDim.x values.
KERNEL scan_tree(const u32* in, u32* out, u32 segments) {
  DYNAMIC_SHARED(u32, x);
  const u32 t = threadIdx.x, n = 2 * blockDim.x;
  for (u32 s = blockIdx.x; s < segments; s += gridDim.x) {
    x[t] = in[u64(s) * n + t];
    x[t + n / 2] = in[u64(s) * n + t + n / 2];
    u32 apart = 1;
    for (u32 active = n / 2; active > 0; active /= 2, apart *= 2) {
      __syncthreads();
      if (t < active) x[apart * (2 * t + 2) - 1] += x[apart * (2 * t + 1) - 1];
    }
    __syncthreads();
    if (t == 0) x[n - 1] = 0;
    for (u32 active = 1; active < n; active *= 2) {
      apart /= 2;
      __syncthreads();
      if (t < active) {
        const u32 left = apart * (2 * t + 1) - 1, right = apart * (2 * t + 2) - 1;
        const u32 sum = x[left] + x[right];
        x[left] = x[right];
        x[right] = sum;
      }
    }
    __syncthreads();
    out[u64(s) * n + t] = x[t];
    out[u64(s) * n + t + n / 2] = x[t + n / 2];
    __syncthreads();
  }
}

__device__ __forceinline__ u32 warp_inclusive(u32 x, u32 lane) {
#pragma unroll
  for (u32 apart = 1; apart < 32; apart *= 2) {
    const u32 before = __shfl_up_sync(0xffffffffu, x, apart);
    if (lane >= apart) x += before;
  }
  return x;
}

// Shuffles within warps, shared memory between them. A segment has 4 * blockDim.x values; whole warps only.
KERNEL scan_shuffle(const uint4* in, uint4* out, u32 segments) {
  __shared__ u32 totals[32];
  const u32 t = threadIdx.x, n = blockDim.x, lane = t % 32, warp = t / 32;
  for (u32 s = blockIdx.x; s < segments; s += gridDim.x) {
    uint4 x = in[u64(s) * n + t];
    const u32 total = x.x + x.y + x.z + x.w;
    const u32 inclusive = warp_inclusive(total, lane);
    if (lane == 31) totals[warp] = inclusive;
    __syncthreads();
    if (warp == 0) {
      const u32 sum = warp_inclusive(lane < n / 32 ? totals[lane] : 0, lane);
      totals[lane] = sum;
    }
    __syncthreads();
    u32 before = inclusive - total + (warp > 0 ? totals[warp - 1] : 0);
    uint4 y;
    y.x = before;
    y.y = before += x.x;
    y.z = before += x.y;
    y.w = before + x.z;
    out[u64(s) * n + t] = y;
    __syncthreads();
  }
}
