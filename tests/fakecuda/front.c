/* What a tool puts before libcuda under its name: a few functions of its own, and cuGetProcAddress that leads past them. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

static void* behind(const char* name) {
  void* library = dlopen(getenv("FAKECUDA_BEHIND"), RTLD_NOW);
  return library ? dlsym(library, name) : NULL;
}

EXPORT int cuInit(unsigned flags) { return ((int (*)(unsigned))behind("cuInit"))(flags); }

EXPORT int cuGetProcAddress_v2(const char* name, void** out, int version, uint64_t flags, int* status) {
  return ((int (*)(const char*, void**, int, uint64_t, int*))behind("cuGetProcAddress_v2"))(name, out, version, flags, status);
}
