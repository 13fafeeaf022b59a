// FDTD: one time step of a finite-difference stencil in three dimensions, a star of the given radius, FP32.
#include "common.cuh"

template <int RADIUS>
struct Star {
  float weight[RADIUS + 1];  // by distance from the centre
};

// in, out: [nz + 2R][ny + 2R][nx + 2R]; the outer R planes of `out` are left alone. A block has a column of tiles:
// blockDim.x by blockDim.y points of a plane in shared memory with their halo, `depth` planes one after another; what
// lies before and behind is in registers. nx, ny, nz are multiples of blockDim.x, blockDim.y, depth.
template <int RADIUS>
__device__ void step(const float* __restrict__ in, float* __restrict__ out, u32 nx, u32 ny, u32 depth,
                     const Star<RADIUS>& star) {
  DYNAMIC_SHARED(float, tile);
  const u32 width = blockDim.x + 2 * RADIUS;
  const u32 x = threadIdx.x + RADIUS, y = threadIdx.y + RADIUS;
  const u32 line = nx + 2 * RADIUS;
  const u64 plane = u64(line) * (ny + 2 * RADIUS);
  u64 at = u64(blockIdx.z) * depth * plane + u64(blockIdx.y * blockDim.y + y) * line + blockIdx.x * blockDim.x + x;
  float column[2 * RADIUS + 1];
#pragma unroll
  for (int z = 0; z < 2 * RADIUS; ++z) column[z + 1] = in[at + z * plane];
  at += RADIUS * plane;
  for (u32 z = 0; z < depth; ++z, at += plane) {
#pragma unroll
    for (int i = 0; i < 2 * RADIUS; ++i) column[i] = column[i + 1];
    column[2 * RADIUS] = in[at + RADIUS * plane];
    __syncthreads();
    tile[y * width + x] = column[RADIUS];
    if (threadIdx.y < RADIUS) {
      tile[(y - RADIUS) * width + x] = in[at - u64(RADIUS) * line];
      tile[(y + blockDim.y) * width + x] = in[at + u64(blockDim.y) * line];
    }
    if (threadIdx.x < RADIUS) {
      tile[y * width + x - RADIUS] = in[at - RADIUS];
      tile[y * width + x + blockDim.x] = in[at + blockDim.x];
    }
    __syncthreads();
    float sum = star.weight[0] * column[RADIUS];
#pragma unroll
    for (int r = 1; r <= RADIUS; ++r) {
      const float around =
          tile[y * width + x - r] + tile[y * width + x + r] + tile[(y - r) * width + x] + tile[(y + r) * width + x];
      sum += star.weight[r] * (around + column[RADIUS - r] + column[RADIUS + r]);
    }
    out[at] = sum;
  }
}

#define FDTD(RADIUS)                                                                                       \
  KERNEL fdtd_r##RADIUS(const float* in, float* out, u32 nx, u32 ny, u32 depth, const Star<RADIUS> star) { \
    step<RADIUS>(in, out, nx, ny, depth, star);                                                            \
  }
FDTD(1)
FDTD(2)
FDTD(4)
