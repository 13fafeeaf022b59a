/*
 * fakecuda: a double of libcuda.so.1 for tests on machines without a GPU.
 * This header is its control side: what a test may ask of the double beside the CUDA driver API. See README.md.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How virtual time moves. */
enum {
  FAKECUDA_CLOCK_REAL = 0,   /* virtual time is CLOCK_MONOTONIC */
  FAKECUDA_CLOCK_MANUAL = 1, /* only fakecuda_advance_ns moves it; a blocking call waits until someone does */
  FAKECUDA_CLOCK_AUTO = 2,   /* as manual, but a blocking call jumps to the instant that it waits for */
};

/* fakecuda_call.flags */
enum {
  FAKECUDA_CALL_IN_GRAPH = 1, /* work of a graph launch: a node, not a call */
  FAKECUDA_CALL_KILLED = 2,   /* its process died before it was done */
  FAKECUDA_CALL_CAPTURED = 4, /* went into a graph: never executed by this call */
  FAKECUDA_CALL_COOPERATIVE = 8,
};

/* One recorded call. Times are virtual; start_ns and end_ns are 0 until the GPU gets there, and stay 0 for calls that
 * put nothing on the GPU. */
struct fakecuda_call {
  char api[40];    /* the symbol, with its suffix */
  char detail[64]; /* kernel's name, or empty */
  uint64_t id;     /* what the kernel carried (names with "_id", "_sum"), bytes of a copy, handle of an event */
  uint64_t stream; /* handle; the default streams have one too */
  uint64_t call_ns;
  uint64_t start_ns;
  uint64_t end_ns;
  int32_t device;
  int32_t priority;
  uint32_t pid;
  uint32_t tid;
  uint32_t flags;
  uint32_t pad;
};

uint64_t fakecuda_now_ns(void);
int fakecuda_set_clock(int mode);
/* Moves virtual time on, and returns once everything that ends by then is done and seen by its process. */
int fakecuda_advance_ns(uint64_t ns);

/* Copies the newest min(cap, recorded) calls, oldest first; returns how many. All processes of a shared engine. */
size_t fakecuda_calls(struct fakecuda_call* out, size_t cap);
/* Calls recorded since the last clear (may exceed what the ring still holds). */
uint64_t fakecuda_calls_total(void);
void fakecuda_clear_calls(void);
size_t fakecuda_call_size(void);

/* Times that this process called an exported symbol (exact name); -1: the double has no such symbol. */
int64_t fakecuda_call_count(const char* symbol);
/* The (skip + 1)-th next call of the symbol in this process returns `result` and does nothing else. 0: no such symbol.
 */
int fakecuda_fail(const char* symbol, int result, unsigned skip);

/* From now on each call of the symbol in this process first sleeps that long, in real time. 0: no such symbol. */
int fakecuda_delay(const char* symbol, uint64_t ns);

/* Work submitted and not yet done: on one stream, or (stream == NULL) of all processes on a device. */
int64_t fakecuda_pending(void* stream, int device);
/* Processes that the engine counts as alive. */
int fakecuda_processes(void);
/* All symbols of the driver API that the double exports, NULL-terminated. */
const char* const* fakecuda_symbols(void);

#ifdef __cplusplus
}
#endif
#endif
