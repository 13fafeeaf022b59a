/* Green contexts: partitions of a device's SMs. The step is 8, the least is 8, as on compute capability 9.0. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { STEP = 8 };

/* Where a resource comes from: kept in the bytes of CUdevResource that belong to the driver. */
struct origin {
    uint32_t magic;
    int32_t device, lo, hi;
};

enum { ORIGIN_MAGIC = 0x46435253 };

struct desc {
    int device, lo, hi;
};

struct green {
    void *handle;
    struct fc_context *context;
};

static void describe(CUdevResource *r, int device, int lo, int hi)
{
    struct origin o = {ORIGIN_MAGIC, device, lo, hi};
    memset(r, 0, sizeof *r);
    r->type = CU_RESOURCE_SM;
    memcpy(r->internal, &o, sizeof o);
    r->sm.smCount = (unsigned)(hi - lo);
    r->sm.minSmPartitionSize = STEP;
    r->sm.smCoscheduledAlignment = STEP;
}

static bool origin_of(const CUdevResource *r, struct origin *o)
{
    if (!r || r->type != CU_RESOURCE_SM)
        return false;
    memcpy(o, r->internal, sizeof *o);
    return o->magic == ORIGIN_MAGIC;
}

CUresult fc_cuDeviceGetDevResource(CUdevice d, CUdevResource *out, unsigned type)
{
    ENTER(FC_cuDeviceGetDevResource);
    if (d < 0 || d >= fc_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_RESOURCE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    describe(out, d, 0, FC_SMS);
    return CUDA_SUCCESS;
}

static CUresult of_context(const struct fc_context *c, CUdevResource *out, unsigned type)
{
    if (!c)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_RESOURCE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    describe(out, c->device, c->sm_lo, c->sm_hi);
    return CUDA_SUCCESS;
}

CUresult fc_cuCtxGetDevResource(CUcontext h, CUdevResource *out, unsigned type)
{
    ENTER_LOCKED(FC_cuCtxGetDevResource);
    return fc_leave(of_context(h ? fc_get(FC_K_CTX, h) : fc_current(), out, type));
}

CUresult fc_cuGreenCtxGetDevResource(CUgreenCtx h, CUdevResource *out, unsigned type)
{
    ENTER_LOCKED(FC_cuGreenCtxGetDevResource);
    const struct green *g = fc_get(FC_K_GREEN, h);
    return fc_leave(of_context(g ? g->context : NULL, out, type));
}

/* result NULL: asks how many groups there can be. Groups of up to 60 SMs leave 12 of the 132 over, as measured for
 * groups of 8 on an H200 (15 groups). */
CUresult fc_cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input,
                                        CUdevResource *remaining, unsigned flags, unsigned least)
{
    (void)flags;
    ENTER(FC_cuDevSmResourceSplitByCount);
    struct origin o;
    if (!groups || !origin_of(input, &o))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned have = (unsigned)(o.hi - o.lo), size = least < STEP ? STEP : (least + STEP - 1) / STEP * STEP;
    unsigned usable = have == FC_SMS && size <= 60 ? have - 12 : have;
    if (size > have)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned can = usable / size, n = result && *groups < can ? *groups : can;
    if (result && n == 0)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    for (unsigned i = 0; result && i < n; i++)
        describe(&result[i], o.device, o.lo + (int)(i * size), o.lo + (int)((i + 1) * size));
    if (remaining) {
        describe(remaining, o.device, o.lo + (int)(n * size), o.hi);
        if (remaining->sm.smCount == 0)
            remaining->type = 0;
    }
    *groups = n;
    return CUDA_SUCCESS;
}

CUresult fc_cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned n)
{
    ENTER_LOCKED(FC_cuDevResourceGenerateDesc);
    struct origin first, o;
    if (!out || !resources || n == 0 || !origin_of(&resources[0], &first))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    int hi = first.hi;
    for (unsigned i = 1; i < n; i++) { /* the double knows partitions of adjacent SMs only */
        if (!origin_of(&resources[i], &o) || o.device != first.device || o.lo != hi)
            return fc_leave(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        hi = o.hi;
    }
    struct desc *d = malloc(sizeof *d);
    *d = (struct desc){first.device, first.lo, hi};
    *out = fc_add(FC_K_DESC, d);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc dh, CUdevice device, unsigned flags)
{
    ENTER_LOCKED(FC_cuGreenCtxCreate);
    const struct desc *d = fc_get(FC_K_DESC, dh);
    if (device < 0 || device >= fc_devices)
        return fc_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!out || !d || d->device != device || flags != 1) /* CU_GREEN_CTX_DEFAULT_STREAM is required */
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    fc_primary(device, true);
    struct green *g = calloc(1, sizeof *g);
    g->context = fc_context_new(device);
    g->context->sm_lo = d->lo;
    g->context->sm_hi = d->hi;
    g->handle = g->context->green = *out = fc_add(FC_K_GREEN, g);
    fc_log("cuGreenCtxCreate", NULL, (uint64_t)(d->hi - d->lo), -1, 0);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGreenCtxDestroy(CUgreenCtx h)
{
    ENTER_LOCKED(FC_cuGreenCtxDestroy);
    struct green *g = fc_get(FC_K_GREEN, h);
    if (!g)
        return fc_leave(CUDA_ERROR_INVALID_CONTEXT);
    fc_context_kill(g->context);
    struct fc_context *p = fc_primary(g->context->device, false);
    if (p->retained && --p->retained == 0)
        fc_context_kill(p);
    fc_del(FC_K_GREEN, h);
    free(g);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx h)
{
    ENTER_LOCKED(FC_cuCtxFromGreenCtx);
    const struct green *g = fc_get(FC_K_GREEN, h);
    if (!g || !out)
        return fc_leave(g ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
    *out = g->context->handle;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx h, unsigned flags, int priority)
{
    ENTER_LOCKED(FC_cuGreenCtxStreamCreate);
    const struct green *g = fc_get(FC_K_GREEN, h);
    if (!g)
        return fc_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!out || flags != CU_STREAM_NON_BLOCKING)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    int i = fc_stream_in(g->context, flags, priority);
    if (i < 0)
        return fc_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *out = (CUstream)fc_stream_handle(i);
    fc_log("cuGreenCtxStreamCreate", NULL, 0, i, 0);
    return fc_leave(CUDA_SUCCESS);
}
