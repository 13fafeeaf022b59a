#define _GNU_SOURCE
#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define MAGIC 0x31616475636b6166ull
#define NEVER UINT64_MAX

struct fc_world* fc_world;
int fc_me = -1;
int fc_devices = 1;

static bool shared_world;
static unsigned fx_pending;      /* effects of this process not yet applied; under the lock */
static uint64_t thread_wakes_at; /* what the GPU thread sleeps for; under the lock */

#define W fc_world

static uint64_t monotonic_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- waking ---- */

static void changed(void) {
  __atomic_add_fetch(&W->changed, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&W->waiters, __ATOMIC_SEQ_CST))
    syscall(SYS_futex, &W->changed, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void kick(int proc) {
  __atomic_add_fetch(&W->procs[proc].kick, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &W->procs[proc].kick, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void futex_wait(uint32_t* word, uint32_t seen, uint64_t ns) {
  struct timespec t = {.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

/* Gives up the lock until something changed, or `ns` have passed. */
static void wait_change(uint64_t ns) {
  uint32_t seen = W->changed;
  __atomic_add_fetch(&W->waiters, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&W->lock);
  futex_wait(&W->changed, seen, ns);
  __atomic_sub_fetch(&W->waiters, 1, __ATOMIC_SEQ_CST);
  fc_lock();
}

/* ---- effects on our own memory ---- */

void fc_fx_drop(struct fc_fx* fx) {
  free(fx->staging);
  free(fx);
}

static void fx_apply(struct fc_fx* fx) {
  switch (fx->kind) {
    case FC_FX_COPY: {
      const char* src = fx->staging ? fx->staging : (const char*)fx->src;
      for (size_t z = 0; z < fx->depth; z++)
        for (size_t y = 0; y < fx->height; y++)
          memmove((char*)fx->dst + z * fx->dst_slice + y * fx->dst_pitch, src + z * fx->src_slice + y * fx->src_pitch,
                  fx->width);
      break;
    }
    case FC_FX_FILL:
      for (size_t y = 0; y < fx->height; y++) {
        char* row = (char*)fx->dst + y * fx->dst_pitch;
        if (fx->elem == 1)
          memset(row, (int)fx->value, fx->width);
        else
          for (size_t x = 0; x < fx->width; x += fx->elem) memcpy(row + x, &fx->value, fx->elem);
      }
      break;
    case FC_FX_WRITE:
      if (fx->elem == 8)
        __atomic_store_n((uint64_t*)fx->dst, fx->value, __ATOMIC_SEQ_CST);
      else
        __atomic_store_n((uint32_t*)fx->dst, (uint32_t)fx->value, __ATOMIC_SEQ_CST);
      break;
    case FC_FX_ADD:
      __atomic_add_fetch((uint32_t*)fx->dst, (uint32_t)fx->value, __ATOMIC_SEQ_CST);
      break;
    case FC_FX_FREE:
      fc_free_now(fx->dst);
      break;
    case FC_FX_HOST: /* the GPU thread runs it, without the lock */
    case FC_FX_NONE:
      break;
  }
}

/* ---- the record of calls ---- */

uint64_t fc_log(const char* api, const char* detail, uint64_t id, int stream, uint32_t flags) {
  struct fakecuda_call* c = &W->log[W->log_total % FC_LOG];
  memset(c, 0, sizeof *c);
  snprintf(c->api, sizeof c->api, "%s", api);
  snprintf(c->detail, sizeof c->detail, "%s", detail ? detail : "");
  c->id = id;
  c->call_ns = W->now;
  c->device = -1;
  if (stream >= 0) {
    c->stream = fc_stream_handle(stream);
    c->device = W->streams[stream].device;
    c->priority = W->streams[stream].priority;
  }
  c->pid = (uint32_t)getpid();
  c->tid = (uint32_t)syscall(SYS_gettid);
  c->flags = flags;
  return ++W->log_total;
}

static struct fakecuda_call* log_at(uint64_t index1) {
  if (index1 == 0 || index1 > W->log_total || W->log_total - index1 >= FC_LOG) return NULL;
  return &W->log[(index1 - 1) % FC_LOG];
}

static void log_start(const struct fc_op* op) {
  struct fakecuda_call *c = log_at(op->log), *g = log_at(op->glog);
  if (c) c->start_ns = op->start_ns;
  if (g && g->start_ns == 0) g->start_ns = op->start_ns;
}

static void log_end(const struct fc_op* op, uint32_t flags) {
  struct fakecuda_call *c = log_at(op->log), *g = log_at(op->glog);
  if (c) c->end_ns = op->end_ns, c->flags |= flags;
  if (g) g->end_ns = op->end_ns, g->flags |= flags;
}

/* ---- simulation ---- */

static void stream_gone(struct fc_stream* s) {
  s->in_use = 0;
  s->closed = 0;
}

/* The operation at the stream's head is over. */
static void pop(int si) {
  struct fc_stream* s = &W->streams[si];
  struct fc_op* op = fc_op_at(si, s->head);
  op->state = FC_DONE;
  log_end(op, 0);
  __atomic_store_n(&s->head, s->head + 1, __ATOMIC_RELEASE);
  if (s->closed && s->head == s->tail) stream_gone(s);
  changed();
}

/* The GPU is done with the head: apply its effect if it is ours, else leave that to its process. */
static void finish(int si) {
  struct fc_stream* s = &W->streams[si];
  struct fc_op* op = fc_op_at(si, s->head);
  op->end_ns = W->now;
  if (op->kind == FC_OP_RECORD) {
    struct fc_event* e = &W->events[op->event];
    if (e->in_use && e->stream == si && e->pos == s->head) {
      e->time_ns = W->now;
      e->stamped = 1;
    }
  }
  if (op->fx == 0) {
    pop(si);
    return;
  }
  struct fc_fx* fx = s->owner == fc_me ? (struct fc_fx*)op->fx : NULL;
  if (fx == NULL || fx->kind == FC_FX_HOST) {
    op->state = FC_APPLY;
    kick(s->owner);
    return;
  }
  fx_apply(fx);
  fc_fx_drop(fx);
  op->fx = 0;
  fx_pending--;
  pop(si);
}

/* Effects that another process's simulation left to us. */
static bool apply_ours(void) {
  bool any = false;
  if (fx_pending == 0) return false;
  for (uint32_t i = 0; i < W->streams_hi; i++) {
    struct fc_stream* s = &W->streams[i];
    if (!s->in_use || s->owner != fc_me || s->head == s->tail) continue;
    struct fc_op* op = fc_op_at((int)i, s->head);
    if (op->state != FC_APPLY || ((struct fc_fx*)op->fx)->kind == FC_FX_HOST) continue;
    struct fc_fx* fx = (struct fc_fx*)op->fx;
    fx_apply(fx);
    fc_fx_drop(fx);
    op->fx = 0;
    fx_pending--;
    pop((int)i);
    any = true;
  }
  return any;
}

/* The rule of the legacy default stream: it and the blocking streams of its context wait for each other. */
static bool legacy_order_ok(int si, const struct fc_op* op) {
  const struct fc_stream* s = &W->streams[si];
  if (s->flags & CU_STREAM_NON_BLOCKING) return true;
  for (uint32_t i = 0; i < W->streams_hi; i++) {
    const struct fc_stream* o = &W->streams[i];
    if ((int)i == si || !o->in_use || o->owner != s->owner || o->ctx != s->ctx || o->head == o->tail) continue;
    if ((o->flags & CU_STREAM_NON_BLOCKING) || (!s->legacy && !o->legacy)) continue;
    if (fc_op_at((int)i, o->head)->seq < op->seq) return false;
  }
  return true;
}

static bool value_arrived(const struct fc_stream* s, const struct fc_op* op) {
  if (s->owner != fc_me) return false; /* not our memory */
  bool wide = op->wait_flags & 0x80000000u;
  uint64_t v = wide ? __atomic_load_n((uint64_t*)op->addr, __ATOMIC_ACQUIRE)
                    : __atomic_load_n((uint32_t*)op->addr, __ATOMIC_ACQUIRE);
  switch (op->wait_flags & 3) {
    case 0:
      return wide ? (int64_t)(v - op->value) >= 0 : (int32_t)((uint32_t)v - (uint32_t)op->value) >= 0;
    case 1:
      return v == op->value;
    case 2:
      return (v & op->value) != 0;
    default:
      return wide ? ~(v | op->value) != 0 : (uint32_t)~(v | op->value) != 0;
  }
}

static bool sms_free(int device, int lo, int hi, const uint8_t* reserved) {
  for (int i = 0; i < FC_MAX_RUNNING; i++) {
    const struct fc_run* r = &W->devices[device].kernels[i];
    if (r->stream >= 0 && W->streams[r->stream].sm_lo < hi && lo < W->streams[r->stream].sm_hi) return false;
  }
  for (int sm = lo; sm < hi; sm++)
    if (reserved[sm]) return false;
  return true;
}

static void start(int si, struct fc_run* slot) {
  struct fc_op* op = fc_op_at(si, W->streams[si].head);
  op->start_ns = W->now;
  op->end_ns = W->now + op->dur_ns;
  op->state = FC_RUNNING;
  slot->pos = W->streams[si].head;
  slot->stream = si;
  log_start(op);
}

static bool head_ready(int si, enum fc_op_kind kind) {
  const struct fc_stream* s = &W->streams[si];
  if (!s->in_use || s->head == s->tail) return false;
  const struct fc_op* op = fc_op_at(si, s->head);
  return op->state == FC_QUEUED && op->kind == kind && legacy_order_ok(si, op);
}

/* Highest priority first, then submission order. A kernel whose SMs are taken keeps them from lower ones. */
static void start_kernels(int device) {
  uint8_t reserved[FC_SMS] = {0}, seen[FC_MAX_STREAMS] = {0};
  for (int i = 0; i < FC_MAX_RUNNING; i++) { /* the common case: one kernel has it all */
    const struct fc_run* r = &W->devices[device].kernels[i];
    if (r->stream >= 0 && W->streams[r->stream].sm_hi - W->streams[r->stream].sm_lo == FC_SMS) return;
  }
  for (;;) {
    struct fc_run* slot = NULL;
    for (int i = 0; i < FC_MAX_RUNNING && !slot; i++)
      if (W->devices[device].kernels[i].stream < 0) slot = &W->devices[device].kernels[i];
    int best = -1;
    for (uint32_t i = 0; slot && i < W->streams_hi; i++) {
      if (seen[i] || W->streams[i].device != device || !head_ready((int)i, FC_OP_KERNEL)) continue;
      const struct fc_op* a = fc_op_at((int)i, W->streams[i].head);
      const struct fc_op* b = best < 0 ? NULL : fc_op_at(best, W->streams[best].head);
      if (!b || a->priority < b->priority || (a->priority == b->priority && a->seq < b->seq)) best = (int)i;
    }
    if (best < 0) return;
    const struct fc_stream* s = &W->streams[best];
    seen[best] = 1;
    if (sms_free(device, s->sm_lo, s->sm_hi, reserved))
      start(best, slot);
    else
      memset(reserved + s->sm_lo, 1, (size_t)(s->sm_hi - s->sm_lo));
  }
}

static void start_copy(int device) {
  struct fc_run* slot = &W->devices[device].copy;
  int best = -1;
  if (slot->stream >= 0) return;
  for (uint32_t i = 0; i < W->streams_hi; i++) {
    if (W->streams[i].device != device || !head_ready((int)i, FC_OP_COPY)) continue;
    if (best < 0 || fc_op_at((int)i, W->streams[i].head)->seq < fc_op_at(best, W->streams[best].head)->seq)
      best = (int)i;
  }
  if (best >= 0) start(best, slot);
}

/* All that takes no time, and whatever can start at this instant. */
static void settle(void) {
  bool again = true, kernels[FC_MAX_DEVICES] = {false}, copies[FC_MAX_DEVICES] = {false};
  while (again) {
    again = false;
    for (uint32_t i = 0; i < W->streams_hi; i++) {
      struct fc_stream* s = &W->streams[i];
      if (!s->in_use || s->head == s->tail) continue;
      struct fc_op* op = fc_op_at((int)i, s->head);
      if (op->state == FC_DONE) { /* its process was killed between the two stores of pop() */
        pop((int)i);
        again = true;
        continue;
      }
      if (op->state == FC_QUEUED && op->kind == FC_OP_KERNEL) kernels[s->device] = true;
      if (op->state == FC_QUEUED && op->kind == FC_OP_COPY) copies[s->device] = true;
      if (op->state != FC_QUEUED || op->kind == FC_OP_KERNEL || op->kind == FC_OP_COPY) continue;
      if (op->kind == FC_OP_WAIT_EVENT && !fc_passed(op->wait_stream, op->wait_pos)) continue;
      if (op->kind == FC_OP_WAIT_VALUE && !value_arrived(s, op)) continue;
      if (!legacy_order_ok((int)i, op)) continue;
      op->start_ns = W->now;
      log_start(op);
      finish((int)i);
      again = true;
    }
  }
  for (int d = 0; d < FC_MAX_DEVICES; d++) {
    if (kernels[d]) start_kernels(d);
    if (copies[d]) start_copy(d);
  }
}

static uint64_t run_end(const struct fc_run* r) { return r->stream < 0 ? NEVER : fc_op_at(r->stream, r->pos)->end_ns; }

static uint64_t next_end(void) {
  uint64_t next = NEVER;
  for (int d = 0; d < FC_MAX_DEVICES; d++) {
    for (int i = 0; i <= FC_MAX_RUNNING; i++) {
      uint64_t e = run_end(i < FC_MAX_RUNNING ? &W->devices[d].kernels[i] : &W->devices[d].copy);
      if (e < next) next = e;
    }
  }
  return next;
}

static void end_due(struct fc_run* r) {
  if (run_end(r) > W->now) return;
  int si = r->stream;
  r->stream = -1;
  finish(si);
}

static bool effects_left(void) {
  for (uint32_t i = 0; i < W->streams_hi; i++)
    if (W->streams[i].in_use && W->streams[i].head != W->streams[i].tail &&
        fc_op_at((int)i, W->streams[i].head)->state == FC_APPLY)
      return true;
  return false;
}

/* Simulates up to `until`. In the virtual clocks it stops early (false) where a process has yet to apply an effect:
 * time must not pass it by. */
static bool run_until(uint64_t until) {
  apply_ours();
  for (;;) {
    settle();
    if (W->clock != FAKECUDA_CLOCK_REAL && effects_left()) return false;
    uint64_t next = next_end();
    if (next > until) {
      if (until > W->now) W->now = until;
      return true;
    }
    if (next > W->now) W->now = next;
    for (int d = 0; d < FC_MAX_DEVICES; d++) {
      for (int i = 0; i < FC_MAX_RUNNING; i++) end_due(&W->devices[d].kernels[i]);
      end_due(&W->devices[d].copy);
    }
  }
}

/* ---- processes that died ---- */

static void drop_process(int slot) {
  for (uint32_t i = 0; i < W->streams_hi; i++) {
    struct fc_stream* s = &W->streams[i];
    if (!s->in_use || s->owner != slot) continue;
    for (uint64_t p = s->head; p < s->tail; p++) {
      struct fc_op* op = fc_op_at((int)i, p);
      op->end_ns = W->now;
      log_end(op, FAKECUDA_CALL_KILLED);
    }
    for (int d = 0; d < FC_MAX_DEVICES; d++) {
      for (int k = 0; k < FC_MAX_RUNNING; k++)
        if (W->devices[d].kernels[k].stream == (int)i) W->devices[d].kernels[k].stream = -1;
      if (W->devices[d].copy.stream == (int)i) W->devices[d].copy.stream = -1;
    }
    s->head = s->tail;
    stream_gone(s);
  }
  for (int i = 0; i < FC_MAX_EVENTS; i++)
    if (W->events[i].in_use && W->events[i].owner == slot) W->events[i].in_use = 0;
  W->events_hint = 0;
  W->procs[slot].in_use = 0;
  changed();
}

static void reap(void) {
  for (int i = 0; i < FC_MAX_PROCS; i++) {
    if (!W->procs[i].in_use || i == fc_me) continue;
    int r = pthread_mutex_trylock(&W->procs[i].life);
    if (r == EBUSY) continue;
    if (r == EOWNERDEAD) pthread_mutex_consistent(&W->procs[i].life);
    drop_process(i);
    if (r == 0 || r == EOWNERDEAD) pthread_mutex_unlock(&W->procs[i].life);
  }
}

/* The lock's owner was killed: a running slot may point at an operation that is over, or that never started. */
static void repair(void) {
  for (int d = 0; d < FC_MAX_DEVICES; d++) {
    for (int i = 0; i <= FC_MAX_RUNNING; i++) {
      struct fc_run* r = i < FC_MAX_RUNNING ? &W->devices[d].kernels[i] : &W->devices[d].copy;
      if (r->stream < 0) continue;
      struct fc_stream* s = &W->streams[r->stream];
      if (!s->in_use || s->head != r->pos || fc_op_at(r->stream, r->pos)->state != FC_RUNNING) r->stream = -1;
    }
  }
  for (uint32_t i = 0; i < W->streams_hi; i++) {
    struct fc_stream* s = &W->streams[i];
    if (!s->in_use || s->head == s->tail) continue;
    struct fc_op* op = fc_op_at((int)i, s->head);
    if (op->state != FC_RUNNING) continue;
    bool held = false;
    for (int k = 0; k < FC_MAX_RUNNING; k++) held |= W->devices[s->device].kernels[k].stream == (int)i;
    held |= W->devices[s->device].copy.stream == (int)i;
    if (!held) op->state = FC_QUEUED;
  }
}

/* ---- lock ---- */

static void catch_up(void) {
  uint64_t real = W->clock == FAKECUDA_CLOCK_REAL || shared_world ? monotonic_ns() : 0;
  if (shared_world && real >= W->reap_at) {
    W->reap_at = real + 1000000;
    reap();
  }
  run_until(W->clock == FAKECUDA_CLOCK_REAL ? real : W->now);
}

static void lock_only(void) {
  int r;
  do {
    /* A waiter that is killed just when it was woken takes the wake-up of the others with it: nobody sleeps for long.
     */
    r = pthread_mutex_trylock(&W->lock);
    if (r != EBUSY) break;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 2000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    r = pthread_mutex_clocklock(&W->lock, CLOCK_MONOTONIC, &until);
  } while (r == ETIMEDOUT);
  if (r == EOWNERDEAD) {
    pthread_mutex_consistent(&W->lock);
    repair();
    W->reap_at = 0;
  }
}

void fc_lock(void) {
  lock_only();
  catch_up();
}

void fc_unlock(void) { pthread_mutex_unlock(&W->lock); }

/* ---- waiting ---- */

/* No later than this instant nothing of interest happens on that stream up to `pos`. */
static uint64_t lower_bound(int si, uint64_t pos) {
  const struct fc_stream* s = &W->streams[si];
  uint64_t t = W->now;
  for (uint64_t p = s->head, n = 0; p <= pos && p < s->tail && n < 256; p++, n++) {
    const struct fc_op* op = fc_op_at(si, p);
    t = op->state == FC_RUNNING ? op->end_ns : t + (op->state == FC_QUEUED ? op->dur_ns : 0);
  }
  uint64_t next = next_end();
  if (t <= W->now && next != NEVER) t = next;
  return t;
}

/* One step of waiting for that position. */
static void wait_step(int si, uint64_t pos) {
  if (W->clock == FAKECUDA_CLOCK_AUTO) {
    uint64_t next = next_end();
    if (next != NEVER && run_until(next)) return;
  }
  /* Bounded: a process that dies wakes nobody. */
  uint64_t ns = 5000000;
  if (W->clock == FAKECUDA_CLOCK_REAL) {
    uint64_t at = lower_bound(si, pos);
    if (at > W->now && at - W->now < ns) ns = at - W->now;
  }
  wait_change(ns);
}

void fc_wait_pos(int si, uint64_t pos) {
  while (!fc_passed(si, pos)) wait_step(si, pos);
}

/* Our streams: of a device, of a context, or a context's blocking ones. */
static void wait_streams(int device, uint64_t ctx, bool blocking) {
  uint64_t goal[FC_MAX_STREAMS];
  uint32_t n = W->streams_hi;
  for (uint32_t i = 0; i < n; i++) {
    const struct fc_stream* s = &W->streams[i];
    bool wanted = s->in_use && s->owner == fc_me && (ctx ? s->ctx == ctx : s->device == device);
    goal[i] = wanted && !(blocking && (s->flags & CU_STREAM_NON_BLOCKING)) ? s->tail : 0;
  }
  for (uint32_t i = 0; i < n; i++)
    if (goal[i]) fc_wait_pos((int)i, goal[i] - 1);
}

void fc_wait_device(int device) { wait_streams(device, 0, false); }
void fc_wait_ctx(uint64_t ctx) { wait_streams(-1, ctx, false); }
void fc_wait_blocking(int legacy) { wait_streams(-1, W->streams[legacy].ctx, true); }

uint64_t fc_memory_used(int device) {
  uint64_t n = 0;
  for (int i = 0; i < FC_MAX_PROCS; i++) n += W->procs[i].in_use ? W->procs[i].mem_used[device] : 0;
  return n;
}

/* ---- submission ---- */

uint64_t fc_push(int si, const struct fc_op* op, const struct fc_fx* fx) {
  struct fc_stream* s = &W->streams[si];
  while (s->tail - s->head >= FC_QUEUE) wait_step(si, s->tail - FC_QUEUE);
  uint64_t pos = s->tail;
  struct fc_op* o = fc_op_at(si, pos);
  *o = *op;
  o->state = FC_QUEUED;
  o->seq = ++W->next_seq;
  o->fx = 0;
  if (fx && fx->kind != FC_FX_NONE) {
    struct fc_fx* mine = malloc(sizeof *mine);
    *mine = *fx;
    o->fx = (uint64_t)mine;
    fx_pending++;
  }
  if (op->kind == FC_OP_RECORD) {
    struct fc_event* e = &W->events[op->event];
    e->stamped = 0;
    e->pos = pos;
    e->stream = si;
  }
  __atomic_store_n(&s->tail, pos + 1, __ATOMIC_RELEASE);
  catch_up();
  if ((o->fx || op->kind == FC_OP_WAIT_VALUE) && !fc_passed(si, pos) && lower_bound(si, pos) < thread_wakes_at)
    kick(fc_me);
  return pos;
}

int fc_stream_new(int device, uint64_t ctx, uint32_t flags, int priority) {
  for (int i = 0; i < FC_MAX_STREAMS; i++) {
    struct fc_stream* s = &W->streams[i];
    if (s->in_use) continue;
    s->closed = 0;
    s->owner = fc_me;
    s->device = device;
    s->ctx = ctx;
    s->green = 0;
    s->flags = flags;
    s->legacy = s->per_thread = 0;
    s->priority = priority;
    s->sm_lo = 0;
    s->sm_hi = FC_SMS;
    s->head = s->tail;
    s->id = ++W->next_id;
    if ((uint32_t)i >= W->streams_hi) W->streams_hi = (uint32_t)i + 1;
    __atomic_store_n(&s->in_use, 1, __ATOMIC_RELEASE);
    return i;
  }
  return -1;
}

void fc_stream_close(int si) {
  struct fc_stream* s = &W->streams[si];
  if (s->head == s->tail)
    stream_gone(s);
  else
    s->closed = 1;
}

int fc_event_new(uint32_t flags, uint64_t ctx) {
  for (uint32_t n = 0; n < FC_MAX_EVENTS; n++) {
    uint32_t i = (W->events_hint + n) % FC_MAX_EVENTS;
    struct fc_event* e = &W->events[i];
    if (e->in_use) continue;
    *e = (struct fc_event){.owner = fc_me, .flags = flags, .stream = -1, .ctx = ctx};
    __atomic_store_n(&e->in_use, 1, __ATOMIC_RELEASE);
    W->events_hint = i + 1;
    return (int)i;
  }
  return -1;
}

/* ---- the GPU thread: applies effects that nobody is in a call for, runs host functions, proves us alive ---- */

/* A host function at the head of one of our streams. */
static int host_due(void) {
  for (uint32_t i = 0; fx_pending && i < W->streams_hi; i++) {
    const struct fc_stream* s = &W->streams[i];
    if (s->in_use && s->owner == fc_me && s->head != s->tail && fc_op_at((int)i, s->head)->state == FC_APPLY)
      return (int)i;
  }
  return -1;
}

/* When our next effect can be due at the earliest. */
static uint64_t effect_due(void) {
  uint64_t due = NEVER;
  for (uint32_t i = 0; fx_pending && i < W->streams_hi; i++) {
    const struct fc_stream* s = &W->streams[i];
    if (!s->in_use || s->owner != fc_me) continue;
    uint64_t p = s->head;
    while (p < s->tail && p - s->head < 256 && fc_op_at((int)i, p)->fx == 0 &&
           fc_op_at((int)i, p)->kind != FC_OP_WAIT_VALUE)
      p++;
    if (p == s->tail) continue;
    uint64_t t =
        fc_op_at((int)i, p)->kind == FC_OP_WAIT_VALUE && p == s->head ? W->now + 50000 : lower_bound((int)i, p);
    if (t < due) due = t;
  }
  return due;
}

static void* gpu_main(void* started) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  pthread_setname_np(pthread_self(), "fakecuda-gpu");
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  lock_only();
  reap();
  for (int i = 0; i < FC_MAX_PROCS && fc_me < 0; i++)
    if (!W->procs[i].in_use) fc_me = i;
  if (fc_me >= 0) {
    if (pthread_mutex_lock(&W->procs[fc_me].life) == EOWNERDEAD) pthread_mutex_consistent(&W->procs[fc_me].life);
    W->procs[fc_me].pid = getpid();
    memset(W->procs[fc_me].mem_used, 0, sizeof W->procs[fc_me].mem_used);
    W->procs[fc_me].in_use = 1;
  }
  __atomic_store_n((int*)started, fc_me >= 0 ? 1 : -1, __ATOMIC_RELEASE);
  changed();
  if (fc_me < 0) {
    fc_unlock();
    return NULL;
  }
  for (;;) {
    catch_up();
    int si = host_due();
    if (si >= 0) {
      struct fc_stream* s = &W->streams[si];
      struct fc_fx* fx = (struct fc_fx*)fc_op_at(si, s->head)->fx;
      fc_unlock();
      fx->fn(fx->arg);
      lock_only();
      fc_fx_drop(fx);
      fc_op_at(si, s->head)->fx = 0;
      fc_op_at(si, s->head)->end_ns = W->now;
      fx_pending--;
      pop(si);
      continue;
    }
    uint64_t due = effect_due(), ns = 3600000000000ull;
    thread_wakes_at = due;
    if (due != NEVER && W->clock == FAKECUDA_CLOCK_REAL)
      ns = due > W->now ? due - W->now : 200000;
    else if (due != NEVER)
      ns = 1000000; /* a stream may wait for a value in memory */
    uint32_t seen = W->procs[fc_me].kick;
    fc_unlock();
    futex_wait(&W->procs[fc_me].kick, seen, ns);
    lock_only();
  }
  return NULL;
}

/* FAKECUDA_CLOCK, -1 where it is none of the three. */
static int wanted_clock(void) {
  static const char* const names[] = {"real", "manual", "auto"};
  const char* s = getenv("FAKECUDA_CLOCK");
  if (!s) return FAKECUDA_CLOCK_REAL;
  for (int i = 0; i < 3; i++)
    if (strcmp(s, names[i]) == 0) return i;
  fprintf(stderr, "fakecuda: unknown FAKECUDA_CLOCK '%s', expected real, manual or auto\n", s);
  return -1;
}

static bool map_world(void) {
  const char* path = getenv("FAKECUDA_SHM");
  int clock = wanted_clock();
  shared_world = path && *path;
  int fd = -1;
  if (clock < 0) return false;
  if (shared_world) {
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    off_t size = flock(fd, LOCK_EX) == 0 ? lseek(fd, 0, SEEK_END) : -1;
    if ((size != 0 && size != (off_t)sizeof *W) || (size == 0 && ftruncate(fd, sizeof *W) != 0)) {
      close(fd);
      return false;
    }
  }
  int flags = shared_world ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  W = mmap(NULL, sizeof *W, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  if (W == MAP_FAILED) {
    W = NULL;
    if (fd >= 0) close(fd);
    return false;
  }
  if (W->magic != MAGIC) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&W->lock, &a);
    for (int i = 0; i < FC_MAX_PROCS; i++) pthread_mutex_init(&W->procs[i].life, &a);
    for (int d = 0; d < FC_MAX_DEVICES; d++) {
      for (int i = 0; i < FC_MAX_RUNNING; i++) W->devices[d].kernels[i].stream = -1;
      W->devices[d].copy.stream = -1;
    }
    W->clock = (uint32_t)clock;
    W->now = W->clock == FAKECUDA_CLOCK_REAL ? monotonic_ns() : 1000000;
    W->bytes = sizeof *W;
    __atomic_store_n(&W->magic, MAGIC, __ATOMIC_RELEASE);
  }
  if (fd >= 0) {
    flock(fd, LOCK_UN); /* said, not left to close: the mapping keeps the open file */
    close(fd);
  }
  return W->bytes == sizeof *W;
}

CUresult fc_engine_start(void) {
  int started = 0;
  if (!map_world()) return CUDA_ERROR_OPERATING_SYSTEM;
  pthread_t thread;
  if (pthread_create(&thread, NULL, gpu_main, &started) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  pthread_detach(thread);
  fc_lock();
  while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) wait_change(1000000);
  fc_unlock();
  return started > 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* ---- control functions ---- */

#define PUBLIC __attribute__((visibility("default")))

PUBLIC uint64_t fakecuda_now_ns(void) {
  if (!fc_usable()) return 0;
  fc_lock();
  uint64_t t = W->now;
  fc_unlock();
  return t;
}

PUBLIC int fakecuda_set_clock(int mode) {
  if (!fc_usable() || mode < FAKECUDA_CLOCK_REAL || mode > FAKECUDA_CLOCK_AUTO) return CUDA_ERROR_INVALID_VALUE;
  fc_lock();
  W->clock = (uint32_t)mode;
  changed();
  fc_unlock();
  return CUDA_SUCCESS;
}

PUBLIC int fakecuda_advance_ns(uint64_t ns) {
  if (!fc_usable()) return CUDA_ERROR_NOT_INITIALIZED;
  fc_lock();
  if (W->clock == FAKECUDA_CLOCK_REAL) {
    fc_unlock();
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  uint64_t until = W->now + ns;
  while (!run_until(until)) {
    wait_change(1000000); /* another thread or process applies its effect */
  }
  changed();
  fc_unlock();
  return CUDA_SUCCESS;
}

PUBLIC size_t fakecuda_calls(struct fakecuda_call* out, size_t cap) {
  if (!fc_usable()) return 0;
  fc_lock();
  uint64_t n = W->log_total < FC_LOG ? W->log_total : FC_LOG;
  if (n > cap) n = cap;
  for (uint64_t i = 0; i < n; i++) out[i] = W->log[(W->log_total - n + i) % FC_LOG];
  fc_unlock();
  return (size_t)n;
}

PUBLIC uint64_t fakecuda_calls_total(void) {
  if (!fc_usable()) return 0;
  fc_lock();
  uint64_t n = W->log_total;
  fc_unlock();
  return n;
}

PUBLIC void fakecuda_clear_calls(void) {
  if (!fc_usable()) return;
  fc_lock();
  W->log_total = 0;
  for (uint32_t i = 0; i < W->streams_hi; i++)
    for (uint64_t p = W->streams[i].head; p < W->streams[i].tail; p++)
      fc_op_at((int)i, p)->log = fc_op_at((int)i, p)->glog = 0;
  fc_unlock();
}

PUBLIC size_t fakecuda_call_size(void) { return sizeof(struct fakecuda_call); }

PUBLIC int64_t fakecuda_pending(void* stream, int device) {
  if (!fc_usable()) return 0;
  fc_lock();
  int only = stream ? fc_stream_find(stream) : -1;
  int64_t n = 0;
  for (uint32_t i = 0; i < W->streams_hi; i++) {
    const struct fc_stream* s = &W->streams[i];
    if (s->in_use && (stream ? (int)i == only : s->device == device)) n += (int64_t)(s->tail - s->head);
  }
  fc_unlock();
  return n;
}

PUBLIC int fakecuda_processes(void) {
  if (!fc_usable()) return 0;
  fc_lock();
  W->reap_at = 0;
  catch_up();
  int n = 0;
  for (int i = 0; i < FC_MAX_PROCS; i++) n += W->procs[i].in_use != 0;
  fc_unlock();
  return n;
}
