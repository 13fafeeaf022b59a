/* What the process keeps beside the engine: handles, contexts, functions, captures and graphs. All under fc_lock. */
#ifndef FC_DRIVER_H
#define FC_DRIVER_H

#include "engine.h"

/* ---- entry points ---- */

#define E(symbol, base, since) FC_##symbol,
enum fc_api {
#include "entries.def"
  FC_API_COUNT
};
#undef E

FC_HIDDEN const char* fc_symbol(int api);
/* Counts the call, and says whether it must fail: not initialised, forked, injected. */
FC_HIDDEN CUresult fc_enter(int api);
FC_HIDDEN bool fc_usable(void); /* initialised, and not in a forked child */
FC_HIDDEN CUresult fc_init(void);

#define ENTER(api)                             \
  do {                                         \
    CUresult enter_ = fc_enter(api);           \
    if (enter_ != CUDA_SUCCESS) return enter_; \
  } while (0)

/* ... and takes the lock, which LEAVE gives back. */
#define ENTER_LOCKED(api) \
  ENTER(api);             \
  fc_lock()

/* ... and asks for a current context, as most of the API does. */
#define ENTER_CTX(api) \
  ENTER_LOCKED(api);   \
  if (fc_current() == NULL) return fc_leave(CUDA_ERROR_INVALID_CONTEXT)

static inline CUresult fc_leave(CUresult r) {
  fc_unlock();
  return r;
}

/* Both forms of a call with a stream: in the _ptsz form stream 0 is the calling thread's own. The body is
 * do_<name>(api, stream, ...). */
#define BOTH(name, params, ...)                                                                      \
  FC_HIDDEN CUresult fc_##name params { return do_##name(FC_##name, s __VA_OPT__(, ) __VA_ARGS__); } \
  FC_HIDDEN CUresult fc_##name##_ptsz params {                                                       \
    return do_##name(FC_##name##_ptsz, s ? s : CU_STREAM_PER_THREAD __VA_OPT__(, ) __VA_ARGS__);     \
  }

/* ---- handles ---- */

enum fc_kind {
  FC_K_CTX = 1,
  FC_K_STREAM,
  FC_K_EVENT,
  FC_K_MODULE,
  FC_K_LIBRARY,
  FC_K_FUNCTION,
  FC_K_KERNEL,
  FC_K_GRAPH,
  FC_K_NODE,
  FC_K_EXEC,
  FC_K_GREEN,
  FC_K_DESC,
  FC_K_ARRAY,
  FC_K_POOL,
  FC_K_COUNT,
};

/* A handle is a number that looks like an address; freed ones are given out again at once, as the driver's are. */
FC_HIDDEN void* fc_handle(enum fc_kind kind, int index);
FC_HIDDEN int fc_index(enum fc_kind kind, const void* handle); /* -1: none of that kind */
FC_HIDDEN void* fc_add(enum fc_kind kind, void* object);
FC_HIDDEN void* fc_get(enum fc_kind kind, const void* handle); /* NULL: no such object */
FC_HIDDEN void fc_del(enum fc_kind kind, const void* handle);

/* ---- contexts, streams, events (context.c) ---- */

struct fc_context {
  void *handle, *green;
  int device, legacy; /* legacy: stream, -1 until used */
  int sm_lo, sm_hi;
  bool alive, primary;
  unsigned retained, flags;
};

FC_HIDDEN struct fc_context* fc_current(void);
FC_HIDDEN struct fc_context* fc_primary(int device, bool retain);
FC_HIDDEN struct fc_context* fc_context_new(int device);
FC_HIDDEN void fc_context_kill(struct fc_context* c);
FC_HIDDEN uint64_t fc_stream_handle(int stream);
FC_HIDDEN int fc_stream_find(const void* handle); /* a made stream of ours: -1 if none */
/* Any stream argument, the default streams included. -1: INVALID_HANDLE. */
FC_HIDDEN int fc_stream_arg(CUstream s);
FC_HIDDEN int fc_event_find(const void* handle);
FC_HIDDEN int fc_stream_in(struct fc_context* c, uint32_t flags, int priority);
FC_HIDDEN struct fc_context* fc_stream_context(int stream);

/* ---- memory (memory.c) ---- */

FC_HIDDEN bool fc_device_range(uint64_t address, size_t bytes); /* device or mapped host memory */
FC_HIDDEN bool fc_pageable(const void* address, size_t bytes);  /* host memory that the driver does not know */
FC_HIDDEN size_t fc_memory_bytes(void);                         /* of one device */

/* ---- functions (module.c) ---- */

struct fc_function {
  char* name;
  void *handle, *owner; /* owner: module or library */
  void* function;       /* of a kernel: its CUfunction, once asked for */
  uint64_t dur_ns;
  bool has_id, stores, adds, sums;
  struct fc_param {
    size_t offset, size;
  } params[2];
  size_t n_params;
};

FC_HIDDEN struct fc_function* fc_function_find(const void* handle); /* a CUfunction or a CUkernel */

/* ---- work: what a call puts on a stream or into a graph ---- */

struct fc_work {
  int api, node_type;
  enum fc_op_kind kind;
  uint64_t dur_ns, id;
  char detail[64];
  struct fc_fx fx;
  bool wide;
  uint64_t addr, value; /* WAIT_VALUE */
  uint32_t wait_flags;
  uint32_t log_flags; /* of its record */
  int event;          /* RECORD: event; WAIT_EVENT: event (graphs: external) */
  int priority;       /* INT_MIN: the stream's */
  CUDA_KERNEL_NODE_PARAMS kernel;
};

#define FC_WORK(api_, node_, kind_) \
  (struct fc_work){.api = (api_), .node_type = (node_), .kind = (kind_), .event = -1, .priority = -1000}

/* Puts it on the stream, or into the graph that the stream captures into. */
FC_HIDDEN CUresult fc_submit(CUstream s, struct fc_work* w, uint64_t* pos_out, int* stream_out);
FC_HIDDEN uint64_t fc_push_work(int stream, const struct fc_work* w, uint64_t log, uint64_t glog);
FC_HIDDEN CUresult fc_kernel_work(int api, const CUDA_KERNEL_NODE_PARAMS* k, struct fc_work* w);

/* ---- capture and graphs (graph.c) ---- */

FC_HIDDEN CUresult fc_capture_add(int stream, struct fc_work* w); /* stream must be capturing */
FC_HIDDEN int fc_capture_status(int stream);
FC_HIDDEN bool fc_capture_implicit(int stream); /* legacy stream while a blocking stream of its context captures */
FC_HIDDEN CUresult fc_capture_record(int stream, int event);
FC_HIDDEN CUresult fc_capture_wait(int stream, int event);
FC_HIDDEN bool fc_event_captured(int event);
FC_HIDDEN void fc_event_uncapture(int event);
FC_HIDDEN void fc_capture_invalidate_stream(int stream);
/* A call that the docs call "potentially unsafe" during capture: NOT SUCCESS where a capture forbids it; that capture
 * is invalid from then on. */
FC_HIDDEN CUresult fc_capture_unsafe(void);

#define UNSAFE_IN_CAPTURE()                                \
  do {                                                     \
    CUresult unsafe_ = fc_capture_unsafe();                \
    if (unsafe_ != CUDA_SUCCESS) return fc_leave(unsafe_); \
  } while (0)

#endif
