/* What a tool puts before libcuda under its name: a few functions of its own, and cuGetProcAddress that leads past them. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

/* Launches that came this way. */
EXPORT uint64_t front_launches;
__attribute__((used)) static void *launch, *cooperative;

static void* behind(const char* name) {
  void* library = dlopen(getenv("FAKECUDA_BEHIND"), RTLD_NOW);
  return library ? dlsym(library, name) : NULL;
}

__attribute__((constructor)) static void find(void) {
  launch = behind("cuLaunchKernel");
  cooperative = behind("cuLaunchCooperativeKernel");
}

EXPORT int cuInit(unsigned flags) { return ((int (*)(unsigned))behind("cuInit"))(flags); }

EXPORT int cuGetProcAddress_v2(const char* name, void** out, int version, uint64_t flags, int* status) {
  return ((int (*)(const char*, void**, int, uint64_t, int*))behind("cuGetProcAddress_v2"))(name, out, version, flags, status);
}

/* Whoever opens it takes it for the double. */
EXPORT size_t fakecuda_call_size(void) { return ((size_t(*)(void))behind("fakecuda_call_size"))(); }

/* Begins as Nsight Compute's. */
__asm__(
    ".text\n.globl cuLaunchKernel\n.type cuLaunchKernel, @function\n.p2align 4\n"
    "cuLaunchKernel:\n"
    "  push %r12\n"
    "  pxor %xmm0, %xmm0\n"
    "  pop %r12\n"
    "  mov front_launches@GOTPCREL(%rip), %rax\n"
    "  lock incq (%rax)\n"
    "  jmp *launch(%rip)\n"
    ".size cuLaunchKernel, .-cuLaunchKernel\n"
    /* Begins as nothing that may be moved does. */
    ".globl cuLaunchCooperativeKernel\n.type cuLaunchCooperativeKernel, @function\n.p2align 4\n"
    "cuLaunchCooperativeKernel:\n"
    "  nopl 0x12345678(%rax)\n"
    "  jmp *cooperative(%rip)\n"
    ".size cuLaunchCooperativeKernel, .-cuLaunchCooperativeKernel\n");
