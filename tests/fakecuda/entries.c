/* The exported entry points, look-up by name, initialisation, handles. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#ifndef __x86_64__
#error "the double's entry points are written for x86-64"
#endif

/*
 * An entry point is 16-byte aligned and begins with the ten bytes that libcuda 580's begin with (push rbp; mov rbp,rsp;
 * push r12; sub rsp,8), so that a detour meets what it meets on a GPU machine. It undoes them and jumps to the C body.
 * FC_ODD_PROLOGUE: another driver, whose first instruction cannot be moved (it is relative to rip).
 */
#ifdef FC_ODD_PROLOGUE
#define PROLOGUE "lea rax, [rip + 0x10]\n"
#else
#define PROLOGUE                                                                                                       \
    "push rbp\n.cfi_def_cfa_offset 16\n.cfi_offset rbp, -16\n"                                                         \
    ".byte 0x48, 0x89, 0xe5\n" /* mov rbp, rsp */                                                                      \
    "push r12\n.cfi_def_cfa_offset 24\n.cfi_offset r12, -24\n"                                                         \
    "sub rsp, 8\n.cfi_def_cfa_offset 32\n"                                                                             \
    "add rsp, 8\n.cfi_def_cfa_offset 24\n"                                                                             \
    "pop r12\n.cfi_def_cfa_offset 16\n"                                                                                \
    "pop rbp\n.cfi_def_cfa_offset 8\n"
#endif

#define E(symbol, base, since)                                                                                         \
    __asm__(".intel_syntax noprefix\n"                                                                                 \
            ".text\n"                                                                                                  \
            ".p2align 4\n"                                                                                             \
            ".globl " #symbol "\n"                                                                                     \
            ".type " #symbol ", @function\n" #symbol ":\n"                                                             \
            ".cfi_startproc\n" PROLOGUE "jmp fc_" #symbol "\n"                                                         \
            ".cfi_endproc\n"                                                                                           \
            ".size " #symbol ", . - " #symbol "\n"                                                                     \
            ".att_syntax prefix\n");                                                                                   \
    extern void symbol(void) __attribute__((visibility("default")));
#include "entries.def"
#undef E

static const struct {
    const char *symbol, *base;
    int since;
    void (*address)(void);
} entries[] = {
#define E(symbol, base, since) {#symbol, #base, since, symbol},
#include "entries.def"
#undef E
};

static struct {
    int64_t calls;
    int fail, skip;
} state[FC_API_COUNT];

static int init_state; /* 0 not yet, 1 done, 2 in a child that was forked after it was done */
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

const char *fc_symbol(int api) { return entries[api].symbol; }
bool fc_usable(void) { return __atomic_load_n(&init_state, __ATOMIC_ACQUIRE) == 1; }

CUresult fc_enter(int api)
{
    __atomic_add_fetch(&state[api].calls, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&state[api].fail, __ATOMIC_RELAXED) &&
        __atomic_fetch_sub(&state[api].skip, 1, __ATOMIC_RELAXED) == 0) {
        int r = state[api].fail;
        __atomic_store_n(&state[api].fail, 0, __ATOMIC_RELAXED);
        return r;
    }
    return fc_usable() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static void in_child(void)
{
    if (init_state == 1)
        init_state = 2; /* as the driver: a child cannot use what its parent initialised */
    pthread_mutex_init(&init_lock, NULL);
}

CUresult fc_init(void)
{
    CUresult r = CUDA_SUCCESS;
    const char *n = getenv("FAKECUDA_DEVICES");
    int devices = n ? atoi(n) : 1;
    if (devices <= 0)
        return CUDA_ERROR_NO_DEVICE;
    pthread_mutex_lock(&init_lock);
    if (init_state == 2)
        r = CUDA_ERROR_NOT_INITIALIZED;
    if (init_state == 0) {
        fc_devices = devices < FC_MAX_DEVICES ? devices : FC_MAX_DEVICES;
        r = fc_engine_start();
        if (r == CUDA_SUCCESS) {
            pthread_atfork(NULL, NULL, in_child);
            __atomic_store_n(&init_state, 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&init_lock);
    return r;
}

/* ---- handles ---- */

static struct {
    void **objects;
    int *freed; /* indices to give out again, last first */
    int used, room, n_freed;
} tables[FC_K_COUNT];

#define HANDLE_BASE 0x700000000000ull

void *fc_handle(enum fc_kind kind, int index)
{
    return (void *)(HANDLE_BASE | (uint64_t)kind << 36 | ((uint64_t)index + 1) << 4);
}

int fc_index(enum fc_kind kind, const void *handle)
{
    uint64_t h = (uint64_t)handle;
    if ((h & ~0xfffffffffull) != (HANDLE_BASE | (uint64_t)kind << 36) || (h & 15) || (h & 0xfffffffffull) < 16)
        return -1;
    uint64_t i = ((h & 0xfffffffffull) >> 4) - 1;
    return i < INT32_MAX ? (int)i : -1;
}

void *fc_add(enum fc_kind kind, void *object)
{
    int i;
    if (tables[kind].n_freed) {
        i = tables[kind].freed[--tables[kind].n_freed];
    } else {
        if (tables[kind].used == tables[kind].room) {
            tables[kind].room = tables[kind].room ? tables[kind].room * 2 : 64;
            tables[kind].objects = realloc(tables[kind].objects, (size_t)tables[kind].room * sizeof(void *));
            tables[kind].freed = realloc(tables[kind].freed, (size_t)tables[kind].room * sizeof(int));
        }
        i = tables[kind].used++;
    }
    tables[kind].objects[i] = object;
    return fc_handle(kind, i);
}

void *fc_get(enum fc_kind kind, const void *handle)
{
    int i = fc_index(kind, handle);
    return i >= 0 && i < tables[kind].used ? tables[kind].objects[i] : NULL;
}

void fc_del(enum fc_kind kind, const void *handle)
{
    int i = fc_index(kind, handle);
    if (i < 0 || i >= tables[kind].used || !tables[kind].objects[i])
        return;
    tables[kind].objects[i] = NULL;
    tables[kind].freed[tables[kind].n_freed++] = i;
}

/* ---- look-up ---- */

static bool per_thread_form(const char *symbol)
{
    size_t n = strlen(symbol);
    return n > 5 && strcmp(symbol + n - 5, "_ptsz") == 0;
}

/* The newest form of `name` at that version; `flags` 2 prefers the per-thread form. status: 0 found, 1 unknown, 2 newer. */
static void *look_up(const char *name, int version, uint64_t flags, int *status)
{
    int best = -1;
    bool known = false;
    for (int i = 0; i < FC_API_COUNT; i++) {
        if (strcmp(entries[i].base, name) != 0)
            continue;
        known = true;
        bool thread = per_thread_form(entries[i].symbol);
        if (entries[i].since > version || (thread && !(flags & 2)))
            continue;
        if (best < 0 || (thread && !per_thread_form(entries[best].symbol)) ||
            (thread == per_thread_form(entries[best].symbol) && entries[i].since >= entries[best].since))
            best = i;
    }
    *status = best >= 0 ? 0 : known ? 2 : 1;
    return best >= 0 ? (void *)entries[best].address : NULL;
}

CUresult fc_cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    int s;
    fc_enter(FC_cuGetProcAddress_v2);
    if (!name || !out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = look_up(name, version, flags, &s);
    if (status)
        *status = s;
    return s == 0 || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult fc_cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    int s;
    fc_enter(FC_cuGetProcAddress);
    if (!name || !out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = look_up(name, version, flags, &s);
    return s == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static const struct {
    CUresult code;
    const char *name, *text;
} results[] = {
#define X(name, value, text) {value, #name, text},
    FC_RESULTS(X)
#undef X
};

static CUresult describe_error(CUresult code, const char **out, bool text)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        if (results[i].code == code)
            *out = text ? results[i].text : results[i].name;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fc_cuGetErrorName(CUresult code, const char **out)
{
    fc_enter(FC_cuGetErrorName);
    return describe_error(code, out, false);
}

CUresult fc_cuGetErrorString(CUresult code, const char **out)
{
    fc_enter(FC_cuGetErrorString);
    return describe_error(code, out, true);
}

/* ---- control ---- */

static int api_of(const char *symbol)
{
    for (int i = 0; symbol && i < FC_API_COUNT; i++)
        if (strcmp(entries[i].symbol, symbol) == 0)
            return i;
    return -1;
}

__attribute__((visibility("default"))) int64_t fakecuda_call_count(const char *symbol)
{
    int api = api_of(symbol);
    return api < 0 ? -1 : __atomic_load_n(&state[api].calls, __ATOMIC_RELAXED);
}

__attribute__((visibility("default"))) int fakecuda_fail(const char *symbol, int result, unsigned skip)
{
    int api = api_of(symbol);
    if (api < 0)
        return 0;
    __atomic_store_n(&state[api].skip, (int)skip, __ATOMIC_RELAXED);
    __atomic_store_n(&state[api].fail, result, __ATOMIC_RELAXED);
    return 1;
}

__attribute__((visibility("default"))) const char *const *fakecuda_symbols(void)
{
    static const char *names[FC_API_COUNT + 1];
    for (int i = 0; i < FC_API_COUNT; i++)
        names[i] = entries[i].symbol;
    return names;
}
