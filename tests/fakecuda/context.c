/* Devices, contexts, streams, events. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { PRIORITY_LEAST = 0, PRIORITY_GREATEST = -5, STACK = 32, THREAD_STREAMS = 16 };

static struct fc_context* primary[FC_MAX_DEVICES];

struct thread_state {
  struct fc_context* stack[STACK];
  int depth;
  struct {
    struct fc_context* context;
    int stream;
  } own[THREAD_STREAMS]; /* per-thread default streams */
  int owned;
  bool registered;
};

static __thread struct thread_state thread_state;
static pthread_key_t thread_key;
static pthread_once_t thread_key_once = PTHREAD_ONCE_INIT;

static void thread_ends(void* p) {
  struct thread_state* t = p;
  if (!fc_usable()) return;
  fc_lock();
  for (int i = 0; i < t->owned; i++) fc_stream_close(t->own[i].stream);
  t->owned = 0;
  fc_unlock();
}

static void make_thread_key(void) { pthread_key_create(&thread_key, thread_ends); }

/* ---- contexts ---- */

struct fc_context* fc_current(void) {
  struct fc_context* c = thread_state.depth ? thread_state.stack[thread_state.depth - 1] : NULL;
  return c && c->alive ? c : NULL;
}

struct fc_context* fc_context_new(int device) {
  struct fc_context* c = calloc(1, sizeof *c);
  *c = (struct fc_context){.device = device, .legacy = -1, .sm_hi = FC_SMS, .alive = true};
  c->handle = fc_add(FC_K_CTX, c);
  return c;
}

struct fc_context* fc_primary(int device, bool retain) {
  struct fc_context* c = primary[device];
  if (c == NULL) {
    c = primary[device] = fc_context_new(device);
    c->primary = true;
    c->alive = false;
  }
  if (retain) {
    c->retained++;
    c->alive = true;
  }
  return c;
}

void fc_context_kill(struct fc_context* c) {
  fc_wait_ctx((uint64_t)c->handle);
  for (int i = 0; i < FC_MAX_STREAMS; i++) {
    const struct fc_stream* s = &fc_world->streams[i];
    if (s->in_use && s->owner == fc_me && s->ctx == (uint64_t)c->handle) {
      fc_capture_invalidate_stream(i);
      fc_stream_close(i);
    }
  }
  for (int i = 0; i < FC_MAX_EVENTS; i++) {
    struct fc_event* e = &fc_world->events[i];
    if (e->in_use && e->owner == fc_me && e->ctx == (uint64_t)c->handle) {
      fc_event_uncapture(i);
      e->in_use = 0;
    }
  }
  c->legacy = -1;
  c->alive = false;
  c->retained = 0;
  if (!c->primary) fc_del(FC_K_CTX, c->handle); /* the object stays: other threads' stacks may point at it */
}

static bool is_device(CUdevice d) { return d >= 0 && d < fc_devices; }

CUresult fc_cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice d) {
  ENTER_LOCKED(FC_cuDevicePrimaryCtxRetain);
  if (!is_device(d)) return fc_leave(CUDA_ERROR_INVALID_DEVICE);
  if (!out) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  *out = fc_primary(d, true)->handle;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuDevicePrimaryCtxRelease_v2(CUdevice d) {
  ENTER_LOCKED(FC_cuDevicePrimaryCtxRelease_v2);
  if (!is_device(d)) return fc_leave(CUDA_ERROR_INVALID_DEVICE);
  struct fc_context* c = fc_primary(d, false);
  if (c->retained == 0) return fc_leave(CUDA_ERROR_INVALID_CONTEXT);
  if (--c->retained == 0) fc_context_kill(c);
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuDevicePrimaryCtxReset_v2(CUdevice d) {
  ENTER_LOCKED(FC_cuDevicePrimaryCtxReset_v2);
  if (!is_device(d)) return fc_leave(CUDA_ERROR_INVALID_DEVICE);
  fc_context_kill(fc_primary(d, false));
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuDevicePrimaryCtxGetState(CUdevice d, unsigned int* flags, int* active) {
  ENTER_LOCKED(FC_cuDevicePrimaryCtxGetState);
  if (!is_device(d)) return fc_leave(CUDA_ERROR_INVALID_DEVICE);
  if (flags) *flags = fc_primary(d, false)->flags;
  if (active) *active = fc_primary(d, false)->alive;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned int flags) {
  ENTER_LOCKED(FC_cuDevicePrimaryCtxSetFlags_v2);
  if (!is_device(d)) return fc_leave(CUDA_ERROR_INVALID_DEVICE);
  fc_primary(d, false)->flags = flags;
  return fc_leave(CUDA_SUCCESS);
}

static CUresult create_context(int api, CUcontext* out, unsigned int flags, CUdevice d) {
  ENTER_LOCKED(api);
  if (!is_device(d)) return fc_leave(CUDA_ERROR_INVALID_DEVICE);
  if (!out || thread_state.depth == STACK) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  struct fc_context* c = fc_context_new(d);
  c->flags = flags;
  thread_state.stack[thread_state.depth++] = c;
  *out = c->handle;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxCreate_v2(CUcontext* out, unsigned int flags, CUdevice d) {
  return create_context(FC_cuCtxCreate_v2, out, flags, d);
}

CUresult fc_cuCtxCreate_v4(CUcontext* out, void* params, unsigned int flags, CUdevice d) {
  (void)params;
  return create_context(FC_cuCtxCreate_v4, out, flags, d);
}

CUresult fc_cuCtxDestroy_v2(CUcontext h) {
  ENTER_LOCKED(FC_cuCtxDestroy_v2);
  struct fc_context* c = fc_get(FC_K_CTX, h);
  if (!c || c->primary || c->green) return fc_leave(CUDA_ERROR_INVALID_CONTEXT);
  if (fc_current() == c) thread_state.depth--;
  fc_context_kill(c);
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxGetCurrent(CUcontext* out) {
  ENTER_LOCKED(FC_cuCtxGetCurrent);
  if (!out) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  *out = thread_state.depth ? thread_state.stack[thread_state.depth - 1]->handle : NULL;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxSetCurrent(CUcontext h) {
  ENTER_LOCKED(FC_cuCtxSetCurrent);
  struct fc_context* c = h ? fc_get(FC_K_CTX, h) : NULL;
  if (h && (!c || !c->alive)) return fc_leave(CUDA_ERROR_INVALID_CONTEXT);
  if (thread_state.depth > 0) thread_state.depth--;
  if (c) thread_state.stack[thread_state.depth++] = c;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxPushCurrent_v2(CUcontext h) {
  ENTER_LOCKED(FC_cuCtxPushCurrent_v2);
  struct fc_context* c = fc_get(FC_K_CTX, h);
  if (!c || !c->alive) return fc_leave(CUDA_ERROR_INVALID_CONTEXT);
  if (thread_state.depth == STACK) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  thread_state.stack[thread_state.depth++] = c;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxPopCurrent_v2(CUcontext* out) {
  ENTER_LOCKED(FC_cuCtxPopCurrent_v2);
  if (thread_state.depth == 0) return fc_leave(CUDA_ERROR_INVALID_CONTEXT);
  struct fc_context* c = thread_state.stack[--thread_state.depth];
  if (out) *out = c->handle;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxGetDevice(CUdevice* out) {
  ENTER_CTX(FC_cuCtxGetDevice);
  if (!out) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  *out = fc_current()->device;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxGetFlags(unsigned int* out) {
  ENTER_CTX(FC_cuCtxGetFlags);
  *out = fc_current()->flags;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxGetApiVersion(CUcontext h, unsigned int* out) {
  ENTER_LOCKED(FC_cuCtxGetApiVersion);
  if (h && !fc_get(FC_K_CTX, h)) return fc_leave(CUDA_ERROR_INVALID_CONTEXT);
  *out = 3020;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER_CTX(FC_cuCtxGetStreamPriorityRange);
  if (least) *least = PRIORITY_LEAST;
  if (greatest) *greatest = PRIORITY_GREATEST;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxSynchronize(void) {
  ENTER_CTX(FC_cuCtxSynchronize);
  UNSAFE_IN_CAPTURE();
  struct fc_context* c = fc_current();
  for (int i = 0; i < FC_MAX_STREAMS; i++) {
    const struct fc_stream* s = &fc_world->streams[i];
    if (s->in_use && s->owner == fc_me && s->ctx == (uint64_t)c->handle && fc_capture_status(i)) {
      fc_capture_invalidate_stream(i);
      return fc_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
  }
  fc_log("cuCtxSynchronize", NULL, 0, -1, 0);
  fc_wait_ctx((uint64_t)c->handle);
  return fc_leave(CUDA_SUCCESS);
}

/* A profiler's range: recorded, so that a test sees what was launched inside. */
static CUresult profiler(int api) {
  ENTER_CTX(api);
  fc_log(fc_symbol(api), NULL, 0, -1, 0);
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuProfilerStart(void) { return profiler(FC_cuProfilerStart); }
CUresult fc_cuProfilerStop(void) { return profiler(FC_cuProfilerStop); }

CUresult fc_cuCtxGetLimit(size_t* out, int limit) {
  (void)limit;
  ENTER_CTX(FC_cuCtxGetLimit);
  *out = 1024;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuCtxSetLimit(int limit, size_t value) {
  (void)limit, (void)value;
  ENTER_CTX(FC_cuCtxSetLimit);
  return fc_leave(CUDA_SUCCESS);
}

/* ---- devices ---- */

CUresult fc_cuInit(unsigned int flags) {
  CUresult r = fc_enter(FC_cuInit);
  if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_INITIALIZED) return r;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return fc_init();
}

CUresult fc_cuDriverGetVersion(int* version) {
  CUresult r = fc_enter(FC_cuDriverGetVersion);
  if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_INITIALIZED) return r;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult fc_cuDeviceGetCount(int* count) {
  ENTER(FC_cuDeviceGetCount);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = fc_devices;
  return CUDA_SUCCESS;
}

CUresult fc_cuDeviceGet(CUdevice* out, int ordinal) {
  ENTER(FC_cuDeviceGet);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *out = ordinal;
  return CUDA_SUCCESS;
}

CUresult fc_cuDeviceGetName(char* name, int len, CUdevice d) {
  ENTER(FC_cuDeviceGetName);
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, (size_t)len, "fakecuda H200");
  return CUDA_SUCCESS;
}

CUresult fc_cuDeviceGetUuid_v2(CUuuid* out, CUdevice d) {
  ENTER(FC_cuDeviceGetUuid_v2);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(out->bytes, "fakecuda", 8);
  const char* seed = getenv("FAKECUDA_UUID_SEED");
  uint32_t n = seed ? (uint32_t)strtoul(seed, NULL, 0) : 0;
  memcpy(out->bytes + 8, &n, 4);
  memcpy(out->bytes + 12, &(uint32_t){(uint32_t)d}, 4);
  return CUDA_SUCCESS;
}

CUresult fc_cuDeviceTotalMem_v2(size_t* out, CUdevice d) {
  ENTER(FC_cuDeviceTotalMem_v2);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE;
  *out = fc_memory_bytes();
  return CUDA_SUCCESS;
}

CUresult fc_cuDeviceGetAttribute(int* out, int attribute, CUdevice d) {
  /* CUdevice_attribute -> value, as an H200 has them where the double can keep the promise; others read 0. */
  static const int known[][2] = {
      {1, 1024},      {2, 1024},    {3, 1024},    {4, 64},          {5, 0x7fffffff}, {6, 65535},    {7, 65535},
      {8, 49152},     {9, 65536},   {10, 32},     {11, 0x7fffffff}, {12, 65536},     {13, 1980000}, {14, 512},
      {15, 1},        {16, FC_SMS}, {19, 1},      {31, 1},          {33, 1},         {36, 3201000}, {37, 6144},
      {38, 62914560}, {39, 2048},   {40, 1},      {41, 1},          {75, 9},         {76, 0},       {78, 1},
      {79, 1},        {80, 1},      {81, 233472}, {82, 65536},      {90, 1},         {91, 1},       {92, 1},
      {93, 1},        {94, 1},      {95, 1},      {97, 232448},     {99, 1},         {102, 1},      {106, 32},
      {111, 1024},    {115, 1},     {120, 1},     {122, 1},         {123, 1},
  };
  ENTER(FC_cuDeviceGetAttribute);
  if (!out || attribute <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE;
  *out = 0;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (known[i][0] == attribute) *out = known[i][1] + (attribute == 33 ? d : 0);
  return CUDA_SUCCESS;
}

CUresult fc_cuDeviceGetPCIBusId(char* out, int len, CUdevice d) {
  ENTER(FC_cuDeviceGetPCIBusId);
  if (!out || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(out, (size_t)len, "0000:%02X:00.0", d + 1);
  return CUDA_SUCCESS;
}

CUresult fc_cuDeviceCanAccessPeer(int* out, CUdevice a, CUdevice b) {
  ENTER(FC_cuDeviceCanAccessPeer);
  if (!is_device(a) || !is_device(b)) return CUDA_ERROR_INVALID_DEVICE;
  *out = a != b;
  return CUDA_SUCCESS;
}

/* ---- streams ---- */

uint64_t fc_stream_handle(int i) { return (uint64_t)fc_handle(FC_K_STREAM, i); }

int fc_stream_find(const void* handle) {
  int i = fc_index(FC_K_STREAM, handle);
  if (i < 0 || i >= FC_MAX_STREAMS) return -1;
  const struct fc_stream* s = &fc_world->streams[i];
  return s->in_use && !s->closed && s->owner == fc_me ? i : -1;
}

int fc_stream_in(struct fc_context* c, uint32_t flags, int priority) {
  if (priority > PRIORITY_LEAST) priority = PRIORITY_LEAST;
  if (priority < PRIORITY_GREATEST) priority = PRIORITY_GREATEST;
  int i = fc_stream_new(c->device, (uint64_t)c->handle, flags, priority);
  if (i >= 0) {
    fc_world->streams[i].green = (uint64_t)c->green;
    fc_world->streams[i].sm_lo = c->sm_lo;
    fc_world->streams[i].sm_hi = c->sm_hi;
  }
  return i;
}

/* Still what we made: the context may have gone and come back meanwhile. */
static bool is_own(int stream, const struct fc_context* c) {
  const struct fc_stream* s = &fc_world->streams[stream];
  return s->in_use && !s->closed && s->per_thread && s->owner == fc_me && s->ctx == (uint64_t)c->handle;
}

static int own_stream(struct fc_context* c) {
  struct thread_state* t = &thread_state;
  for (int i = 0; i < t->owned; i++)
    if (t->own[i].context == c && is_own(t->own[i].stream, c)) return t->own[i].stream;
  if (t->owned == THREAD_STREAMS) return -1;
  pthread_once(&thread_key_once, make_thread_key);
  pthread_setspecific(thread_key, t);
  int s = fc_stream_in(c, 0, 0);
  if (s < 0) return -1;
  fc_world->streams[s].per_thread = 1;
  t->own[t->owned].context = c;
  t->own[t->owned++].stream = s;
  return s;
}

int fc_stream_arg(CUstream h) {
  struct fc_context* c = fc_current();
  if (h == NULL || h == CU_STREAM_LEGACY) {
    if (c->legacy < 0) {
      c->legacy = fc_stream_in(c, 0, 0);
      if (c->legacy >= 0) fc_world->streams[c->legacy].legacy = 1;
    }
    return c->legacy;
  }
  if (h == CU_STREAM_PER_THREAD) return own_stream(c);
  return fc_stream_find(h);
}

struct fc_context* fc_stream_context(int stream) { return fc_get(FC_K_CTX, (void*)fc_world->streams[stream].ctx); }

static CUresult create_stream(int api, CUstream* out, unsigned int flags, int priority) {
  ENTER_CTX(api);
  if (!out || flags > CU_STREAM_NON_BLOCKING) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  int i = fc_stream_in(fc_current(), flags, priority);
  if (i < 0) return fc_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *out = (CUstream)fc_stream_handle(i);
  fc_log(fc_symbol(api), NULL, 0, i, 0);
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuStreamCreate(CUstream* out, unsigned int flags) {
  return create_stream(FC_cuStreamCreate, out, flags, 0);
}

CUresult fc_cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  return create_stream(FC_cuStreamCreateWithPriority, out, flags, priority);
}

CUresult fc_cuStreamDestroy_v2(CUstream h) {
  ENTER_CTX(FC_cuStreamDestroy_v2);
  int i = fc_stream_find(h);
  if (i < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  fc_log("cuStreamDestroy_v2", NULL, 0, i, 0);
  fc_capture_invalidate_stream(i);
  fc_stream_close(i);
  return fc_leave(CUDA_SUCCESS);
}

/* A wait for, or a question about, a stream that captures breaks its capture. */
static CUresult may_look_at(int stream) {
  if (fc_capture_status(stream)) {
    fc_capture_invalidate_stream(stream);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (fc_capture_implicit(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  return fc_capture_unsafe();
}

static CUresult do_cuStreamQuery(int api, CUstream h) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h);
  if (i < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  CUresult r = may_look_at(i);
  if (r == CUDA_SUCCESS && fc_world->streams[i].head != fc_world->streams[i].tail) r = CUDA_ERROR_NOT_READY;
  return fc_leave(r);
}
BOTH(cuStreamQuery, (CUstream s))

static CUresult do_cuStreamSynchronize(int api, CUstream h) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h);
  if (i < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  CUresult r = may_look_at(i);
  if (r != CUDA_SUCCESS) return fc_leave(r);
  fc_log(fc_symbol(api), NULL, 0, i, 0);
  uint64_t tail = fc_world->streams[i].tail;
  if (tail != fc_world->streams[i].head) fc_wait_pos(i, tail - 1);
  if (fc_world->streams[i].legacy) /* waits for the blocking streams too */
    fc_wait_blocking(i);
  return fc_leave(CUDA_SUCCESS);
}
BOTH(cuStreamSynchronize, (CUstream s))

static CUresult do_cuStreamWaitEvent(int api, CUstream h, CUevent eh, unsigned int flags) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h), e = fc_event_find(eh);
  if (i < 0 || e < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (flags > CU_EVENT_WAIT_EXTERNAL) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  bool external = flags & CU_EVENT_WAIT_EXTERNAL;
  if (!external && (fc_event_captured(e) || fc_capture_status(i))) {
    fc_log(fc_symbol(api), NULL, (uint64_t)eh, i, FAKECUDA_CALL_CAPTURED);
    return fc_leave(fc_capture_wait(i, e));
  }
  struct fc_work w = FC_WORK(api, CU_NODE_WAIT_EVENT, FC_OP_WAIT_EVENT);
  w.event = e;
  w.id = (uint64_t)eh;
  return fc_leave(fc_submit(h, &w, NULL, NULL));
}
BOTH(cuStreamWaitEvent, (CUstream s, CUevent e, unsigned int flags), e, flags)

static CUresult do_cuStreamGetPriority(int api, CUstream h, int* out) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h);
  if (i < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  *out = fc_world->streams[i].priority;
  return fc_leave(CUDA_SUCCESS);
}
BOTH(cuStreamGetPriority, (CUstream s, int* out), out)

static CUresult do_cuStreamGetFlags(int api, CUstream h, unsigned int* out) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h);
  if (i < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  *out = fc_world->streams[i].flags;
  return fc_leave(CUDA_SUCCESS);
}
BOTH(cuStreamGetFlags, (CUstream s, unsigned int* out), out)

static CUresult do_cuStreamGetId(int api, CUstream h, unsigned long long* out) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h);
  if (i < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  *out = fc_world->streams[i].id;
  return fc_leave(CUDA_SUCCESS);
}
BOTH(cuStreamGetId, (CUstream s, unsigned long long* out), out)

static CUresult do_cuStreamGetDevice(int api, CUstream h, CUdevice* out) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h);
  if (i < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  *out = fc_world->streams[i].device;
  return fc_leave(CUDA_SUCCESS);
}
BOTH(cuStreamGetDevice, (CUstream s, CUdevice* out), out)

static CUresult do_cuStreamGetCtx(int api, CUstream h, CUcontext* out) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h);
  if (i < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  *out = (CUcontext)fc_world->streams[i].ctx;
  return fc_leave(CUDA_SUCCESS);
}
BOTH(cuStreamGetCtx, (CUstream s, CUcontext* out), out)

CUresult fc_cuStreamGetGreenCtx(CUstream h, CUgreenCtx* out) {
  ENTER_CTX(FC_cuStreamGetGreenCtx);
  int i = fc_stream_arg(h);
  if (i < 0 || !out) return fc_leave(i < 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
  *out = (CUgreenCtx)fc_world->streams[i].green;
  return fc_leave(CUDA_SUCCESS);
}

/* ---- events ---- */

int fc_event_find(const void* handle) {
  int i = fc_index(FC_K_EVENT, handle);
  if (i < 0 || i >= FC_MAX_EVENTS) return -1;
  return fc_world->events[i].in_use && fc_world->events[i].owner == fc_me ? i : -1;
}

CUresult fc_cuEventCreate(CUevent* out, unsigned int flags) {
  ENTER_CTX(FC_cuEventCreate);
  if (!out || flags > 7) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  int e = fc_event_new(flags, (uint64_t)fc_current()->handle);
  if (e < 0) return fc_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *out = fc_handle(FC_K_EVENT, e);
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuEventDestroy_v2(CUevent h) {
  ENTER_CTX(FC_cuEventDestroy_v2);
  int e = fc_event_find(h);
  if (e < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  fc_event_uncapture(e);
  fc_world->events[e].in_use = 0;
  if ((uint32_t)e < fc_world->events_hint) fc_world->events_hint = (uint32_t)e;
  return fc_leave(CUDA_SUCCESS);
}

static CUresult record(int api, CUstream h, CUevent eh, unsigned int flags) {
  ENTER_CTX(api);
  int i = fc_stream_arg(h), e = fc_event_find(eh);
  if (i < 0 || e < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (flags > CU_EVENT_RECORD_EXTERNAL) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  const struct fc_context* c = fc_get(FC_K_CTX, (void*)fc_world->events[e].ctx);
  if (!c || c->device != fc_world->streams[i].device) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (fc_capture_status(i) && !(flags & CU_EVENT_RECORD_EXTERNAL)) {
    fc_log(fc_symbol(api), NULL, (uint64_t)eh, i, FAKECUDA_CALL_CAPTURED);
    return fc_leave(fc_capture_record(i, e));
  }
  struct fc_work w = FC_WORK(api, CU_NODE_EVENT_RECORD, FC_OP_RECORD);
  w.event = e;
  w.id = (uint64_t)eh;
  CUresult r = fc_submit(h, &w, NULL, NULL);
  if (r == CUDA_SUCCESS && !fc_capture_status(i)) fc_event_uncapture(e);
  return fc_leave(r);
}

static CUresult do_cuEventRecord(int api, CUstream s, CUevent e) { return record(api, s, e, 0); }
BOTH(cuEventRecord, (CUevent e, CUstream s), e)
static CUresult do_cuEventRecordWithFlags(int api, CUstream s, CUevent e, unsigned int f) {
  return record(api, s, e, f);
}
BOTH(cuEventRecordWithFlags, (CUevent e, CUstream s, unsigned int flags), e, flags)

static bool event_done(int e) {
  const struct fc_event* v = &fc_world->events[e];
  return v->stream < 0 || fc_passed(v->stream, v->pos);
}

CUresult fc_cuEventQuery(CUevent h) {
  ENTER_CTX(FC_cuEventQuery);
  int e = fc_event_find(h);
  if (e < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (fc_event_captured(e)) return fc_leave(CUDA_ERROR_CAPTURED_EVENT);
  UNSAFE_IN_CAPTURE();
  return fc_leave(event_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult fc_cuEventSynchronize(CUevent h) {
  ENTER_CTX(FC_cuEventSynchronize);
  int e = fc_event_find(h);
  if (e < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (fc_event_captured(e)) return fc_leave(CUDA_ERROR_CAPTURED_EVENT);
  UNSAFE_IN_CAPTURE();
  fc_log("cuEventSynchronize", NULL, (uint64_t)h, -1, 0);
  if (!event_done(e)) fc_wait_pos(fc_world->events[e].stream, fc_world->events[e].pos);
  return fc_leave(CUDA_SUCCESS);
}

static CUresult elapsed(int api, float* ms, CUevent a, CUevent b) {
  ENTER_CTX(api);
  int ia = fc_event_find(a), ib = fc_event_find(b);
  if (ia < 0 || ib < 0) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (!ms) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  if (fc_event_captured(ia) || fc_event_captured(ib)) return fc_leave(CUDA_ERROR_CAPTURED_EVENT);
  UNSAFE_IN_CAPTURE();
  const struct fc_event *va = &fc_world->events[ia], *vb = &fc_world->events[ib];
  if (((va->flags | vb->flags) & CU_EVENT_DISABLE_TIMING) || va->stream < 0 || vb->stream < 0)
    return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (!event_done(ia) || !event_done(ib)) return fc_leave(CUDA_ERROR_NOT_READY);
  *ms = (float)((double)(int64_t)(vb->time_ns - va->time_ns) / 1e6);
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuEventElapsedTime(float* ms, CUevent a, CUevent b) { return elapsed(FC_cuEventElapsedTime, ms, a, b); }
CUresult fc_cuEventElapsedTime_v2(float* ms, CUevent a, CUevent b) {
  return elapsed(FC_cuEventElapsedTime_v2, ms, a, b);
}
