// The PyTorch ops mosaic::enter and mosaic::leave. They only translate: torch's streams on one side, the Rust core
// (through the cxx bridge) on the other. Which stream a call runs on is decided in Rust, and assigned here.
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "mosaic-torch/rust/bridge.rs.h"
#include "sections.hpp"

// These live in libtorch_cuda.so alone. Weak, so that the extension loads into a torch without CUDA and says so there.
extern "C" {
__attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(std::int32_t, void**);
__attribute__((weak)) AOTITorchError aoti_torch_create_cuda_stream_guard(void*, std::int32_t, CUDAStreamGuardHandle*);
__attribute__((weak)) AOTITorchError aoti_torch_delete_cuda_stream_guard(CUDAStreamGuardHandle);
}

namespace {

struct TorchAndRust {
  using Guard = CUDAStreamGuardHandle;

  static std::uintptr_t current_stream(std::int32_t device) {
    if (aoti_torch_get_current_cuda_stream == nullptr || aoti_torch_create_cuda_stream_guard == nullptr ||
        aoti_torch_delete_cuda_stream_guard == nullptr) {
      throw std::runtime_error("mosaic: this torch was built without CUDA: a job needs a CUDA build, 2.10 or newer");
    }
    // Before torch is asked: on a machine without a driver torch would print a back trace of its own.
    mosaic::bridge::require_device(device);
    void* stream = nullptr;
    check(aoti_torch_get_current_cuda_stream(device, &stream), "tell the current stream", device);
    return reinterpret_cast<std::uintptr_t>(stream);
  }

  static mosaic::bridge::Entered enter(std::int64_t job, std::int64_t request, std::int32_t device,
                                       std::uintptr_t caller_stream) {
    return mosaic::bridge::enter(job, request, device, caller_stream);
  }

  static void leave(std::uint64_t ctx, bool ok) { mosaic::bridge::leave(ctx, ok); }

  static Guard switch_to(std::uint64_t stream, std::int32_t device) {
    Guard guard = nullptr;
    check(aoti_torch_create_cuda_stream_guard(reinterpret_cast<void*>(stream), device, &guard),
          "switch to the job's stream", device);
    return guard;
  }

  static void restore(Guard guard) {
    if (aoti_torch_delete_cuda_stream_guard(guard) != AOTI_TORCH_SUCCESS) {
      throw std::runtime_error("mosaic: torch could not put the caller's stream back; its own message is on stderr");
    }
  }

 private:
  static void check(AOTITorchError error, const char* what, std::int32_t device) {
    if (error != AOTI_TORCH_SUCCESS) {
      throw std::runtime_error("mosaic: torch could not " + std::string(what) + " of device " + std::to_string(device) +
                               "; its own message is on stderr");
    }
  }
};

mosaic::Sections<TorchAndRust>& sections() {
  thread_local mosaic::Sections<TorchAndRust> of_this_thread;
  return of_this_thread;
}

std::int64_t enter(std::int64_t job, std::int64_t request, std::int64_t device) {
  if (device < 0 || device > std::numeric_limits<std::int32_t>::max()) {
    throw std::runtime_error("mosaic: device " + std::to_string(device) + " is no device index: expected 0, 1, ...");
  }
  return sections().enter(job, request, static_cast<std::int32_t>(device));
}

void leave(std::int64_t token, bool ok) { sections().leave(token, ok); }

}  // namespace

STABLE_TORCH_LIBRARY(mosaic, m) {
  // Not for use inside a compiled region: the compiler would drop them as dead code (no tensor goes in or out).
  m.def("enter(int job, int request, int device) -> int");
  m.def("leave(int token, bool ok) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mosaic, CompositeExplicitAutograd, m) {
  m.impl("enter", TORCH_BOX(&enter));
  m.impl("leave", TORCH_BOX(&leave));
}
