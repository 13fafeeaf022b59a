/* Modules, libraries, functions, launches. Any image is taken, any name is found (but "missing*"): the name says what
 * the kernel does. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct image {
  void* handle;
  bool library;
  void* module; /* of a library, once asked for; its functions are the kernels' */
  struct fc_function** functions;
  size_t count;
  uint64_t ctx; /* of a module */
};

/* "spin_50us", "gemm_4000ns_id": the last "_<number><unit>" that ends a word. */
static uint64_t duration(const char* name) {
  const char* s = getenv("FAKECUDA_KERNEL_NS");
  uint64_t ns = s ? strtoull(s, NULL, 0) : 5000;
  for (const char* p = strchr(name, '_'); p; p = strchr(p + 1, '_')) {
    char* unit;
    if (!isdigit((unsigned char)p[1])) continue;
    uint64_t n = strtoull(p + 1, &unit, 10);
    size_t len = strcspn(unit, "_");
    if (len == 2 && !strncmp(unit, "ns", 2))
      ns = n;
    else if (len == 2 && !strncmp(unit, "us", 2))
      ns = n * 1000;
    else if (len == 2 && !strncmp(unit, "ms", 2))
      ns = n * 1000000;
    else if (len == 1 && *unit == 's')
      ns = n * 1000000000;
  }
  return ns;
}

static CUresult load(int api, void** out, const void* code, bool library) {
  if (!out || !code) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  if (!strncmp(code, "invalid", 7)) return fc_leave(CUDA_ERROR_INVALID_IMAGE);
  struct image* m = calloc(1, sizeof *m);
  m->library = library;
  m->ctx = library ? 0 : (uint64_t)fc_current()->handle;
  m->handle = *out = fc_add(library ? FC_K_LIBRARY : FC_K_MODULE, m);
  fc_log(fc_symbol(api), NULL, (uint64_t)m->handle, -1, 0);
  return fc_leave(CUDA_SUCCESS);
}

static CUresult load_module(int api, CUmodule* out, const void* code) {
  ENTER_CTX(api);
  UNSAFE_IN_CAPTURE();
  return load(api, out, code, false);
}

CUresult fc_cuModuleLoad(CUmodule* out, const char* path) { return load_module(FC_cuModuleLoad, out, path); }
CUresult fc_cuModuleLoadData(CUmodule* out, const void* code) { return load_module(FC_cuModuleLoadData, out, code); }
CUresult fc_cuModuleLoadFatBinary(CUmodule* out, const void* code) {
  return load_module(FC_cuModuleLoadFatBinary, out, code);
}
CUresult fc_cuModuleLoadDataEx(CUmodule* out, const void* code, unsigned int n, void* options, void* values) {
  (void)n, (void)options, (void)values;
  return load_module(FC_cuModuleLoadDataEx, out, code);
}

CUresult fc_cuLibraryLoadData(CUlibrary* out, const void* code, void* jit, void* jit_values, unsigned int n_jit,
                              void* options, void* values, unsigned int n) {
  (void)jit, (void)jit_values, (void)n_jit, (void)options, (void)values, (void)n;
  ENTER_LOCKED(FC_cuLibraryLoadData);
  UNSAFE_IN_CAPTURE();
  return load(FC_cuLibraryLoadData, out, code, true);
}

static void drop_functions(struct image* m) {
  for (size_t i = 0; i < m->count; i++) {
    struct fc_function* f = m->functions[i];
    if (f->function) fc_del(FC_K_FUNCTION, f->function);
    fc_del(m->library ? FC_K_KERNEL : FC_K_FUNCTION, f->handle);
    free(f->name);
    free(f);
  }
  free(m->functions);
}

static CUresult unload(int api, void* handle, enum fc_kind kind) {
  struct image* m = fc_get(kind, handle);
  if (!m || (kind == FC_K_MODULE && m->library)) /* a library's module goes with its library */
    return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  UNSAFE_IN_CAPTURE();
  fc_log(fc_symbol(api), NULL, (uint64_t)handle, -1, 0);
  drop_functions(m);
  if (m->module) fc_del(FC_K_MODULE, m->module);
  fc_del(kind, handle);
  free(m);
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuModuleUnload(CUmodule h) {
  ENTER_CTX(FC_cuModuleUnload);
  return unload(FC_cuModuleUnload, h, FC_K_MODULE);
}

CUresult fc_cuLibraryUnload(CUlibrary h) {
  ENTER_LOCKED(FC_cuLibraryUnload);
  return unload(FC_cuLibraryUnload, h, FC_K_LIBRARY);
}

/* The parameters that the name promises, in the kernel's parameter memory. */
static void lay_out(struct fc_function* f) {
  static const struct fc_param id[] = {{0, 8}}, word[] = {{0, 8}, {8, 4}}, sum[] = {{0, 1}, {8, 40}};
  f->n_params = f->stores || f->adds || f->sums ? 2 : f->has_id;
  memcpy(f->params, f->sums ? sum : f->n_params == 2 ? word : id, f->n_params * sizeof f->params[0]);
}

static CUresult get_function(struct image* m, void** out, const char* name) {
  if (!m) return CUDA_ERROR_INVALID_HANDLE;
  if (!out || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  if (!strncmp(name, "missing", 7)) return CUDA_ERROR_NOT_FOUND;
  for (size_t i = 0; i < m->count; i++) {
    if (strcmp(m->functions[i]->name, name) == 0) {
      *out = m->functions[i]->handle;
      return CUDA_SUCCESS;
    }
  }
  struct fc_function* f = calloc(1, sizeof *f);
  f->name = strdup(name);
  f->owner = m->handle;
  f->dur_ns = duration(name);
  f->has_id = strstr(name, "_id") != NULL;
  f->stores = strstr(name, "_store") != NULL;
  f->adds = strstr(name, "_add") != NULL;
  f->sums = strstr(name, "_sum") != NULL;
  lay_out(f);
  f->handle = *out = fc_add(m->library ? FC_K_KERNEL : FC_K_FUNCTION, f);
  m->functions = realloc(m->functions, (m->count + 1) * sizeof *m->functions);
  m->functions[m->count++] = f;
  return CUDA_SUCCESS;
}

/* A kernel's function in the current context. */
static void* kernel_function(struct fc_function* k) {
  if (!k->function) k->function = fc_add(FC_K_FUNCTION, k);
  return k->function;
}

CUresult fc_cuModuleGetFunction(CUfunction* out, CUmodule h, const char* name) {
  ENTER_CTX(FC_cuModuleGetFunction);
  struct image* m = fc_get(FC_K_MODULE, h);
  void* f = NULL;
  CUresult r = get_function(m, out ? &f : NULL, name);
  if (r == CUDA_SUCCESS) *out = m->library ? kernel_function(fc_get(FC_K_KERNEL, f)) : f;
  return fc_leave(r);
}

CUresult fc_cuLibraryGetKernel(CUkernel* out, CUlibrary h, const char* name) {
  ENTER_LOCKED(FC_cuLibraryGetKernel);
  return fc_leave(get_function(fc_get(FC_K_LIBRARY, h), out, name));
}

CUresult fc_cuLibraryGetModule(CUmodule* out, CUlibrary h) {
  ENTER_CTX(FC_cuLibraryGetModule);
  struct image* m = fc_get(FC_K_LIBRARY, h);
  if (!m || !out) return fc_leave(m ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
  if (!m->module) m->module = fc_add(FC_K_MODULE, m);
  *out = m->module;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuLibraryGetKernelCount(unsigned int* out, CUlibrary h) {
  ENTER_LOCKED(FC_cuLibraryGetKernelCount);
  const struct image* m = fc_get(FC_K_LIBRARY, h);
  if (!m || !out) return fc_leave(m ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
  *out = (unsigned)m->count;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuLibraryEnumerateKernels(CUkernel* out, unsigned int n, CUlibrary h) {
  ENTER_LOCKED(FC_cuLibraryEnumerateKernels);
  const struct image* m = fc_get(FC_K_LIBRARY, h);
  if (!m || !out) return fc_leave(m ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
  for (unsigned i = 0; i < n && i < m->count; i++) out[i] = m->functions[i]->handle;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuModuleGetLoadingMode(int* out) {
  ENTER(FC_cuModuleGetLoadingMode);
  *out = 2; /* lazy */
  return CUDA_SUCCESS;
}

/* ---- names and attributes ---- */

struct fc_function* fc_function_find(const void* h) {
  struct fc_function* f = fc_get(FC_K_FUNCTION, h);
  return f ? f : fc_get(FC_K_KERNEL, h);
}

static CUresult name_of(const char** out, const struct fc_function* f) {
  if (!f) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (!out) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  *out = f->name;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuKernelGetName(const char** out, CUkernel h) {
  ENTER_LOCKED(FC_cuKernelGetName);
  return name_of(out, fc_get(FC_K_KERNEL, h));
}

CUresult fc_cuFuncGetName(const char** out, CUfunction h) {
  ENTER_LOCKED(FC_cuFuncGetName);
  return name_of(out, fc_get(FC_K_FUNCTION, h));
}

CUresult fc_cuKernelGetFunction(CUfunction* out, CUkernel h) {
  ENTER_CTX(FC_cuKernelGetFunction);
  struct fc_function* k = fc_get(FC_K_KERNEL, h);
  if (!k || !out) return fc_leave(k ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
  *out = kernel_function(k);
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuKernelGetLibrary(CUlibrary* out, CUkernel h) {
  ENTER_LOCKED(FC_cuKernelGetLibrary);
  const struct fc_function* k = fc_get(FC_K_KERNEL, h);
  if (!k || !out) return fc_leave(k ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
  *out = k->owner;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuFuncGetModule(CUmodule* out, CUfunction h) {
  ENTER_LOCKED(FC_cuFuncGetModule);
  const struct fc_function* f = fc_get(FC_K_FUNCTION, h);
  if (!f || !out) return fc_leave(f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
  struct image* lib = fc_get(FC_K_LIBRARY, f->owner);
  if (lib && !lib->module) lib->module = fc_add(FC_K_MODULE, lib);
  *out = lib ? lib->module : f->owner;
  return fc_leave(CUDA_SUCCESS);
}

static CUresult attribute(int* out, int which, const struct fc_function* f) {
  /* max threads, static shared, const, local, registers, PTX version, binary version */
  static const int known[] = {1024, 256, 0, 0, 32, 90, 90};
  if (!f) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (!out || which < 0) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  *out = which < 7 ? known[which] : which == 8 ? 232448 : 0;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuFuncGetAttribute(int* out, int which, CUfunction h) {
  ENTER_LOCKED(FC_cuFuncGetAttribute);
  return attribute(out, which, fc_function_find(h));
}

CUresult fc_cuKernelGetAttribute(int* out, int which, CUkernel h, CUdevice d) {
  ENTER_LOCKED(FC_cuKernelGetAttribute);
  if (d < 0 || d >= fc_devices) return fc_leave(CUDA_ERROR_INVALID_DEVICE);
  return attribute(out, which, fc_get(FC_K_KERNEL, h));
}

static CUresult param_info(const struct fc_function* f, size_t index, size_t* offset, size_t* size) {
  if (!f) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (!offset || index >= f->n_params) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  *offset = f->params[index].offset;
  if (size) *size = f->params[index].size;
  return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuFuncGetParamInfo(CUfunction h, size_t index, size_t* offset, size_t* size) {
  ENTER_LOCKED(FC_cuFuncGetParamInfo);
  return param_info(fc_get(FC_K_FUNCTION, h), index, offset, size);
}

CUresult fc_cuKernelGetParamInfo(CUkernel h, size_t index, size_t* offset, size_t* size) {
  ENTER_LOCKED(FC_cuKernelGetParamInfo);
  return param_info(fc_get(FC_K_KERNEL, h), index, offset, size);
}

CUresult fc_cuFuncSetAttribute(CUfunction h, int which, int value) {
  (void)which, (void)value;
  ENTER_LOCKED(FC_cuFuncSetAttribute);
  return fc_leave(fc_function_find(h) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult fc_cuKernelSetAttribute(int which, int value, CUkernel h, CUdevice d) {
  (void)which, (void)value, (void)d;
  ENTER_LOCKED(FC_cuKernelSetAttribute);
  return fc_leave(fc_get(FC_K_KERNEL, h) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult fc_cuFuncLoad(CUfunction h) {
  ENTER_LOCKED(FC_cuFuncLoad);
  return fc_leave(fc_function_find(h) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult fc_cuFuncIsLoaded(int* out, CUfunction h) {
  ENTER_LOCKED(FC_cuFuncIsLoaded);
  *out = 1;
  return fc_leave(fc_function_find(h) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult fc_cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, CUfunction h, int block, size_t smem) {
  (void)smem;
  ENTER_LOCKED(FC_cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (!fc_function_find(h)) return fc_leave(CUDA_ERROR_INVALID_HANDLE);
  if (!out || block <= 0) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  *out = block > 1024 ? 0 : 2048 / block;
  return fc_leave(CUDA_SUCCESS);
}

/* ---- launches ---- */

/* The addresses of the parameters in the buffer that `extra` names. */
static CUresult unpack(const struct fc_function* f, void** extra, void** params) {
  char* buffer = NULL;
  size_t size = 0;
  for (; (uint64_t)extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
    if ((uint64_t)extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[1];
    else if ((uint64_t)extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      size = *(size_t*)extra[1];
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < f->n_params; i++) {
    if (!buffer || f->params[i].offset + f->params[i].size > size) return CUDA_ERROR_INVALID_VALUE;
    params[i] = buffer + f->params[i].offset;
  }
  return CUDA_SUCCESS;
}

/* Of "_sum": its byte and the five words behind it. */
static uint64_t sum(void** params) {
  uint64_t words[5], total = *(const uint8_t*)params[0];
  memcpy(words, params[1], sizeof words);
  for (int i = 0; i < 5; i++) total += words[i];
  return total;
}

CUresult fc_kernel_work(int api, const CUDA_KERNEL_NODE_PARAMS* k, struct fc_work* w) {
  const struct fc_function* f = fc_function_find(k->func ? k->func : k->kern);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t threads = (uint64_t)k->blockDimX * k->blockDimY * k->blockDimZ;
  if (!k->gridDimX || !k->gridDimY || !k->gridDimZ || !threads || threads > 1024 || k->sharedMemBytes > 232448)
    return CUDA_ERROR_INVALID_VALUE;
  *w = FC_WORK(api, CU_NODE_KERNEL, FC_OP_KERNEL);
  w->dur_ns = f->dur_ns;
  snprintf(w->detail, sizeof w->detail, "%s", f->name);
  w->kernel = *k;
  w->kernel.kernelParams = w->kernel.extra = NULL;
  void *unpacked[2], **params = k->kernelParams;
  if (k->extra) {
    CUresult r = params ? CUDA_ERROR_INVALID_VALUE : unpack(f, k->extra, unpacked);
    if (r != CUDA_SUCCESS) return r;
    params = unpacked;
  }
  if (params && f->has_id) w->id = *(const uint64_t*)params[0];
  if (params && f->sums) w->id = sum(params);
  if (params && (f->stores || f->adds)) {
    uint64_t dst = *(const uint64_t*)params[0];
    if (!fc_device_range(dst, 4))
      return CUDA_ERROR_INVALID_VALUE; /* the driver would find out later, and lose the context */
    w->fx = (struct fc_fx){
        .kind = f->stores ? FC_FX_WRITE : FC_FX_ADD, .dst = dst, .elem = 4, .value = *(const uint32_t*)params[1]};
  }
  return CUDA_SUCCESS;
}

static CUresult launch(int api, CUstream s, const CUDA_KERNEL_NODE_PARAMS* k, int priority, bool cooperative) {
  struct fc_work w;
  CUresult r = fc_kernel_work(api, k, &w);
  if (r == CUDA_SUCCESS) {
    w.priority = priority;
    w.log_flags = cooperative ? FAKECUDA_CALL_COOPERATIVE : 0;
    r = fc_submit(s, &w, NULL, NULL);
  }
  return fc_leave(r);
}

#define DIMS                                                                                            \
  unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, \
      unsigned int smem

static CUresult do_cuLaunchKernel(int api, CUstream s, CUfunction f, DIMS, void** params, void** extra) {
  ENTER_CTX(api);
  CUDA_KERNEL_NODE_PARAMS k = {f, gx, gy, gz, bx, by, bz, smem, params, extra, NULL, NULL};
  return launch(api, s, &k, -1000, false);
}
BOTH(cuLaunchKernel, (CUfunction f, DIMS, CUstream s, void** params, void** extra), f, gx, gy, gz, bx, by, bz, smem,
     params, extra)

static CUresult do_cuLaunchCooperativeKernel(int api, CUstream s, CUfunction f, DIMS, void** params) {
  ENTER_CTX(api);
  CUDA_KERNEL_NODE_PARAMS k = {f, gx, gy, gz, bx, by, bz, smem, params, NULL, NULL, NULL};
  return launch(api, s, &k, -1000, true);
}
BOTH(cuLaunchCooperativeKernel, (CUfunction f, DIMS, CUstream s, void** params), f, gx, gy, gz, bx, by, bz, smem,
     params)

static CUresult launch_ex(int api, CUstream s, const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  ENTER_CTX(api);
  int priority = -1000;
  bool cooperative = false;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    if (c->attrs[i].id == CU_LAUNCH_ATTR_PRIORITY) priority = c->attrs[i].value.priority;
    if (c->attrs[i].id == CU_LAUNCH_ATTR_COOPERATIVE) cooperative = c->attrs[i].value.cooperative;
    if (c->attrs[i].id == CU_LAUNCH_ATTR_COMPLETION_EVENT)
      return fc_leave(CUDA_ERROR_NOT_SUPPORTED); /* the double has no such moment: say so */
  }
  CUDA_KERNEL_NODE_PARAMS k = {
      f,      c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes,
      params, extra,       NULL,        NULL};
  return launch(api, s, &k, priority, cooperative);
}

CUresult fc_cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  return c ? launch_ex(FC_cuLaunchKernelEx, c->hStream, c, f, params, extra) : CUDA_ERROR_INVALID_VALUE;
}

CUresult fc_cuLaunchKernelEx_ptsz(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  return c ? launch_ex(FC_cuLaunchKernelEx_ptsz, c->hStream ? c->hStream : CU_STREAM_PER_THREAD, c, f, params, extra)
           : CUDA_ERROR_INVALID_VALUE;
}

static CUresult do_cuLaunchHostFunc(int api, CUstream s, CUhostFn fn, void* arg) {
  ENTER_CTX(api);
  if (!fn) return fc_leave(CUDA_ERROR_INVALID_VALUE);
  struct fc_work w = FC_WORK(api, CU_NODE_HOST, FC_OP_EFFECT);
  w.fx = (struct fc_fx){.kind = FC_FX_HOST, .fn = fn, .arg = arg};
  return fc_leave(fc_submit(s, &w, NULL, NULL));
}
BOTH(cuLaunchHostFunc, (CUstream s, CUhostFn fn, void* arg), fn, arg)

/* ---- work ---- */

uint64_t fc_push_work(int stream, const struct fc_work* w, uint64_t log, uint64_t glog) {
  const struct fc_stream* s = &fc_world->streams[stream];
  struct fc_op op = {.kind = (uint8_t)w->kind,
                     .dur_ns = w->dur_ns,
                     .log = log,
                     .glog = glog,
                     .event = w->event,
                     .addr = w->addr,
                     .value = w->value,
                     .wait_flags = w->wait_flags,
                     .priority = w->priority == -1000 ? s->priority : w->priority};
  int sms = s->sm_hi - s->sm_lo;
  if (op.kind == FC_OP_KERNEL && sms < FC_SMS) op.dur_ns = (op.dur_ns * FC_SMS + (uint64_t)sms - 1) / (uint64_t)sms;
  if (op.kind == FC_OP_WAIT_EVENT) {
    const struct fc_event* e = &fc_world->events[w->event];
    if (e->stream < 0) op.kind = FC_OP_EFFECT; /* never recorded: nothing to wait for */
    op.wait_stream = e->stream;
    op.wait_pos = e->pos;
  }
  return fc_push(stream, &op, &w->fx);
}

CUresult fc_submit(CUstream s, struct fc_work* w, uint64_t* pos_out, int* stream_out) {
  int stream = fc_stream_arg(s);
  if (stream < 0) return CUDA_ERROR_INVALID_HANDLE;
  if (fc_capture_implicit(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (fc_capture_status(stream)) {
    fc_log(fc_symbol(w->api), w->detail, w->id, stream, FAKECUDA_CALL_CAPTURED | w->log_flags);
    return fc_capture_add(stream, w);
  }
  uint64_t log = fc_log(fc_symbol(w->api), w->detail, w->id, stream, w->log_flags);
  uint64_t pos = fc_push_work(stream, w, log, 0);
  if (pos_out) *pos_out = pos;
  if (stream_out) *stream_out = stream;
  return CUDA_SUCCESS;
}
