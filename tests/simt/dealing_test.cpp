// SPDX-License-Identifier: Apache-2.0
// Splits dealt out by variants/device/dealt_splits.cuh against brute force, over many lists of
// lengths.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tests/simt/dealing_test_kernels.h"

namespace muse::simt_test {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t units_of(int64_t keys) { return std::max<int64_t>(1, ceil_div(keys, kUnitKeys)); }

struct Case {
  std::vector<int32_t> keys;  // of each request
  int ctas, warps;
};

std::vector<DealtKeys> deal(const Case& given) {
  std::vector<DealtKeys> dealt(static_cast<size_t>(given.ctas));
  const DealingArgs args{given.keys.data(), static_cast<int32_t>(given.keys.size()), dealt.data()};
  simt::launch(deal_splits_kernel(given.warps), &args,
               {{static_cast<unsigned>(given.ctas)}, {static_cast<unsigned>(given.warps) * 32}}, 1);
  return dealt;
}

/// How many CTAs pieces of `size` units take.
int64_t ctas_at(const Case& given, int64_t size) {
  int64_t sum = 0;
  for (const int32_t keys : given.keys) {
    sum += std::min<int64_t>(capacity_of(given.warps), ceil_div(units_of(keys), size));
  }
  return sum;
}

/// The smallest size, no smaller than a unit to each warp, that takes no more CTAs than there are.
int64_t best_size(const Case& given) {
  int64_t low = given.warps, high = int64_t{1} << 30;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ctas_at(given, middle) <= given.ctas) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// What the best size may be missed by: the distance between sizes that are tried.
int64_t tolerance(const Case& given) {
  int64_t all = 0;
  for (const int32_t keys : given.keys) all += units_of(keys);
  const auto requests = static_cast<int64_t>(given.keys.size());
  const int64_t enough = ceil_div(all, std::max<int64_t>(1, given.ctas - requests));
  return (enough - all / given.ctas) / 15 + 2;
}

/// Every key of every request once, in whole units, by no more pieces than allowed.
void expect_whole(const Case& given, const std::vector<DealtKeys>& dealt) {
  std::map<std::pair<int, int>, DealtKeys> pieces;
  for (const DealtKeys& piece : dealt) {
    if (piece.count == 0) continue;
    ASSERT_TRUE(pieces.emplace(std::pair{piece.request, piece.index}, piece).second);
  }
  auto next = pieces.begin();
  for (size_t request = 0; request < given.keys.size(); ++request) {
    const int32_t keys = given.keys[request];
    ASSERT_TRUE(next != pieces.end());
    const int32_t count = next->second.count;
    EXPECT_GE(count, 1);
    EXPECT_LE(count, capacity_of(given.warps));
    EXPECT_LE(count, ceil_div(units_of(keys), given.warps));
    auto end = static_cast<int32_t>(request);
    for (int32_t index = 0; index < count; ++index, ++next) {
      ASSERT_TRUE(next != pieces.end());
      const DealtKeys& piece = next->second;
      ASSERT_EQ(piece.request, static_cast<int32_t>(request));
      ASSERT_EQ(piece.index, index);
      ASSERT_EQ(piece.count, count);
      ASSERT_EQ(piece.total, static_cast<int32_t>(pieces.size()));
      ASSERT_EQ(piece.begin, end);
      EXPECT_TRUE(index + 1 == count || (piece.end - piece.begin) % kUnitKeys == 0);
      EXPECT_TRUE(piece.end > piece.begin || keys == 0);
      end = piece.end;
    }
    EXPECT_EQ(end, static_cast<int32_t>(request) + keys);
  }
  EXPECT_TRUE(next == pieces.end());
}

/// No piece longer than the longest at the best size, but for what is allowed for the search.
void expect_even(const Case& given, const std::vector<DealtKeys>& dealt) {
  const int64_t size = best_size(given);
  int64_t best = 0, longest = 0;
  for (const int32_t keys : given.keys) {
    const int64_t units = units_of(keys);
    const int64_t pieces = std::min<int64_t>(capacity_of(given.warps), ceil_div(units, size));
    best = std::max(best, ceil_div(units, pieces));
  }
  for (const DealtKeys& piece : dealt) {
    if (piece.count > 0) longest = std::max(longest, units_of(piece.end - piece.begin));
  }
  EXPECT_LE(longest, best + tolerance(given));
}

void expect_right(const Case& given) {
  const std::vector<DealtKeys> dealt = deal(given);
  ASSERT_NO_FATAL_FAILURE(expect_whole(given, dealt));
  expect_even(given, dealt);
}

/// One of several kinds of batches.
std::vector<int32_t> lengths(std::mt19937_64& random, int requests, int kind) {
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % n); };
  std::vector<int32_t> keys(static_cast<size_t>(requests));
  const int32_t same = 1 + below(40000);
  for (int32_t& each : keys) {
    if (kind == 0) each = same;
    if (kind == 1) each = below(10000);
    if (kind == 2) each = below(8) == 0 ? 30000 + below(100000) : 1 + below(600);
    if (kind == 3) each = (1 << below(20)) + below(3) - 1;
    if (kind == 4) each = 1 + below(40);
  }
  if (kind == 2) keys[random() % keys.size()] = 131072;
  return keys;
}

TEST(DealtSplits, CoverEveryKeyOnceWhateverTheLengths) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    const int warps = std::vector{4, 8, 12}[random() % 3];
    const int most = i % 10 == 0 ? 1024 : i % 3 == 0 ? 300 : 40;
    const auto requests = static_cast<int>(1 + random() % most);
    const Case given{lengths(random, requests, i % 5),
                     requests + static_cast<int>(random() % 3 == 0 ? random() % 4 : random() % 300),
                     warps};
    SCOPED_TRACE(testing::Message() << "case " << i << ": " << requests << " requests, "
                                    << given.ctas << " CTAs of " << warps << " warps");
    ASSERT_NO_FATAL_FAILURE(expect_right(given));
  }
}

TEST(DealtSplits, CutEqualRequestsAsEvenlyAsCtasAllow) {
  for (const auto& [requests, ctas, splits] :
       {std::tuple{128, 396, 3}, {128, 264, 2}, {32, 396, 12}, {8, 396, 49}, {128, 128, 1}}) {
    for (const DealtKeys& piece :
         deal({std::vector<int32_t>(static_cast<size_t>(requests), 32768), ctas, 4})) {
      EXPECT_TRUE(piece.count == splits || piece.count == 0) << requests << ": " << piece.count;
    }
  }
}

TEST(DealtSplits, GiveOneLongRequestWhatManyShortOnesLeave) {
  std::vector<int32_t> keys(128, 512);
  keys[77] = 131072;
  for (const DealtKeys& piece : deal({keys, 264, 8})) {
    EXPECT_TRUE(piece.request == 77 ? piece.count >= 130 : piece.count <= 1) << piece.count;
  }
}

TEST(DealtSplits, TakeTheLongestContextsThereAre) {
  const std::vector<int32_t> keys{1 << 30, 1, (1 << 30) - 17, 0, 12345};
  expect_right({keys, 396, 4});
}

}  // namespace
}  // namespace muse::simt_test
