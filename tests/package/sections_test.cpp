// Tests cpp/sections.hpp with a Core of its own: no torch, no Rust, no GPU. Prints what failed; exit status 1 then.
#include "sections.hpp"

#include <cstdio>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

int failures = 0;

#define EXPECT(condition)                                                  \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::printf("%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                          \
    }                                                                      \
  } while (0)

// What the thread's current stream is, and which requests are open; guards work as torch's do: each remembers the
// stream that was current when it was made, and puts that one back.
struct World {
  std::uint64_t current = 1;  // the caller's stream
  std::set<std::uint64_t> open;
  std::map<std::uint64_t, bool> left_ok;
  std::uint64_t next_ctx = 1;
  int guards = 0;
  std::uint64_t give_stream = 0;
  bool enter_fails = false, switch_fails = false, leave_fails = false, restore_fails = false;
};

World* world = nullptr;

struct Fake {
  struct Entered {
    std::uint64_t ctx, stream;
  };
  using Guard = std::uint64_t*;

  static std::uintptr_t current_stream(std::int32_t) { return world->current; }
  static Entered enter(std::int64_t, std::int64_t, std::int32_t, std::uintptr_t caller) {
    EXPECT(caller == world->current);
    if (world->enter_fails) throw std::runtime_error("enter refused");
    world->open.insert(world->next_ctx);
    return {world->next_ctx++, world->give_stream};
  }
  static void leave(std::uint64_t ctx, bool ok) {
    EXPECT(world->open.erase(ctx) == 1);
    world->left_ok[ctx] = ok;
    if (world->leave_fails) throw std::runtime_error("leave refused");
  }
  static Guard switch_to(std::uint64_t stream, std::int32_t) {
    if (world->switch_fails) throw std::runtime_error("switch refused");
    auto* before = new std::uint64_t(world->current);
    world->current = stream;
    ++world->guards;
    return before;
  }
  static void restore(Guard before) {
    world->current = *before;
    delete before;
    --world->guards;
    if (world->restore_fails) throw std::runtime_error("restore refused");
  }
};

using Sections = mosaic::Sections<Fake>;

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

std::int64_t enter_on(Sections& sections, std::uint64_t stream) {
  world->give_stream = stream;
  return sections.enter(7, 0, 0);
}

// A section that does not give the caller its stream back.
void nested_sections_restore_in_turn() {
  Sections sections;
  const auto outer = enter_on(sections, 10);
  const auto inner = enter_on(sections, 20);
  EXPECT(outer > 0 && inner > 0 && outer != inner);
  EXPECT(world->current == 20);
  sections.leave(inner, true);
  EXPECT(world->current == 10);
  sections.leave(outer, false);
  EXPECT(world->current == 1);
  EXPECT(world->left_ok[1] == false && world->left_ok[2] == true);
  EXPECT(world->guards == 0 && sections.open_count() == 0);
}

// Guards restored out of order leave the thread on a job's stream for good.
void out_of_order_leave_ends_on_the_callers_stream() {
  Sections sections;
  const auto outer = enter_on(sections, 10);
  const auto inner = enter_on(sections, 20);
  sections.leave(outer, true);
  EXPECT(world->open.size() == 1);  // the request has ended, although its stream waits for the inner section
  EXPECT(world->current == 20);
  EXPECT(contains(error_of([&] { sections.leave(outer, true); }), "names no open section"));
  sections.leave(inner, true);
  EXPECT(world->current == 1);
  EXPECT(world->guards == 0);
}

// A guard made where the core said that there is nothing to switch.
void stream_zero_makes_no_guard() {
  Sections sections;
  const auto token = enter_on(sections, 0);
  EXPECT(world->guards == 0 && world->current == 1);
  sections.leave(token, true);
  EXPECT(world->open.empty());
}

// A wrong token that is taken for a section, or crashes.
void wrong_tokens_are_errors() {
  Sections sections;
  for (const std::int64_t token : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN}) {
    EXPECT(contains(error_of([&] { sections.leave(token, true); }), "names no open section"));
  }
  EXPECT(contains(error_of([&] { sections.leave(INT64_MAX, true); }), "not of this thread"));
  const auto token = enter_on(sections, 10);
  EXPECT(contains(error_of([&] { sections.leave(token + 1, true); }), "names no open section"));
  sections.leave(token, true);
  EXPECT(contains(error_of([&] { sections.leave(token, true); }), "names no open section"));
}

// A section left by another thread, which would restore that thread's stream instead.
void token_of_another_thread_is_an_error() {
  Sections mine;
  const auto token = enter_on(mine, 10);
  std::string error;
  std::thread([&] {
    Sections theirs;
    error = error_of([&] { theirs.leave(token, true); });
  }).join();
  EXPECT(contains(error, "not of this thread"));
  EXPECT(world->open.size() == 1);
  mine.leave(token, true);
}

// A request that stays open because a later step failed: it would hold all best-effort work.
void failures_leave_nothing_open() {
  Sections sections;
  world->enter_fails = true;
  EXPECT(error_of([&] { enter_on(sections, 10); }) == "enter refused");
  world->enter_fails = false;
  EXPECT(sections.open_count() == 0);

  world->switch_fails = true;
  EXPECT(error_of([&] { enter_on(sections, 10); }) == "switch refused");
  world->switch_fails = false;
  EXPECT(world->open.empty() && sections.open_count() == 0);
  EXPECT(world->left_ok[1] == false);

  const auto token = enter_on(sections, 10);
  world->leave_fails = true;
  world->restore_fails = true;
  EXPECT(error_of([&] { sections.leave(token, true); }) == "leave refused");
  world->leave_fails = world->restore_fails = false;
  EXPECT(world->current == 1 && world->guards == 0 && sections.open_count() == 0);
}

// A thread that ends inside a section and leaves its request open for ever.
void thread_end_closes_its_requests_as_failed() {
  std::thread([] {
    Sections sections;
    enter_on(sections, 0);
    const auto left = enter_on(sections, 0);
    sections.leave(left, true);
  }).join();
  EXPECT(world->open.empty());
  EXPECT(world->left_ok[1] == false && world->left_ok[2] == true);
}

}  // namespace

int main() {
  void (*const tests[])() = {
      nested_sections_restore_in_turn,
      out_of_order_leave_ends_on_the_callers_stream,
      stream_zero_makes_no_guard,
      wrong_tokens_are_errors,
      token_of_another_thread_is_an_error,
      failures_leave_nothing_open,
      thread_end_closes_its_requests_as_failed,
  };
  for (const auto test : tests) {
    World fresh;
    world = &fresh;
    test();
  }
  return failures == 0 ? 0 : 1;
}
