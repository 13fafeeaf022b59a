// The sections (enter ... leave) that a thread has open. Knows neither torch nor Rust: `Core` supplies them, so that
// the bookkeeping is tested without either (tests/package/sections_test.cpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace mosaic {

// `Core` has these static functions; those that can fail throw.
//   std::uintptr_t current_stream(std::int32_t device)
//   Entered enter(std::int64_t job, std::int64_t request, std::int32_t device, std::uintptr_t caller_stream)
//     with Entered{std::uint64_t ctx, std::uint64_t stream}; stream 0 = the thread is on the job's stream already
//   void leave(std::uint64_t ctx, bool ok)
//   Guard switch_to(std::uint64_t stream, std::int32_t device)   makes `stream` the thread's current one
//   void restore(Guard)                                           and puts back the one before
// with `using Guard = <a pointer>`.
template <class Core>
class Sections {
 public:
  Sections() = default;
  Sections(const Sections&) = delete;
  Sections& operator=(const Sections&) = delete;

  // A thread that ends inside a section ends its request as failed: an HP request that nobody closes would hold all
  // best-effort work. The streams stay as they are: they end with the thread, and torch's may be gone already.
  ~Sections() {
    for (const Section& section : open_) {
      if (!section.left) leave_quietly(section.ctx);
    }
  }

  // Enters and returns the token that `leave` takes, on this thread.
  std::int64_t enter(std::int64_t job, std::int64_t request, std::int32_t device) {
    // Room first: after Core::enter nothing but the switch may fail.
    if (open_.size() == open_.capacity()) open_.reserve(2 * open_.size() + 8);
    const auto entered = Core::enter(job, request, device, Core::current_stream(device));
    typename Core::Guard guard = nullptr;
    if (entered.stream != 0) {
      try {
        guard = Core::switch_to(entered.stream, device);
      } catch (...) {
        leave_quietly(entered.ctx);
        throw;
      }
    }
    open_.push_back({next_token(), entered.ctx, guard, false});
    return open_.back().token;
  }

  // Leaves the section. The token is spent and the stream put back even when Core::leave fails.
  void leave(std::int64_t token, bool ok) {
    Section& section = find(token);
    section.left = true;
    try {
      Core::leave(section.ctx, ok);
    } catch (...) {
      try {
        unwind();
      } catch (...) {  // the first failure is the one to tell
      }
      throw;
    }
    unwind();
  }

  std::size_t open_count() const noexcept { return open_.size(); }

 private:
  struct Section {
    std::int64_t token;
    std::uint64_t ctx;
    typename Core::Guard guard;
    bool left;
  };

  // A token is (thread << 40 | number in the thread): it says whose it is without a table that threads share.
  static constexpr int kNumberBits = 40;
  static constexpr std::int64_t kNumberMask = (std::int64_t{1} << kNumberBits) - 1;
  static constexpr std::int64_t kThreadMask = (std::int64_t{1} << 23) - 1;

  std::int64_t next_token() noexcept {
    number_ = number_ == kNumberMask ? 1 : number_ + 1;
    return thread_ << kNumberBits | number_;
  }

  static std::int64_t next_thread() noexcept {
    static std::atomic<std::int64_t> threads{0};
    return threads.fetch_add(1, std::memory_order_relaxed) & kThreadMask;
  }

  Section& find(std::int64_t token) {
    for (auto section = open_.rbegin(); section != open_.rend(); ++section) {
      if (section->token == token && !section->left) return *section;
    }
    const std::string name = "mosaic: token " + std::to_string(token);
    if (token > 0 && token >> kNumberBits != thread_) {
      throw std::runtime_error(name + " is not of this thread: call leave on the thread that called enter");
    }
    throw std::runtime_error(name + " names no open section: it was left already, or enter never returned it");
  }

  // Puts streams back, innermost first. A section left out of order (a generator closed late) waits for those entered
  // after it: restoring it now would be undone by them, and would leave the thread on a job's stream for good.
  void unwind() {
    while (!open_.empty() && open_.back().left) {
      const auto guard = open_.back().guard;
      open_.pop_back();
      if (guard != nullptr) Core::restore(guard);
    }
  }

  static void leave_quietly(std::uint64_t ctx) noexcept {
    try {
      Core::leave(ctx, false);
    } catch (...) {  // there is nobody to tell
    }
  }

  const std::int64_t thread_ = next_thread();
  std::int64_t number_ = 0;
  std::vector<Section> open_;
};

}  // namespace mosaic
