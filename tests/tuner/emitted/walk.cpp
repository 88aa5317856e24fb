// SPDX-License-Identifier: Apache-2.0
// Asks an emitted header a million things, sensible and hostile, and answers each by a walk over
// all rows that shares nothing with the lookup but the rounding of logarithms, which is checked
// first.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <vector>

#include "muse_dispatch.h"

const void* other_rows();
namespace d = muse::dispatch;

namespace {

std::mt19937_64 random_bits(7);

std::int64_t below(std::int64_t bound) {
  return static_cast<std::int64_t>(random_bits() % static_cast<std::uint64_t>(bound));
}

bool same(const d::Key& a, const d::Key& b) {
  return a.batch == b.batch && a.q_len == b.q_len && a.num_q_heads == b.num_q_heads &&
         a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim &&
         a.page_size == b.page_size && a.window == b.window && a.rope == b.rope &&
         a.scaled == b.scaled && a.context == b.context;
}

/// 0 to 6.
int page_class(std::int64_t size) {
  int result = -1;
  for (std::int64_t least : {1, 2, 4, 8, 16, 32, 64}) result += size >= least ? 1 : 0;
  return result;
}

bool same_structure(const d::Key& a, const d::Key& b) {
  return a.num_q_heads == b.num_q_heads && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim && page_class(a.page_size) == page_class(b.page_size) &&
         (a.window > 0) == (b.window > 0) && a.rope == b.rope && a.scaled == b.scaled;
}

bool is_none(const d::Key& key, bool contexts) {
  const std::int64_t most = (std::int64_t{1} << 31) - 1;
  for (std::int64_t size :
       {key.batch, key.q_len, key.num_q_heads, key.num_kv_heads, key.head_dim, key.page_size}) {
    if (size < 1 || size > most) return true;
  }
  if (key.window < 0 || key.window > most || key.num_q_heads % key.num_kv_heads != 0) return true;
  return contexts && (key.context < key.q_len || key.context > most);
}

/// Two logarithms' distance by an axis; negative where it must be equal and is not.
std::int64_t apart(const d::Axis& axis, std::int64_t a, std::int64_t b) {
  if (axis.exact) return a == b ? 0 : -1;
  return std::int64_t{axis.weight} * std::abs(d::detail::log2_fixed(a) - d::detail::log2_fixed(b));
}

/// Negative where they differ on an axis that is to be exact.
std::int64_t distance(const d::Key& a, const d::Key& b, bool contexts) {
  const std::int64_t q_len = apart(d::kRules.q_len, a.q_len, b.q_len);
  const std::int64_t batch = apart(d::kRules.batch, a.batch, b.batch);
  const std::int64_t context = contexts ? apart(d::kRules.context, a.context, b.context) : 0;
  if (q_len < 0 || batch < 0 || context < 0) return -1;
  return q_len + batch + context;
}

constexpr int kMostPipelines = 64;
/// Of a pipeline on a row; negative where it was not measured.
long loss(const d::Table& table, int row, int pipeline) {
  for (int i = 0; i < table.group_count; ++i) {
    const d::Group& group = table.groups[i];
    const int first = table.lines[group.first].first, end = table.lines[group.end - 1].end;
    if (row < first || row >= end) continue;
    const long choices = group.end_choice - group.first_choice;
    for (int c = 0; c < choices; ++c) {
      if (table.choices[group.first_choice + c] != pipeline) continue;
      const long found = table.losses[group.first_loss + (row - first) * choices + c];
      return found == 65535 ? -1 : found;
    }
  }
  return -1;
}

/// A row that may answer or help to.
struct Reached {
  int row;
  std::int64_t distance;
  int mismatch;
  bool operator<(const Reached& other) const {
    if (distance != other.distance) return distance < other.distance;
    if (mismatch != other.mismatch) return mismatch < other.mismatch;
    return row < other.row;
  }
};

/// The nearest of those that lie so: not above the key's batch or not below it, the same of
/// context.
std::vector<Reached> around(const d::Table& table, const d::Key& key,
                            const std::vector<Reached>& by_distance) {
  std::vector<Reached> found;
  for (const int batch_side : {-1, 1}) {
    for (const int context_side : {-1, 1}) {
      for (const Reached& one : by_distance) {
        const d::Key& at = table.rows[one.row].key;
        if ((at.batch - key.batch) * batch_side < 0) continue;
        if ((at.context - key.context) * context_side < 0) continue;
        const auto same_row = [&](const Reached& other) { return other.row == one.row; };
        if (std::none_of(found.begin(), found.end(), same_row)) found.push_back(one);
        break;
      }
    }
  }
  return found;
}

/// 2^(31 - distance) by straight lines; never below 1.
std::int64_t weight(std::int64_t distance) {
  std::int64_t power = std::int64_t{1} << 31;
  while (distance >= d::kDistanceOne && power > 1) {
    power /= 2;
    distance -= d::kDistanceOne;
  }
  if (distance >= d::kDistanceOne || power == 1) return 1;
  // Half of the power is lost over a whole doubling; rounded as shifts do.
  const std::int64_t whole = (std::int64_t{1} << 31) - (distance << 6);
  return whole / ((std::int64_t{1} << 31) / power);
}

struct Walked {
  d::Match match = d::Match::kBase;
  d::Why why = d::Why::kOtherStructure;
  int row = -1, pipeline = 0;
  double expected_loss_pct = -1;
  std::uint64_t scored = 0;   ///< a bit for each pipeline that has an expected loss
  std::int64_t nearest = -1;  ///< distance of any row of the structure, whatever the limit
};

/// The least expected loss of what was measured around.
void score(const d::Table& table, const std::vector<Reached>& rows, int nearest,
           std::uint64_t refused, Walked& result) {
  const int own = static_cast<int>(table.rows[nearest].pipeline);
  std::int64_t least = -1, total = 0;
  for (const Reached& one : rows) total += weight(one.distance);
  for (int p = 0; p < kMostPipelines; ++p) {
    std::int64_t sum = 0;
    bool measured = false, known = true;
    for (const Reached& one : rows) {
      const long lost = loss(table, one.row, p), base = loss(table, one.row, 0);
      measured = measured || lost >= 0;
      known = known && (lost >= 0 || base >= 0);
      sum += weight(one.distance) * (lost >= 0 ? lost : base);
    }
    if (!measured || !known) continue;
    result.scored |= std::uint64_t{1} << p;
    if ((refused >> p & 1) != 0) continue;
    if (least >= 0 && !(sum < least || (sum == least && p == own))) continue;
    least = sum;
    result.row = nearest;
    result.pipeline = p;
    result.expected_loss_pct = static_cast<double>(sum) / static_cast<double>(total) / 100;
  }
}

/// `refused`: a bit for each pipeline.
Walked walk(const d::Table& table, d::Key key, d::Guard tier, std::uint64_t refused) {
  if (is_none(key, table.contexts)) return {d::Match::kInvalid, d::Why::kInvalidKey};
  if (tier == d::Guard::kForeign) return {d::Match::kBase, d::Why::kForeignDevice};
  if (!table.contexts) key.context = 0;
  if (table.contexts && key.window > 0 && key.context >= key.window + key.q_len) {
    key.context = key.window + key.q_len - 1;
  }
  Walked result;
  std::vector<Reached> reached;
  int exact = -1;
  for (int i = 0; i < table.row_count; ++i) {
    const d::Row& row = table.rows[i];
    if (!same_structure(row.key, key)) continue;
    result.why = d::Why::kTooFar;
    if (exact < 0 && same(row.key, key)) exact = i;
    const std::int64_t far = distance(key, row.key, table.contexts);
    if (far >= 0 && (result.nearest < 0 || far < result.nearest)) result.nearest = far;
    if (far < 0 || far > 2 * d::kRules.limit) continue;
    reached.push_back(
        {i, far,
         (row.key.page_size != key.page_size ? 2 : 0) + (row.key.window != key.window ? 1 : 0)});
  }
  std::sort(reached.begin(), reached.end());
  const auto own = [&](int row) { return static_cast<int>(table.rows[row].pipeline); };
  if (exact >= 0 && (refused >> own(exact) & 1) == 0) {
    result.row = exact;
    result.pipeline = own(exact);
    result.expected_loss_pct = table.rows[exact].regret_pct;
  } else if (!reached.empty() && reached.front().distance <= d::kRules.limit) {
    result.why = d::Why::kInfeasible;
    score(table, around(table, key, reached), reached.front().row, refused, result);
    for (const Reached& one : reached) {
      if (result.row >= 0 || one.distance > d::kRules.limit) break;
      if ((refused >> own(one.row) & 1) != 0) continue;
      result.row = one.row;
      result.pipeline = own(one.row);
    }
  }
  if (result.row >= 0) {
    result.why = d::Why::kMeasured;
    result.match = same(table.rows[result.row].key, key) ? d::Match::kExact : d::Match::kNear;
    if (tier == d::Guard::kNearDevice) result.match = d::Match::kOtherDevice;
  }
  return result;
}

std::int64_t hostile() {
  const std::int64_t values[] = {0,         -1,         1,          2,          INT64_MAX,
                                 INT64_MIN, 2147483647, 2147483648, 4294967296, INT64_MAX - 1};
  return below(4) == 0 ? static_cast<std::int64_t>(random_bits()) : values[below(10)];
}

/// From 1 to 2^20, all magnitudes alike.
std::int64_t size() { return 1 + (below(std::int64_t{1} << 20) >> below(21)); }

d::Key some_key() {
  const int rows = d::kRowCount;
  d::Key key = rows > 0 && below(16) != 0 ? d::kTable.rows[below(rows)].key : d::Key{};
  if (below(4) != 0) key.batch = size();
  if (below(4) != 0) key.context = size();
  if (below(8) == 0) key.q_len = 1 + below(9);
  if (below(8) == 0) key.window = below(2) * size();
  if (below(8) == 0) key.page_size = size();
  if (below(16) == 0) key.rope = !key.rope;
  if (below(16) == 0) key.scaled = !key.scaled;
  std::int64_t d::Key::*const sizes[] = {
      &d::Key::batch,    &d::Key::q_len,     &d::Key::num_q_heads, &d::Key::num_kv_heads,
      &d::Key::head_dim, &d::Key::page_size, &d::Key::window,      &d::Key::context};
  if (below(8) == 0) key.*sizes[below(8)] = hostile();
  return key;
}

struct Counts {
  long wrong = 0, by_match[5] = {}, infeasible = 0, other_pipeline = 0;
};

bool told_how_far(const d::Choice& got, const Walked& expected) {
  if (got.why != d::Why::kTooFar) return got.row != nullptr || got.distance == 0;
  const double wanted = expected.nearest < 0 ? 0
                                             : static_cast<double>(expected.nearest) /
                                                   static_cast<double>(d::kDistanceOne);
  return got.distance >= wanted && got.distance <= wanted;
}

void ask(bool contexts, Counts& counts) {
  const d::Key key = some_key();
  const std::uint64_t refused = below(4) == 0 ? random_bits() | random_bits() : 0;
  const d::Guard tier = static_cast<d::Guard>(below(16) < 11 ? 0 : below(5));
  int asked[kMostPipelines] = {};
  const auto feasible = [&](d::Pipeline p) noexcept {
    ++asked[static_cast<int>(p)];
    return (refused >> static_cast<int>(p) & 1) == 0;
  };
  const d::Table& table = contexts ? d::kTable : d::kCapturedTable;
  const d::Choice got =
      contexts ? d::lookup(key, tier, feasible) : d::lookup_captured(key, tier, feasible);
  const Walked expected = walk(table, key, tier, refused);
  const d::Row* row = expected.row < 0 ? nullptr : &table.rows[expected.row];
  const bool right = got.match == expected.match && got.why == expected.why && got.row == row &&
                     got.guard == tier && static_cast<int>(got.pipeline) == expected.pipeline &&
                     got.expected_loss_pct == expected.expected_loss_pct &&
                     d::info(got.pipeline).candidates > 0 && told_how_far(got, expected);
  for (int p = 0; p < kMostPipelines; ++p) {
    counts.wrong += (expected.scored >> p & 1) != 0 && asked[p] > 1 ? 1 : 0;
  }
  counts.other_pipeline += got.row != nullptr && got.pipeline != got.row->pipeline ? 1 : 0;
  counts.wrong += right ? 0 : 1;
  ++counts.by_match[static_cast<int>(got.match)];
  counts.infeasible += got.why == d::Why::kInfeasible ? 1 : 0;
}

long wrong_logarithms() {
  long wrong = 0;
  for (int i = 0; i < 100000; ++i) {
    const std::int64_t x = 1 + (below(d::kLargest) >> below(31));
    const double exact = 65536 * std::log2(static_cast<double>(x));
    wrong += std::fabs(d::detail::log2_fixed(x) + 0.5 - exact) > 1 ? 1 : 0;
  }
  for (int i = 0; i < 31; ++i) {
    wrong += d::detail::log2_fixed(std::int64_t{1} << i) != 65536 * i ? 1 : 0;
  }
  return wrong;
}

}  // namespace

static_assert(noexcept(d::lookup(d::Key{}, d::Guard::kTuned)), "lookup must not throw");
static_assert(d::lookup(d::Key{}, d::Guard::kForeign).why == d::Why::kForeignDevice,
              "usable in constant expressions");
static_assert(d::guard(d::kDevice) == d::Guard::kTuned, "the table holds for its own device");

int main(int argc, char** argv) {
  const long asked = argc > 1 ? std::atol(argv[1]) : 1000000;
  Counts counts;
  counts.wrong = wrong_logarithms();
  for (int i = 0; i < d::kRowCount; ++i) {  // all that was measured is found
    const d::Choice got = d::lookup(d::kTable.rows[i].key, d::Guard::kTuned);
    counts.wrong += got.match != d::Match::kExact || got.distance != 0 ? 1 : 0;
  }
  counts.wrong += other_rows() != static_cast<const void*>(d::kRows) ? 1 : 0;
  for (long i = 0; i < asked; ++i) ask(i % 4 != 0, counts);
  std::printf(
      "%ld wrong of %ld; exact %ld, near %ld, other device %ld, base %ld, invalid %ld; "
      "infeasible %ld, not the nearest row's pipeline %ld\n",
      counts.wrong, asked, counts.by_match[0], counts.by_match[1], counts.by_match[2],
      counts.by_match[3], counts.by_match[4], counts.infeasible, counts.other_pipeline);
  return counts.wrong == 0 ? 0 : 1;
}
