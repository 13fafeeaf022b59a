// MemThrash: 16-byte loads and stores past L1 over a working set, in a given mixture (paper §4.3).
#include "common.cuh"

// What the 16 bytes at index i hold, four times over: a store changes nothing.
__device__ __forceinline__ u32 word_of(u32 i) { return i * 2654435761u + 12345u; }

// n: the working set in units of 16 bytes. Of each 100 accesses of a thread, `write_percent` are stores; warps begin
// at different points of that cycle. out, per thread: the sum of the words loaded, the number of stores.
KERNEL memthrash(uint4* data, uint2* out, u32 n, u32 accesses, u32 write_percent) {
  const u32 stride = thread_count() % n;
  u32 at = thread_index() % n;
  u32 due = thread_index() / 32 * 37 % 100;
  u32 sum = 0, stores = 0;
#pragma unroll 4
  for (u32 k = 0; k < accesses; ++k) {
    due += write_percent;
    const bool store = due >= 100;
    due -= store ? 100 : 0;
    uint4 loaded = make_uint4(0, 0, 0, 0);
    touch_cg(data + at, store, word_of(at), loaded);
    sum += loaded.x + loaded.y + loaded.z + loaded.w;
    stores += store;
    at += stride;
    at -= at >= n ? n : 0;
  }
  out[thread_index()] = make_uint2(sum, stores);
}
