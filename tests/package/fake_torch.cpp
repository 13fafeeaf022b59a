// A torch without CUDA: the few functions that the extension needs to register its ops, and a main that calls one.
// argv[1] is libmosaic.so. Prints the error that mosaic::enter gave.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>

namespace {
void (*enter_kernel)(std::uint64_t*, std::uint64_t, std::uint64_t) = nullptr;
int schemas = 0;
}  // namespace

extern "C" {
std::uint64_t aoti_torch_abi_version() { return (2ULL << 56) | (10ULL << 48); }
int aoti_torch_library_init_def(const char*, const char*, std::uint32_t, void** library) {
  *library = nullptr;
  return 0;
}
int aoti_torch_library_init_impl(const char*, const char*, const char*, std::uint32_t, void** library) {
  *library = nullptr;
  return 0;
}
int aoti_torch_library_def(void*, const char*) {
  ++schemas;
  return 0;
}
int torch_library_impl(void*, const char* name, void (*kernel)(std::uint64_t*, std::uint64_t, std::uint64_t),
                       std::uint64_t) {
  if (std::strcmp(name, "enter") == 0) enter_kernel = kernel;
  return 0;
}
int aoti_torch_delete_library_object(void*) { return 0; }
}

int main(int, char** argv) {
  if (dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) == nullptr) {
    std::printf("dlopen: %s\n", dlerror());
    return 1;
  }
  if (schemas != 2 || enter_kernel == nullptr) {
    std::printf("%d schemas registered, expected 2\n", schemas);
    return 1;
  }
  std::uint64_t stack[3] = {1, 0, 0};
  try {
    enter_kernel(stack, 3, 1);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  std::printf("enter succeeded without CUDA\n");
  return 1;
}
