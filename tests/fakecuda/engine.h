/*
 * The GPU of the double: streams of operations, run in virtual time.
 *
 * All of its state is one `struct world`, either private to the process or in a file that several processes map
 * (FAKECUDA_SHM). It holds no pointer that another process would follow: an operation's effect on memory (`fx`) is
 * applied by the process that submitted it. One robust mutex guards it; a process may be killed at any instruction, so
 * each step is committed by a single store (a stream's head or tail) and can be repeated.
 */
#ifndef FC_ENGINE_H
#define FC_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda_abi.h"
#include "fakecuda.h"

#define FC_HIDDEN __attribute__((visibility("hidden")))

enum {
    FC_MAX_DEVICES = 8,
    FC_MAX_STREAMS = 512,
    FC_MAX_EVENTS = 16384,
    FC_MAX_PROCS = 64,
    FC_RING = 4096,  /* operations that a stream can hold */
    FC_QUEUE = 1024, /* launches that a stream takes before the launching call blocks, as the driver's queue does */
    FC_LOG = 65536,
    FC_SMS = 132,
    FC_MAX_RUNNING = 16,
};

enum fc_op_kind {
    FC_OP_KERNEL, /* holds its stream's SMs for its duration */
    FC_OP_COPY,   /* holds the device's copy engine */
    FC_OP_RECORD,
    FC_OP_WAIT_EVENT,
    FC_OP_WAIT_VALUE,
    FC_OP_EFFECT, /* takes no time: stream writes, frees, host functions, markers */
};

enum fc_op_state { FC_QUEUED, FC_RUNNING, FC_APPLY /* for its process to apply */, FC_DONE };

enum fc_fx_kind { FC_FX_NONE, FC_FX_COPY, FC_FX_FILL, FC_FX_WRITE, FC_FX_ADD, FC_FX_HOST, FC_FX_FREE };

/* What an operation does to the memory of its process. Lives on that process's heap. */
struct fc_fx {
    enum fc_fx_kind kind;
    uint64_t dst, src;
    size_t width, height, depth; /* bytes, rows, slices */
    size_t dst_pitch, src_pitch, dst_slice, src_slice;
    uint64_t value;
    unsigned int elem; /* bytes of one value */
    void *staging;     /* pageable source, copied at the call; freed with the operation */
    CUhostFn fn;
    void *arg;
};

struct fc_op {
    uint64_t seq; /* submission order over all streams */
    uint64_t dur_ns, start_ns, end_ns;
    uint64_t fx;        /* struct fc_fx * of the owner, or 0 */
    uint64_t log, glog; /* record of the call, of the graph launch; index + 1, or 0 */
    uint64_t wait_pos;  /* WAIT_EVENT: satisfied once that stream's head has passed it */
    uint64_t addr, value;
    int32_t wait_stream;
    int32_t event;
    int32_t priority;
    uint32_t wait_flags;
    uint8_t kind, state;
};

struct fc_stream {
    uint32_t in_use;
    uint32_t closed; /* destroyed: goes when drained */
    int32_t owner;   /* slot in procs */
    int32_t device;
    uint64_t ctx, green; /* owner's handles */
    uint32_t flags;
    uint8_t legacy, per_thread;
    int32_t priority;
    int32_t sm_lo, sm_hi;
    uint64_t head, tail; /* positions: never go back, also when the slot is used again */
    uint64_t id;
};

struct fc_event {
    uint32_t in_use;
    int32_t owner;
    uint32_t flags;
    int32_t stream; /* -1: never recorded */
    uint64_t pos;
    uint64_t ctx;
    uint64_t time_ns;
    uint32_t stamped;
};

struct fc_run {
    int32_t stream; /* -1: free */
    uint64_t pos;
};

struct fc_proc {
    uint32_t in_use;
    uint32_t kick; /* futex: its GPU thread has something to do */
    pid_t pid;
    pthread_mutex_t life; /* robust; held by the process's GPU thread as long as it lives */
};

struct fc_device {
    struct fc_run kernels[FC_MAX_RUNNING];
    struct fc_run copy;
};

struct fc_world {
    uint64_t magic, bytes;
    pthread_mutex_t lock;
    uint32_t changed; /* futex: bumped when something was done */
    uint32_t waiters;
    uint32_t clock;
    uint64_t now;
    uint64_t next_seq, next_id;
    uint64_t log_total;
    uint64_t reap_at;
    uint64_t mem_used[FC_MAX_DEVICES];
    uint32_t streams_hi; /* slots ever used */
    uint32_t events_hint;
    struct fc_proc procs[FC_MAX_PROCS];
    struct fc_device devices[FC_MAX_DEVICES];
    struct fc_stream streams[FC_MAX_STREAMS];
    struct fc_event events[FC_MAX_EVENTS];
    struct fakecuda_call log[FC_LOG];
    struct fc_op ring[FC_MAX_STREAMS][FC_RING];
};

extern FC_HIDDEN struct fc_world *fc_world;
extern FC_HIDDEN int fc_me;      /* our slot in procs */
extern FC_HIDDEN int fc_devices; /* FAKECUDA_DEVICES */

/* Maps the world, takes a process slot, starts the GPU thread. Once per process. */
FC_HIDDEN CUresult fc_engine_start(void);
/* Takes the lock and simulates up to now. */
FC_HIDDEN void fc_lock(void);
FC_HIDDEN void fc_unlock(void);
/* With the lock held (it is given up meanwhile): returns once `head > pos` on that stream. */
FC_HIDDEN void fc_wait_pos(int stream, uint64_t pos);
/* With the lock held: waits until all work that this process has put on the device so far is done. */
FC_HIDDEN void fc_wait_device(int device);
FC_HIDDEN void fc_wait_ctx(uint64_t ctx);
/* ... that the blocking streams of a legacy stream's context have. */
FC_HIDDEN void fc_wait_blocking(int legacy);

static inline struct fc_op *fc_op_at(int stream, uint64_t pos) { return &fc_world->ring[stream][pos % FC_RING]; }
static inline bool fc_passed(int stream, uint64_t pos) { return fc_world->streams[stream].head > pos; }

/* Appends an operation (blocks while the queue is full) and simulates on; returns its position. */
FC_HIDDEN uint64_t fc_push(int stream, const struct fc_op *op, const struct fc_fx *fx);
FC_HIDDEN int fc_stream_new(int device, uint64_t ctx, uint32_t flags, int priority);
FC_HIDDEN void fc_stream_close(int stream);
FC_HIDDEN int fc_event_new(uint32_t flags, uint64_t ctx);
FC_HIDDEN void fc_fx_drop(struct fc_fx *fx);
FC_HIDDEN void fc_free_now(uint64_t address); /* memory.c: end of a stream-ordered free */

/* Records a call: index + 1. */
FC_HIDDEN uint64_t fc_log(const char *api, const char *detail, uint64_t id, int stream, uint32_t flags);

#endif
