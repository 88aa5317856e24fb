// SPDX-License-Identifier: Apache-2.0
// A run asks for no memory, whether it succeeds or not.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fakes/sanitized.h"
#include "tests/variants/runtime_table.h"

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

// Counted in the whole program.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
extern "C" {
void* __libc_malloc(size_t bytes);                      // NOLINT: glibc's name
void* __libc_calloc(size_t count, size_t bytes);        // NOLINT
void* __libc_realloc(void* memory, size_t bytes);       // NOLINT
void* __libc_memalign(size_t alignment, size_t bytes);  // NOLINT
void* aligned_alloc(size_t alignment, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
void* malloc(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, bytes);
}
}
constexpr bool kCounted = true;
#else
constexpr bool kCounted = false;
#endif

namespace muse::runtime {

const LinkedTable& linked_table() {
  static const SmallTable table;
  return table.linked;
}

namespace {

/// Allocations of a call.
template <class Call>
int64_t counted(const Call& call) {
  const int64_t before = allocations.load();
  call();
  return allocations.load() - before;
}

TEST(RuntimeAllocation, CountsAllocations) {
  if (!kCounted) GTEST_SKIP() << "malloc is another library's here";
  std::string text;
  EXPECT_GT(counted([&] { text.assign(99, 'x'); }), 0);
}

TEST(RuntimeAllocation, RunAllocatesNothingNotEvenTheFirst) {
  if (!kCounted) GTEST_SKIP() << "malloc is another library's here";
  for (const int64_t context : {kContext, MUSE_ATTENTION_ANY_CONTEXT}) {
    for (const int64_t batch : {1, 2, 16}) {
      Served served(uniform_shape(batch, kContext), context);
      EXPECT_EQ(counted([&] { ASSERT_TRUE(served.run()); }), 0) << batch;
      EXPECT_EQ(counted([&] { ASSERT_TRUE(served.run()); }), 0) << batch;
      EXPECT_EQ(served.failure(), "");
    }
  }
}

TEST(RuntimeAllocation, ARunThatIsRefusedAllocatesNothing) {
  if (!kCounted) GTEST_SKIP() << "malloc is another library's here";
  Served served(uniform_shape(1, kContext), kContext);
  const muse_attention_buffers good = served.buffers();
  muse_attention_buffers bad = good;
  bad.out = nullptr;
  const size_t bytes = served.plan.workspace_bytes();
  std::byte* const workspace = served.workspace->get();
  const auto refused = [&](const muse_attention_buffers& buffers, size_t size) {
    EXPECT_NE(muse_attention_run(served.plan.get(), &buffers, workspace, size, nullptr),
              MUSE_ATTENTION_OK);
  };
  EXPECT_EQ(counted([&] { refused(bad, bytes); }), 0);
  EXPECT_EQ(counted([&] { refused(good, 0); }), 0);
}

}  // namespace
}  // namespace muse::runtime
