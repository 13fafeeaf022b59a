/* Memory: device memory is host memory of this process; copies and fills really happen, when the stream gets there. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

enum range_kind { DEVICE, HOST_OWNED, HOST_REGISTERED, MANAGED, MAPPED };

struct range {
    uint64_t base;
    size_t bytes;
    enum range_kind kind;
    int device;
    struct range *next;
};

static struct range *ranges;

size_t fc_memory_bytes(void)
{
    const char *s = getenv("FAKECUDA_MEM_BYTES");
    return s ? strtoull(s, NULL, 0) : (size_t)16 << 30;
}

static struct range *find(uint64_t address, size_t bytes)
{
    for (struct range *r = ranges; r; r = r->next)
        if (address >= r->base && address - r->base <= r->bytes && bytes <= r->bytes - (address - r->base) &&
            (bytes || address < r->base + r->bytes))
            return r;
    return NULL;
}

bool fc_device_range(uint64_t address, size_t bytes) { return find(address, bytes) != NULL; }
bool fc_pageable(const void *address, size_t bytes) { return find((uint64_t)address, bytes) == NULL; }

static void add(uint64_t base, size_t bytes, enum range_kind kind, int device)
{
    struct range *r = malloc(sizeof *r);
    *r = (struct range){base, bytes, kind, device, ranges};
    ranges = r;
}

static bool take_out(uint64_t base, enum range_kind kind, struct range *out)
{
    for (struct range **p = &ranges; *p; p = &(*p)->next) {
        struct range *r = *p;
        if (r->base != base || r->kind != kind)
            continue;
        *out = *r;
        *p = r->next;
        free(r);
        return true;
    }
    return false;
}

static size_t page_up(size_t n) { return (n + 4095) & ~(size_t)4095; }

/* Reserved, not touched: a test may "allocate" gigabytes. */
static CUresult allocate(size_t bytes, enum range_kind kind, uint64_t *out)
{
    int d = fc_current()->device;
    bool counts = kind == DEVICE || kind == MANAGED;
    if (!out || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (counts && (bytes > fc_memory_bytes() || fc_world->mem_used[d] > fc_memory_bytes() - bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *p = mmap(NULL, page_up(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (counts)
        fc_world->mem_used[d] += bytes;
    add((uint64_t)p, bytes, kind, d);
    *out = (uint64_t)p;
    return CUDA_SUCCESS;
}

static bool release(uint64_t base, enum range_kind kind)
{
    struct range r;
    if (!take_out(base, kind, &r))
        return false;
    if (kind == DEVICE || kind == MANAGED)
        fc_world->mem_used[r.device] -= r.bytes;
    munmap((void *)r.base, page_up(r.bytes));
    return true;
}

void fc_free_now(uint64_t address) { release(address, DEVICE); }

/* ---- allocation ---- */

static CUresult allocate_now(int api, uint64_t *out, size_t bytes, enum range_kind kind)
{
    ENTER_CTX(api);
    UNSAFE_IN_CAPTURE();
    CUresult r = allocate(bytes, kind, out);
    fc_log(fc_symbol(api), NULL, bytes, -1, 0);
    return fc_leave(r);
}

CUresult fc_cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    return allocate_now(FC_cuMemAlloc_v2, (uint64_t *)out, bytes, DEVICE);
}

CUresult fc_cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    (void)element;
    size_t p = (width + 511) & ~(size_t)511;
    CUresult r = allocate_now(FC_cuMemAllocPitch_v2, (uint64_t *)out, p * height, DEVICE);
    if (r == CUDA_SUCCESS)
        *pitch = p;
    return r;
}

CUresult fc_cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags)
{
    (void)flags;
    return allocate_now(FC_cuMemAllocManaged, (uint64_t *)out, bytes, MANAGED);
}

CUresult fc_cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    (void)flags;
    return allocate_now(FC_cuMemHostAlloc, (uint64_t *)out, bytes, HOST_OWNED);
}

CUresult fc_cuMemAllocHost_v2(void **out, size_t bytes)
{
    return allocate_now(FC_cuMemAllocHost_v2, (uint64_t *)out, bytes, HOST_OWNED);
}

/* Waits for the device, as the driver does: nobody may still use the memory. */
static CUresult free_now(int api, uint64_t address, bool host)
{
    ENTER_CTX(api);
    if (address == 0)
        return fc_leave(CUDA_SUCCESS);
    UNSAFE_IN_CAPTURE();
    const struct range *r = find(address, 0);
    bool known = r && r->base == address &&
                 (host ? r->kind == HOST_OWNED : r->kind == DEVICE || r->kind == MANAGED);
    if (!known)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    enum range_kind kind = r->kind;
    fc_log(fc_symbol(api), NULL, address, -1, 0);
    fc_wait_device(r->device);
    return fc_leave(release(address, kind) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult fc_cuMemFree_v2(CUdeviceptr address) { return free_now(FC_cuMemFree_v2, address, false); }
CUresult fc_cuMemFreeHost(void *p) { return free_now(FC_cuMemFreeHost, (uint64_t)p, true); }

static CUresult do_cuMemAllocAsync(int api, CUstream s, CUdeviceptr *out, size_t bytes)
{
    ENTER_CTX(api);
    int i = fc_stream_arg(s);
    if (i < 0)
        return fc_leave(CUDA_ERROR_INVALID_HANDLE);
    uint64_t address = 0;
    CUresult r = allocate(bytes, DEVICE, out ? &address : NULL);
    if (r != CUDA_SUCCESS)
        return fc_leave(r);
    struct fc_work w = FC_WORK(api, CU_NODE_MEM_ALLOC, FC_OP_EFFECT);
    w.id = bytes;
    r = fc_submit(s, &w, NULL, NULL);
    if (r != CUDA_SUCCESS)
        release(address, DEVICE);
    else
        *out = address;
    return fc_leave(r);
}
BOTH(cuMemAllocAsync, (CUdeviceptr * out, size_t bytes, CUstream s), out, bytes)

static CUresult do_cuMemAllocFromPoolAsync(int api, CUstream s, CUdeviceptr *out, size_t bytes)
{
    return do_cuMemAllocAsync(api, s, out, bytes);
}
BOTH(cuMemAllocFromPoolAsync, (CUdeviceptr * out, size_t bytes, CUmemoryPool pool __attribute__((unused)), CUstream s),
     out, bytes)

static CUresult do_cuMemFreeAsync(int api, CUstream s, CUdeviceptr address)
{
    ENTER_CTX(api);
    const struct range *r = find(address, 0);
    if (fc_stream_arg(s) < 0)
        return fc_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!r || r->base != address || r->kind != DEVICE)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    struct fc_work w = FC_WORK(api, CU_NODE_MEM_FREE, FC_OP_EFFECT);
    w.id = address;
    w.fx = (struct fc_fx){.kind = FC_FX_FREE, .dst = address};
    return fc_leave(fc_submit(s, &w, NULL, NULL));
}
BOTH(cuMemFreeAsync, (CUdeviceptr address, CUstream s), address)

CUresult fc_cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER_CTX(FC_cuMemGetInfo_v2);
    *total = fc_memory_bytes();
    *free_bytes = *total - fc_world->mem_used[fc_current()->device];
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    ENTER_CTX(FC_cuMemGetAddressRange_v2);
    const struct range *r = find(address, 0);
    if (!r)
        return fc_leave(CUDA_ERROR_NOT_FOUND);
    if (base)
        *base = r->base;
    if (bytes)
        *bytes = r->bytes;
    return fc_leave(CUDA_SUCCESS);
}

static CUresult pointer_attribute(void *data, int attribute, uint64_t address)
{
    const struct range *r = find(address, 0);
    bool host = r && (r->kind == HOST_OWNED || r->kind == HOST_REGISTERED);
    if (!r)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case 1: /* context */
        *(void **)data = fc_primary(r->device, false)->handle;
        return CUDA_SUCCESS;
    case 2: /* memory type */
        *(unsigned *)data = host ? CU_MEMTYPE_HOST : CU_MEMTYPE_DEVICE;
        return CUDA_SUCCESS;
    case 3: /* device pointer */
    case 4: /* host pointer */
        if (attribute == 4 && r->kind == DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        *(uint64_t *)data = address;
        return CUDA_SUCCESS;
    case 7: /* buffer id */
        *(uint64_t *)data = r->base;
        return CUDA_SUCCESS;
    case 8: /* is managed */
        *(unsigned *)data = r->kind == MANAGED;
        return CUDA_SUCCESS;
    case 9: /* device ordinal */
        *(int *)data = r->device;
        return CUDA_SUCCESS;
    case 11: /* range start */
        *(uint64_t *)data = r->base;
        return CUDA_SUCCESS;
    case 12: /* range size */
        *(size_t *)data = r->bytes;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult fc_cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
    ENTER_LOCKED(FC_cuPointerGetAttribute);
    return fc_leave(data ? pointer_attribute(data, attribute, address) : CUDA_ERROR_INVALID_VALUE);
}

/* Unknown memory is no error here: zeros. */
CUresult fc_cuPointerGetAttributes(unsigned int n, const int *attributes, void **data, CUdeviceptr address)
{
    ENTER_LOCKED(FC_cuPointerGetAttributes);
    for (unsigned i = 0; i < n; i++) {
        bool narrow = attributes[i] == 2 || attributes[i] == 8 || attributes[i] == 9;
        if (pointer_attribute(data[i], attributes[i], address) != CUDA_SUCCESS)
            memset(data[i], attributes[i] == 9 ? 0xff : 0, narrow ? 4 : 8);
    }
    return fc_leave(CUDA_SUCCESS);
}

/* ---- registered host memory ---- */

CUresult fc_cuMemHostRegister_v2(void *p, size_t bytes, unsigned int flags)
{
    (void)flags;
    ENTER_CTX(FC_cuMemHostRegister_v2);
    UNSAFE_IN_CAPTURE();
    if (!p || !bytes)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    for (const struct range *r = ranges; r; r = r->next)
        if ((uint64_t)p < r->base + r->bytes && r->base < (uint64_t)p + bytes)
            return fc_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    add((uint64_t)p, bytes, HOST_REGISTERED, fc_current()->device);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuMemHostUnregister(void *p)
{
    ENTER_CTX(FC_cuMemHostUnregister);
    UNSAFE_IN_CAPTURE();
    struct range *r = find((uint64_t)p, 0), gone;
    if (!r || r->base != (uint64_t)p || r->kind != HOST_REGISTERED)
        return fc_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    fc_wait_device(r->device);
    return fc_leave(take_out((uint64_t)p, HOST_REGISTERED, &gone) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult fc_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
    (void)flags;
    ENTER_CTX(FC_cuMemHostGetDevicePointer_v2);
    const struct range *r = find((uint64_t)p, 0);
    if (!out || !r || (r->kind != HOST_OWNED && r->kind != HOST_REGISTERED))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    *out = (CUdeviceptr)p;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuMemHostGetFlags(unsigned int *out, void *p)
{
    ENTER_CTX(FC_cuMemHostGetFlags);
    if (!out || !find((uint64_t)p, 0))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    *out = 3;
    return fc_leave(CUDA_SUCCESS);
}

/* ---- virtual memory: one mapping of one handle ---- */

static struct {
    size_t bytes;
    int device;
} physical[4096];

CUresult fc_cuMemCreate(unsigned long long *out, size_t bytes, const void *prop, unsigned long long flags)
{
    (void)prop, (void)flags;
    ENTER_CTX(FC_cuMemCreate);
    UNSAFE_IN_CAPTURE();
    int d = fc_current()->device;
    if (!out || !bytes || bytes % (2 << 20))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    if (bytes > fc_memory_bytes() || fc_world->mem_used[d] > fc_memory_bytes() - bytes)
        return fc_leave(CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0; i < sizeof physical / sizeof physical[0]; i++) {
        if (physical[i].bytes)
            continue;
        physical[i].bytes = bytes;
        physical[i].device = d;
        fc_world->mem_used[d] += bytes;
        *out = i + 1;
        fc_log("cuMemCreate", NULL, bytes, -1, 0);
        return fc_leave(CUDA_SUCCESS);
    }
    return fc_leave(CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult fc_cuMemRelease(unsigned long long handle)
{
    ENTER_LOCKED(FC_cuMemRelease);
    UNSAFE_IN_CAPTURE();
    if (handle == 0 || handle > sizeof physical / sizeof physical[0] || !physical[handle - 1].bytes)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    fc_world->mem_used[physical[handle - 1].device] -= physical[handle - 1].bytes;
    physical[handle - 1].bytes = 0;
    fc_log("cuMemRelease", NULL, handle, -1, 0);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuMemGetAllocationGranularity(size_t *out, const void *prop, int option)
{
    (void)prop, (void)option;
    ENTER(FC_cuMemGetAllocationGranularity);
    *out = 2 << 20;
    return CUDA_SUCCESS;
}

CUresult fc_cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags)
{
    (void)alignment, (void)at, (void)flags;
    ENTER_LOCKED(FC_cuMemAddressReserve);
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!out || p == MAP_FAILED)
        return fc_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *out = (CUdeviceptr)p;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    ENTER_LOCKED(FC_cuMemAddressFree);
    return fc_leave(munmap((void *)at, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult fc_cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags)
{
    (void)offset, (void)flags;
    ENTER_LOCKED(FC_cuMemMap);
    if (handle == 0 || handle > sizeof physical / sizeof physical[0] || !physical[handle - 1].bytes)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    add(at, bytes, MAPPED, physical[handle - 1].device);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    ENTER_LOCKED(FC_cuMemUnmap);
    UNSAFE_IN_CAPTURE();
    struct range r;
    if (!take_out(at, MAPPED, &r))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    mprotect((void *)at, bytes, PROT_NONE);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuMemSetAccess(CUdeviceptr at, size_t bytes, const void *desc, size_t count)
{
    (void)desc, (void)count;
    ENTER_LOCKED(FC_cuMemSetAccess);
    return fc_leave(mprotect((void *)at, bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* ---- arrays: as much as the array copies need ---- */

struct array {
    char *data;
    size_t pitch, height;
};

CUresult fc_cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
    ENTER_CTX(FC_cuArrayCreate_v2);
    UNSAFE_IN_CAPTURE();
    if (!out || !d || !d->Width)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    struct array *a = malloc(sizeof *a);
    a->height = d->Height ? d->Height : 1;
    a->pitch = d->Width * d->NumChannels * 4; /* the widest format: 4 bytes a channel */
    a->data = calloc(a->height, a->pitch);
    *out = fc_add(FC_K_ARRAY, a);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuArrayDestroy(CUarray h)
{
    ENTER_CTX(FC_cuArrayDestroy);
    struct array *a = fc_get(FC_K_ARRAY, h);
    if (!a)
        return fc_leave(CUDA_ERROR_INVALID_HANDLE);
    fc_wait_device(fc_current()->device);
    fc_del(FC_K_ARRAY, h);
    free(a->data);
    free(a);
    return fc_leave(CUDA_SUCCESS);
}

/* ---- copies ---- */

/* 25 GB/s and a microsecond. */
static uint64_t copy_ns(size_t bytes) { return 1000 + bytes / 25; }

struct side {
    uint64_t address;
    bool host; /* the caller says that it is host memory, or (unified) does not say */
};

static size_t extent(size_t width, size_t height, size_t depth, size_t pitch, size_t slice)
{
    return width == 0 || height == 0 || depth == 0 ? 0 : (depth - 1) * slice + (height - 1) * pitch + width;
}

/* Locked. A pageable source is read at the call, and a pageable destination is written before it returns. */
static CUresult copy(int api, CUstream s, struct side dst, struct side src, struct fc_fx fx, bool blocking)
{
    int si = fc_stream_arg(s);
    if (si < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    fx.kind = FC_FX_COPY;
    fx.dst = dst.address;
    fx.src = src.address;
    size_t to = extent(fx.width, fx.height, fx.depth, fx.dst_pitch, fx.dst_slice);
    size_t from = extent(fx.width, fx.height, fx.depth, fx.src_pitch, fx.src_slice);
    if (to == 0)
        return CUDA_SUCCESS;
    bool dst_known = fc_device_range(fx.dst, to), src_known = fc_device_range(fx.src, from);
    if ((!dst.host && !dst_known) || (!src.host && !src_known) || !fx.dst || !fx.src)
        return CUDA_ERROR_INVALID_VALUE;
    bool captures = fc_capture_status(si) != CU_CAPTURE_STATUS_NONE;
    if (blocking && captures)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!src_known && !captures) {
        fx.staging = malloc(from);
        if (!fx.staging)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(fx.staging, (void *)fx.src, from);
    }
    struct fc_work w = FC_WORK(api, CU_NODE_MEMCPY, FC_OP_COPY);
    w.id = fx.width * fx.height * fx.depth;
    w.dur_ns = copy_ns(w.id);
    w.fx = fx;
    uint64_t pos;
    int stream;
    CUresult r = fc_submit(s, &w, &pos, &stream);
    if (r != CUDA_SUCCESS)
        free(fx.staging);
    else if (!captures && (blocking || !dst_known))
        fc_wait_pos(stream, pos);
    return r;
}

static struct fc_fx line(size_t bytes) { return (struct fc_fx){.width = bytes, .height = 1, .depth = 1}; }

static CUresult copy_line(int api, CUstream s, uint64_t dst, bool dst_host, uint64_t src, bool src_host, size_t bytes)
{
    ENTER_CTX(api);
    return fc_leave(copy(api, s, (struct side){dst, dst_host}, (struct side){src, src_host}, line(bytes), false));
}

static CUresult do_cuMemcpyAsync(int api, CUstream s, CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return copy_line(api, s, dst, true, src, true, n);
}
BOTH(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s), dst, src, n)

static CUresult do_cuMemcpyHtoDAsync_v2(int api, CUstream s, CUdeviceptr dst, const void *src, size_t n)
{
    return copy_line(api, s, dst, false, (uint64_t)src, true, n);
}
BOTH(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t n, CUstream s), dst, src, n)

static CUresult do_cuMemcpyDtoHAsync_v2(int api, CUstream s, void *dst, CUdeviceptr src, size_t n)
{
    return copy_line(api, s, (uint64_t)dst, true, src, false, n);
}
BOTH(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t n, CUstream s), dst, src, n)

static CUresult do_cuMemcpyDtoDAsync_v2(int api, CUstream s, CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return copy_line(api, s, dst, false, src, false, n);
}
BOTH(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s), dst, src, n)

static CUresult do_cuMemcpyPeerAsync(int api, CUstream s, CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return copy_line(api, s, dst, false, src, false, n);
}
BOTH(cuMemcpyPeerAsync,
     (CUdeviceptr dst, CUcontext dc __attribute__((unused)), CUdeviceptr src, CUcontext sc __attribute__((unused)),
      size_t n, CUstream s),
     dst, src, n)

static CUresult array_line(int api, CUstream s, CUarray h, size_t offset, void *host, size_t n, bool to_array)
{
    ENTER_CTX(api);
    const struct array *a = fc_get(FC_K_ARRAY, h);
    if (!a)
        return fc_leave(CUDA_ERROR_INVALID_HANDLE);
    if (offset > a->pitch || n > a->pitch - offset)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    struct side inside = {(uint64_t)a->data + offset, true}, outside = {(uint64_t)host, true};
    return fc_leave(copy(api, s, to_array ? inside : outside, to_array ? outside : inside, line(n), false));
}

static CUresult do_cuMemcpyHtoAAsync_v2(int api, CUstream s, CUarray a, size_t offset, const void *src, size_t n)
{
    return array_line(api, s, a, offset, (void *)src, n, true);
}
BOTH(cuMemcpyHtoAAsync_v2, (CUarray a, size_t offset, const void *src, size_t n, CUstream s), a, offset, src, n)

static CUresult do_cuMemcpyAtoHAsync_v2(int api, CUstream s, void *dst, CUarray a, size_t offset, size_t n)
{
    return array_line(api, s, a, offset, dst, n, false);
}
BOTH(cuMemcpyAtoHAsync_v2, (void *dst, CUarray a, size_t offset, size_t n, CUstream s), dst, a, offset, n)

/* Address of one side of a 2D or 3D copy: 0 if its description makes no sense. */
static struct side side_of(unsigned type, const void *host, uint64_t device, CUarray h, size_t x, size_t row,
                           size_t *pitch)
{
    struct side s = {0, type != CU_MEMTYPE_DEVICE};
    const struct array *a = type == CU_MEMTYPE_ARRAY ? fc_get(FC_K_ARRAY, h) : NULL;
    if (type == CU_MEMTYPE_HOST)
        s.address = (uint64_t)host;
    else if (type == CU_MEMTYPE_DEVICE || type == CU_MEMTYPE_UNIFIED)
        s.address = device;
    else if (a)
        s.address = (uint64_t)a->data, *pitch = a->pitch;
    if (s.address)
        s.address += row * *pitch + x;
    return s;
}

static CUresult copy_box(int api, CUstream s, const CUDA_MEMCPY3D *c)
{
    ENTER_CTX(api);
    if (!c)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    struct fc_fx fx = {.width = c->WidthInBytes, .height = c->Height, .depth = c->Depth};
    fx.src_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes;
    fx.dst_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes;
    size_t src_rows = c->srcHeight ? c->srcHeight : c->Height, dst_rows = c->dstHeight ? c->dstHeight : c->Height;
    struct side src = side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes,
                              c->srcY + c->srcZ * src_rows, &fx.src_pitch);
    struct side dst = side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes,
                              c->dstY + c->dstZ * dst_rows, &fx.dst_pitch);
    fx.src_slice = fx.src_pitch * src_rows;
    fx.dst_slice = fx.dst_pitch * dst_rows;
    return fc_leave(copy(api, s, dst, src, fx, false));
}

static CUresult do_cuMemcpy2DAsync_v2(int api, CUstream s, const CUDA_MEMCPY2D *c)
{
    if (!c)
        return copy_box(api, s, NULL);
    CUDA_MEMCPY3D box = {
        .srcXInBytes = c->srcXInBytes, .srcY = c->srcY, .srcMemoryType = c->srcMemoryType, .srcHost = c->srcHost,
        .srcDevice = c->srcDevice, .srcArray = c->srcArray, .srcPitch = c->srcPitch, .dstXInBytes = c->dstXInBytes,
        .dstY = c->dstY, .dstMemoryType = c->dstMemoryType, .dstHost = c->dstHost, .dstDevice = c->dstDevice,
        .dstArray = c->dstArray, .dstPitch = c->dstPitch, .WidthInBytes = c->WidthInBytes, .Height = c->Height,
        .Depth = 1,
    };
    return copy_box(api, s, &box);
}
BOTH(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *c, CUstream s), c)

static CUresult do_cuMemcpy3DAsync_v2(int api, CUstream s, const CUDA_MEMCPY3D *c) { return copy_box(api, s, c); }
BOTH(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *c, CUstream s), c)
static CUresult do_cuMemcpy3DPeerAsync(int api, CUstream s, const CUDA_MEMCPY3D *c) { return copy_box(api, s, c); }
BOTH(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D *c, CUstream s), c)

static CUresult copy_batch(int api, CUstream s, const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes,
                           size_t count, size_t *fail)
{
    ENTER_CTX(api);
    if (fail)
        *fail = SIZE_MAX;
    if (!count || !dsts || !srcs || !sizes || s == NULL || s == CU_STREAM_LEGACY)
        return fc_leave(CUDA_ERROR_INVALID_VALUE); /* the default stream is refused, as documented */
    for (size_t i = 0; i < count; i++) {
        CUresult r = copy(api, s, (struct side){dsts[i], true}, (struct side){srcs[i], true}, line(sizes[i]), false);
        if (r != CUDA_SUCCESS) {
            if (fail)
                *fail = i;
            return fc_leave(r);
        }
    }
    return fc_leave(CUDA_SUCCESS);
}

static CUresult do_cuMemcpyBatchAsync(int api, CUstream s, CUdeviceptr *d, CUdeviceptr *f, size_t *n, size_t count,
                                      size_t *fail)
{
    return copy_batch(api, s, d, f, n, count, fail);
}
BOTH(cuMemcpyBatchAsync,
     (CUdeviceptr * d, CUdeviceptr *f, size_t *n, size_t count, void *attrs __attribute__((unused)),
      size_t *at __attribute__((unused)), size_t n_attrs __attribute__((unused)), size_t *fail, CUstream s),
     d, f, n, count, fail)

static CUresult do_cuMemcpyBatchAsync_v2(int api, CUstream s, CUdeviceptr *d, CUdeviceptr *f, size_t *n, size_t count)
{
    return copy_batch(api, s, d, f, n, count, NULL);
}
BOTH(cuMemcpyBatchAsync_v2,
     (CUdeviceptr * d, CUdeviceptr *f, size_t *n, size_t count, void *attrs __attribute__((unused)),
      size_t *at __attribute__((unused)), size_t n_attrs __attribute__((unused)), CUstream s),
     d, f, n, count)

/* The synchronous forms: on the default stream, done when they return. */
static CUresult copy_sync(int api, CUstream s, uint64_t dst, bool dst_host, uint64_t src, bool src_host, size_t n)
{
    ENTER_CTX(api);
    UNSAFE_IN_CAPTURE();
    return fc_leave(copy(api, s, (struct side){dst, dst_host}, (struct side){src, src_host}, line(n), true));
}

CUresult fc_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return copy_sync(FC_cuMemcpy, NULL, dst, true, src, true, n);
}
CUresult fc_cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n)
{
    return copy_sync(FC_cuMemcpyHtoD_v2, NULL, dst, false, (uint64_t)src, true, n);
}
CUresult fc_cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n)
{
    return copy_sync(FC_cuMemcpyDtoH_v2, NULL, (uint64_t)dst, true, src, false, n);
}
CUresult fc_cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return copy_sync(FC_cuMemcpyDtoD_v2, NULL, dst, false, src, false, n);
}

/* ---- fills: kernels on the GPU, 2 TB/s and a microsecond ---- */

static CUresult fill(int api, CUstream s, uint64_t dst, size_t pitch, unsigned elem, uint64_t value, size_t width,
                     size_t height, bool blocking)
{
    ENTER_CTX(api);
    if (blocking)
        UNSAFE_IN_CAPTURE();
    if (fc_stream_arg(s) < 0)
        return fc_leave(CUDA_ERROR_INVALID_HANDLE);
    size_t row = width * elem, span = extent(row, height, 1, pitch, 0);
    if (span == 0)
        return fc_leave(CUDA_SUCCESS);
    if (!fc_device_range(dst, span) || dst % elem || (height > 1 && pitch < row))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    struct fc_work w = FC_WORK(api, CU_NODE_MEMSET, FC_OP_KERNEL);
    w.id = row * height;
    w.dur_ns = 1000 + w.id / 2000;
    w.fx = (struct fc_fx){.kind = FC_FX_FILL, .dst = dst, .width = row, .height = height, .dst_pitch = pitch,
                          .value = value, .elem = elem};
    uint64_t pos;
    int stream;
    CUresult r = fc_submit(s, &w, &pos, &stream);
    if (r == CUDA_SUCCESS && blocking)
        fc_wait_pos(stream, pos);
    return fc_leave(r);
}

#define FILL(bits, type)                                                                                               \
    static CUresult do_cuMemsetD##bits##Async(int api, CUstream s, CUdeviceptr dst, type v, size_t n)                  \
    {                                                                                                                  \
        return fill(api, s, dst, 0, bits / 8, v, n, 1, false);                                                         \
    }                                                                                                                  \
    BOTH(cuMemsetD##bits##Async, (CUdeviceptr dst, type v, size_t n, CUstream s), dst, v, n)                           \
    static CUresult do_cuMemsetD2D##bits##Async(int api, CUstream s, CUdeviceptr dst, size_t pitch, type v, size_t w,  \
                                                size_t h)                                                              \
    {                                                                                                                  \
        return fill(api, s, dst, pitch, bits / 8, v, w, h, false);                                                     \
    }                                                                                                                  \
    BOTH(cuMemsetD2D##bits##Async, (CUdeviceptr dst, size_t pitch, type v, size_t w, size_t h, CUstream s), dst,       \
         pitch, v, w, h)                                                                                               \
    FC_HIDDEN CUresult fc_cuMemsetD##bits##_v2(CUdeviceptr dst, type v, size_t n)                                      \
    {                                                                                                                  \
        return fill(FC_cuMemsetD##bits##_v2, NULL, dst, 0, bits / 8, v, n, 1, true);                                   \
    }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)

/* ---- stream writes and waits ---- */

static CUresult mem_op(CUstream s, struct fc_work *w, unsigned op, uint64_t address, uint64_t value, unsigned flags)
{
    bool wide = op == CU_MEM_OP_WAIT_64 || op == CU_MEM_OP_WRITE_64;
    if (fc_stream_arg(s) < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (op == CU_MEM_OP_FLUSH || op == CU_MEM_OP_BARRIER)
        return CUDA_SUCCESS;
    if (!fc_device_range(address, wide ? 8 : 4) || address % (wide ? 8 : 4))
        return CUDA_ERROR_INVALID_VALUE;
    w->node_type = CU_NODE_BATCH_MEM_OP;
    w->id = address;
    if (op == CU_MEM_OP_WRITE_32 || op == CU_MEM_OP_WRITE_64) {
        w->kind = FC_OP_EFFECT;
        w->fx = (struct fc_fx){.kind = FC_FX_WRITE, .dst = address, .value = value, .elem = wide ? 8 : 4};
    } else if (op == CU_MEM_OP_WAIT_32 || op == CU_MEM_OP_WAIT_64) {
        w->kind = FC_OP_WAIT_VALUE;
        w->addr = address;
        w->value = value;
        w->wait_flags = (flags & 3) | (wide ? 0x80000000u : 0);
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return fc_submit(s, w, NULL, NULL);
}

static CUresult one_mem_op(int api, CUstream s, unsigned op, CUdeviceptr address, uint64_t value, unsigned flags)
{
    ENTER_CTX(api);
    struct fc_work w = FC_WORK(api, CU_NODE_BATCH_MEM_OP, FC_OP_EFFECT);
    return fc_leave(mem_op(s, &w, op, address, value, flags));
}

#define MEM_OP(name, op, type)                                                                                         \
    static CUresult do_##name(int api, CUstream s, CUdeviceptr a, type v, unsigned int flags)                          \
    {                                                                                                                  \
        return one_mem_op(api, s, op, a, v, flags);                                                                    \
    }                                                                                                                  \
    BOTH(name, (CUstream s, CUdeviceptr a, type v, unsigned int flags), a, v, flags)
MEM_OP(cuStreamWriteValue32_v2, CU_MEM_OP_WRITE_32, uint32_t)
MEM_OP(cuStreamWriteValue64_v2, CU_MEM_OP_WRITE_64, uint64_t)
MEM_OP(cuStreamWaitValue32_v2, CU_MEM_OP_WAIT_32, uint32_t)
MEM_OP(cuStreamWaitValue64_v2, CU_MEM_OP_WAIT_64, uint64_t)

static CUresult do_cuStreamBatchMemOp_v2(int api, CUstream s, unsigned int n, CUstreamBatchMemOpParams *p)
{
    ENTER_CTX(api);
    CUresult r = n && p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n && r == CUDA_SUCCESS; i++) {
        struct fc_work w = FC_WORK(api, CU_NODE_BATCH_MEM_OP, FC_OP_EFFECT);
        bool wide = p[i].operation == CU_MEM_OP_WAIT_64 || p[i].operation == CU_MEM_OP_WRITE_64;
        r = mem_op(s, &w, p[i].operation, p[i].mem.address, wide ? p[i].mem.value : (uint32_t)p[i].mem.value,
                   p[i].mem.flags);
    }
    return fc_leave(r);
}
BOTH(cuStreamBatchMemOp_v2,
     (CUstream s, unsigned int n, CUstreamBatchMemOpParams *p, unsigned int flags __attribute__((unused))), n, p)
