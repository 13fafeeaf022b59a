/*
 * mosaic.h: the C interface of mosaic_torch.
 *
 * Exported by libmosaic_engine.so (for programs outside Python; link with it or preload it) and by libmosaic.so (the
 * PyTorch extension; Python calls it from there). One process uses one of the two.
 *
 *     mosaic_init();
 *     int64_t job = mosaic_job_register("ranker", MOSAIC_ROLE_HP, 0, 1.1, 0);
 *     for (each request) {
 *       int64_t request = mosaic_request_begin(job, 0, stream);
 *       ... launch kernels on `stream` ...
 *       mosaic_request_end(request);
 *     }
 *     mosaic_job_unregister(job);
 *     mosaic_shutdown();
 *
 * Every function may be called from any thread, needs no CUDA context of the caller's, and never throws or unwinds into
 * the caller. Functions that return an int give 0 for success and a negative number for an error; those that return an
 * id give the id or a negative number. After an error, mosaic_last_error() says what was wrong and what to do.
 *
 * In a child that was forked after CUDA had been used every function but mosaic_shutdown is refused: locks of threads
 * that only the parent has would never be given back there.
 *
 * Streams are passed as `void*`: a CUstream or cudaStream_t, unchanged. Times are nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef MOSAIC_H
#define MOSAIC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* High priority: its requests keep their latency bound. */
#define MOSAIC_ROLE_HP 1
/* Best effort: runs while no high-priority request is active. */
#define MOSAIC_ROLE_BE 2
/* Observed: never held, and nobody waits for it; for profiling, below. */
#define MOSAIC_ROLE_OBSERVED 3

/* ---- process ---------------------------------------------------------------------------------------------------- */

/*
 * Puts the hook on the CUDA driver's launch functions. Call it at any time, before or after CUDA is initialised; a
 * second call does nothing. 0: the hook is in force. Negative: it is not, and no job can be registered.
 */
int mosaic_init(void);

/*
 * Opens the gate for all best-effort work of this process and waits until nothing is held in it. Call it before the
 * program's threads are torn down. After it, launches go straight through. Called by a thread of Python's, as the
 * package does at exit, it is for Python's end: daemon threads stay held, and never come back once that has begun.
 */
void mosaic_shutdown(void);

/* Text of the calling thread's last error; "" if there was none. Valid until the thread's next call; never NULL. */
const char* mosaic_last_error(void);

/*
 * Settings as a JSON object; keys that are left out keep their value:
 *   "policy"                "idle-only" (default) | "none" (roles and stream priorities, no gate)
 *   "max_wait_ms"           longest time that a best-effort launch is held before it goes on one kernel at a time
 *   "in_flight_fraction"    cap on best-effort work in flight, as a fraction of the shortest isolated request time
 *   "calibration_requests"  how many isolated requests are measured at the start of an HP job ...
 *   "calibration_max_s"     ... and for how many seconds at most
 *   "stall_ms"              how long an HP request may be silent with an idle GPU before best-effort work goes on
 *   "settle_us"             how long high-priority must have been idle before best-effort is let in
 *   "launch_lead_us"        with this much best-effort work left, the next launch may go however long it is
 *   "spin_us"               how long a held launch spins before it sleeps
 * An unknown key or a value out of range is an error, and nothing is changed.
 */
int mosaic_configure(const char* json);

/*
 * Puts the whole process under a role: every stream that has none, the default streams included, belongs to one job of
 * this name. `slo` is the slowdown bound of an HP process (>= 1), ignored for BE. No process is observed as a whole.
 */
int mosaic_process_role(int role, const char* name, double slo);

/* ---- jobs ------------------------------------------------------------------------------------------------------- */

/*
 * Registers a job on one device and returns its id (>= 0).
 *   name         for people, at most 63 bytes of UTF-8
 *   role         MOSAIC_ROLE_HP, MOSAIC_ROLE_BE or MOSAIC_ROLE_OBSERVED
 *   device       CUDA device index as this process sees it
 *   slo_ratio    HP: tolerated p99 latency as a multiple of the isolated p99 (>= 1, e.g. 1.1); ignored for the others
 *   fingerprint  names the workload, so that its profile is found; 0 = none
 */
int64_t mosaic_job_register(const char* name, int role, int device, double slo_ratio, uint64_t fingerprint);

/* Ends a job. Its open requests end, its streams lose their role. */
int mosaic_job_unregister(int64_t job);

/*
 * Gives a stream the role of `job`, or takes its role away with job = -1. A role belongs to the stream: whatever thread
 * launches on it.
 */
int mosaic_stream_set_role(void* stream, int64_t job);

/* ---- requests (HP) ---------------------------------------------------------------------------------------------- */

/*
 * Opens a request and returns its id (> 0): from now on best-effort work is held. May be called before the engine
 * starts on the request, as soon as it is known. `arrived_at_ns`: when it arrived, 0 = now; latency counts from there.
 */
int64_t mosaic_request_open(int64_t job, int64_t arrived_at_ns);

/* Closes a request: it ends once the GPU is done with what was launched in it. Returns at once. */
int mosaic_request_close(int64_t request);

/* mosaic_request_open, and `stream` carries the job's role: what an engine with streams of its own calls. */
int64_t mosaic_request_begin(int64_t job, int64_t arrived_at_ns, void* stream);

/* The same as mosaic_request_close. */
int mosaic_request_end(int64_t request);

/* ---- reports ---------------------------------------------------------------------------------------------------- */

/*
 * These return JSON texts that the caller gives back with mosaic_free, or NULL with mosaic_last_error() set.
 *   stats   per job: isolated times, launches seen, held, admitted, escaped, unknown; quantiles of the waiting time
 *   doctor  which mechanism is in force, the driver, the devices, what is wrong and what to do
 */
char* mosaic_stats_json(void);
char* mosaic_doctor_json(void);

/* Starts to record the kernels that `job` launches; one recording at a time. */
int mosaic_record_start(int64_t job);

/* Ends the recording and returns it: JSON lines, the first says where it was made, then one line for each kernel. */
char* mosaic_record_stop(void);

/* ---- profiling -------------------------------------------------------------------------------------------------- */

/*
 * Starts to observe what a job of MOSAIC_ROLE_OBSERVED launches, on whatever thread and stream of it; one observation
 * at a time, and only where launches are detoured (mosaic_doctor_json). Launches that are captured into a graph are not
 * observed: the graph's own launch is. `options_json` is an object; both keys may be left out:
 *   "profile"  [["<kernel_id, 16 hexadecimal digits>", occurrence], ...]: these launches are made between
 *              cuProfilerStart and cuProfilerStop, for a profiler that waits for them (ncu --profile-from-start off)
 *   "keep"     true: kernel launches are kept, for mosaic_kept_launch, beside those kept before
 */
int mosaic_observe_start(int64_t job, const char* options_json);

/*
 * Ends the observation and returns it: JSON lines, a launch a line, in the order of the launches over all streams.
 *   kernel_id    16 hexadecimal digits: the same for the same work in every process, but for graphs
 *   kind         "kernel" | "copy" | "set" | "graph"
 *   stream       handle
 *   occurrence   launches of this kernel_id before this one, since the start
 *   profiled     whether it was made inside a profiler's range
 *   failed       the driver's error, where it refused the launch
 *   kernels      graphs: how many kernels a launch runs
 * and of kernels
 *   grid, block, cluster, dynamic_smem_bytes
 *   symbol, registers (of a thread), static_smem_bytes: left out where the driver has no name for the function
 *   kept         with "keep": the number for mosaic_kept_launch, or
 *   not_kept     why it cannot be kept
 * NULL, and no lines, if a chosen launch could not be put in a profiler's range; it was launched all the same.
 */
char* mosaic_observe_stop(void);

/*
 * Makes the fills again that came right before a kept launch, on `stream`: it may count on what they cleared. Two
 * launches that use the same memory must not run at once.
 */
int mosaic_kept_fill(int64_t kept, void* stream);

/*
 * Launches a kept launch again on `stream`, without its fills, past the hook: neither held nor counted nor observed.
 * Its parameters are those of the first time, byte for byte, and so are its launch attributes, a priority among them,
 * but for programmatic stream serialization. The caller sees to it that what they point to is still there, and that
 * the kernel's module is still loaded.
 */
int mosaic_kept_launch(int64_t kept, void* stream);

/* Drops all kept launches; their numbers mean nothing from then on. */
int mosaic_kept_clear(void);

/*
 * One GPU as a JSON object: "name", "compute_capability", "sms", "granularity_sms" (partitions come in multiples of it;
 * null where there are none), "priority_lowest" and "priority_highest" (of streams; the lowest is the greatest number).
 */
char* mosaic_device_json(int device);

/*
 * A new non-blocking stream of the device's primary context; its handle. The driver takes the nearest priority that it
 * has.
 */
int64_t mosaic_stream_create(int device, int priority);

/*
 * Splits a GPU's SMs in two (Green Contexts): at least `sms` of them, and the rest. JSON: {"partition": its number,
 * "sms": how many it has, "rest_sms": how many the rest has}.
 */
char* mosaic_partition(int device, int sms);

/* A new non-blocking stream whose kernels run on the partition's SMs alone; on those of the rest with rest = 1. */
int64_t mosaic_partition_stream(int64_t partition, int rest, int priority);

/* Destroys a partition, the rest, and the streams of both. */
int mosaic_partition_close(int64_t partition);

/*
 * The counters that Nsight Compute is to be asked for, as a JSON list; and its table (ncu --csv --page raw) in a file,
 * as JSON lines, a launch a line: id, name, grid, block, and metrics in plain units.
 */
char* mosaic_ncu_metrics(void);
char* mosaic_ncu_json(const char* path);

/*
 * Reads a file of profiles/README.md whole and checks all of it. JSON: {"format", "records", "gpu", "sms"}, and by
 * format "workload", "kernels", "unseen", "launches", "pairs" (their number by mode), "noisy". NULL for a file that
 * breaks a rule; the error names the line, what was found and what was expected.
 */
char* mosaic_profile_check(const char* path);

/* Gives back a text of the functions above; NULL is allowed. */
void mosaic_free(char* text);

#ifdef __cplusplus
}
#endif

#endif /* MOSAIC_H */
