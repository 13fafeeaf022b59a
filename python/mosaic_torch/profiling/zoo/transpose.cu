// Transpose: in [height, width] to out [width, height], FP32, both sides multiples of the tile's.
#include "common.cuh"

// Through a tile in shared memory. Without padding a column of the tile lies in few banks: conflicts.
template <int TILE, int ROWS, int PADDING>
__device__ void transpose(const float* __restrict__ in, float* __restrict__ out, u32 width, u32 height) {
  __shared__ float tile[TILE][TILE + PADDING];
  const u32 left = blockIdx.x * TILE, top = blockIdx.y * TILE;
  const u32 x = threadIdx.x, y = threadIdx.y;
#pragma unroll
  for (u32 row = 0; row < TILE; row += ROWS) tile[y + row][x] = in[u64(top + y + row) * width + left + x];
  __syncthreads();
#pragma unroll
  for (u32 row = 0; row < TILE; row += ROWS) out[u64(left + y + row) * height + top + x] = tile[x][y + row];
}

#define TRANSPOSE(NAME, TILE, ROWS, PADDING)                                    \
  KERNEL transpose_##NAME(const float* in, float* out, u32 width, u32 height) { \
    transpose<TILE, ROWS, PADDING>(in, out, width, height);                     \
  }
TRANSPOSE(tile16, 16, 16, 0)
TRANSPOSE(tile16_padded, 16, 16, 1)
TRANSPOSE(tile32, 32, 8, 0)
TRANSPOSE(tile32_padded, 32, 8, 1)
TRANSPOSE(tile64, 64, 8, 0)
TRANSPOSE(tile64_padded, 64, 8, 1)

// Without shared memory: loads in rows, stores in columns, so each store is a sector of its own.
KERNEL transpose_direct(const float* in, float* out, u32 width, u32 height) {
  const u32 x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  out[u64(x) * height + y] = in[u64(y) * width + x];
}
