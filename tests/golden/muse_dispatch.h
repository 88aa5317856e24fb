// SPDX-License-Identifier: Apache-2.0
// Generated: which pipeline of kernels serves which shape, with the evidence. Do not edit.
// C++17, no allocation, no dependency.
#ifdef MUSE_DISPATCH_H_
#ifndef MUSE_DISPATCH_TABLE_36eccc509c8a17a2fd65eff360b33bd3
#error "two dispatch tables meet in one unit: include the one that belongs to this build"
#endif
#else
#define MUSE_DISPATCH_H_
#define MUSE_DISPATCH_TABLE_36eccc509c8a17a2fd65eff360b33bd3

#if defined(MUSE_DISPATCH_FORMAT) && MUSE_DISPATCH_FORMAT != 3
#error "dispatch tables are read in another format in this unit: emit again with the muse-tune of this build"
#endif

#ifndef MUSE_DISPATCH_LOOKUP_H_
#define MUSE_DISPATCH_LOOKUP_H_

/// Layout of the emitted header; rises when a consumer could notice.
#define MUSE_DISPATCH_FORMAT 3

#include <cstdint>

namespace muse {
namespace dispatch {

/// The largest size that can be asked for.
inline constexpr std::int64_t kLargest = 2147483647;

/// What is asked. Every size is positive; window 0 = all keys.
struct Key {
  std::int64_t batch = 1;  ///< requests
  std::int64_t q_len = 1;  ///< query tokens per request (L)
  std::int64_t num_q_heads = 16;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t page_size = 1;  ///< cache rows per page
  std::int64_t window = 0;     ///< tokens a query sees, itself included
  bool rope = false;           ///< rope_theta is not 0
  bool scaled = false;         ///< kv_scale is not 1
  std::int64_t context = 1;    ///< tokens with the new ones: mean over the requests, rounded up
};

/// How well a choice fits what was asked.
enum class Match : std::uint8_t {
  kExact,        ///< measured under this key
  kNear,         ///< measured under a neighbouring key
  kOtherDevice,  ///< measured on a neighbouring device class, under this key or a neighbouring one
  kBase,         ///< not measured: the base; Choice::why says more
  kInvalid       ///< the key is none (a size of zero or less, or above kLargest, ...): the base
};

/// What the table is worth on a device, the best first.
enum class Guard : std::uint8_t {
  kTuned,          ///< the device class, driver branch and compiler it was measured with
  kOtherDriver,    ///< tuned, not verified under this driver branch
  kOtherCompiler,  ///< tuned, its kernels compiled by another version
  kNearDevice,     ///< another class of the same architecture, SM count within 5 %
  kForeign         ///< none of these: the base for every key
};

/// Why a choice is what it is.
enum class Why : std::uint8_t {
  kMeasured,        ///< there is a row
  kInvalidKey,      ///< the key is none
  kForeignDevice,   ///< nothing here was measured on such a device
  kOtherStructure,  ///< no row has these heads, page class, window or not, ...
  kTooFar,          ///< the nearest row is beyond the limit
  kInfeasible       ///< every row within the limit was refused by the caller
};

/// Index into kPipelines; 0 is the base.
enum class Pipeline : std::uint16_t {};
inline constexpr Pipeline kBase{0};

/// A measured choice with its evidence.
struct Row {
  Key key;  ///< context: at most window + q_len - 1 on windowed layers; 0 in the captured table
  Pipeline pipeline;
  double median_us;  ///< of the choice, under `shape`
  double low_us;     ///< its 95 % interval
  double high_us;
  double base_median_us;  ///< of the base under the same shape
  double margin_pct;      ///< what the choice saves of the base's time
  double regret_pct;      ///< time lost against the best measured; captured: at the worst context
  int shapes;             ///< how many measured shapes the choice is for
  const char* status;     ///< winner, tie(n), inconclusive, degraded; captured, limited
  const char* shape;      ///< as measured; captured: the one where most is lost
  std::int64_t run;
  const char* date;
};

struct PipelineInfo {
  const char* key;       ///< candidates joined by " + "
  int candidates;        ///< how many
  const int* candidate;  ///< indices into kCandidates, in stage order
};

struct VariantAbi {
  const char* name;
  int abi;
  const char* source_hash;  ///< of everything the variant is made of
};

/// What a table was measured on, or where it is to be used.
struct Device {
  const char* model;
  const char* isa;  ///< "sm_90a"; host: "avx2", ...
  bool host;
  int cc;        ///< compute capability * 10; host: 0
  int sm_count;  ///< host: logical CPUs
  std::int64_t memory_bytes;
  int driver_version;    ///< cudaDriverGetVersion: one value a driver branch; host: 0
  int compiler_version;  ///< CUDA's, 1000 * major + 10 * minor; host: 0
};

struct Choice {
  Pipeline pipeline;  ///< between rows not always that of `row`
  Match match;
  Guard guard;
  Why why;
  double distance;  ///< weighted sum of log2 ratios between the row and what was asked; kTooFar: to
                    ///< the nearest row, 0 where each differs on an axis that is to be exact
  const Row* row;   ///< the nearest; null for the base by default
  /// Time lost against the best, percent: as measured on the row, or weighted over the rows around;
  /// -1 where that is not known.
  double expected_loss_pct;
};

/// A scale: near by ratio, or to be met exactly.
struct Axis {
  bool exact;
  std::int32_t weight;  ///< of a doubling, in 256ths
};
struct Rules {
  Axis q_len, batch, context;
  std::int64_t limit;  ///< the largest distance, in units of kDistanceOne
};
/// A doubling at weight 1.
inline constexpr std::int64_t kDistanceOne = std::int64_t{65536} * 256;

/// What must be equal: q heads, kv heads, head_dim, page class, windowed, rope, scaled.
struct Structure {
  std::int64_t field[7];
};
/// Rows of one q_len and batch, by context.
struct Line {
  std::int64_t q_len, batch;
  std::int32_t q_len_log2, batch_log2;
  int first, end;
};
/// Lines of one structure, by q_len and batch, and the pipelines that answer between its rows.
struct Group {
  Structure structure;
  int first, end;
  std::int64_t least_context, most_context;  ///< of its rows
  int first_choice, end_choice;
  std::int64_t first_loss;  ///< of the first row by the first choice; row by row
};
/// A loss where the pipeline was not measured; what was lost is at most one less.
inline constexpr std::uint16_t kUnmeasured = 65535;
/// Rows by structure, q_len, batch, context, page size and window; of equal keys the chosen first.
struct Table {
  bool contexts;  ///< false: a choice for every context; keys have context 0
  const Row* rows;
  int row_count;
  const std::int32_t* context_log2;  ///< of each row
  const Line* lines;
  const Group* groups;
  int group_count;
  const std::int32_t* slots;  ///< hash table of first rows; -1 = empty
  int slot_bits;
  const std::uint16_t* choices;  ///< pipelines, ascending in each group
  const std::uint16_t* losses;   ///< against the best measured on the row, in 0.01 %
};

namespace detail {

constexpr bool same_text(const char* a, const char* b) noexcept {
  while (*a != '\0' && *a == *b) {
    ++a;
    ++b;
  }
  return *a == *b;
}

/// 65536 * log2(x), rounded down to within one unit. Precondition: 1 <= x <= kLargest.
constexpr std::int32_t log2_fixed(std::int64_t x) noexcept {
  std::int32_t result = 0;
  for (std::int32_t step = 16; step > 0; step /= 2) {
    if ((x >> (result + step)) != 0) result += step;
  }
  std::uint64_t mantissa = static_cast<std::uint64_t>(x) << (31 - result);  // 2^31 .. 2^32
  for (int bit = 0; bit < 16; ++bit) {
    mantissa = (mantissa * mantissa) >> 31;
    const std::uint64_t one = mantissa >> 32;
    mantissa >>= one;
    result = 2 * result + static_cast<std::int32_t>(one);
  }
  return result;
}

/// 0 to 6 by powers of two; pages of 64 rows and more are one class.
constexpr std::int64_t page_class(std::int64_t page_size) noexcept {
  std::int64_t result = 0;
  while (result < 6 && (page_size >> (result + 1)) != 0) ++result;
  return result;
}

constexpr Structure structure(const Key& key) noexcept {
  return {{key.num_q_heads, key.num_kv_heads, key.head_dim, page_class(key.page_size),
           key.window > 0 ? 1 : 0, key.rope ? 1 : 0, key.scaled ? 1 : 0}};
}

/// -1, 0 or 1.
constexpr int compare(const Structure& a, const Structure& b) noexcept {
  for (int i = 0; i < 7; ++i) {
    if (a.field[i] != b.field[i]) return a.field[i] < b.field[i] ? -1 : 1;
  }
  return 0;
}

constexpr bool same(const Key& a, const Key& b) noexcept {
  return a.context == b.context && a.batch == b.batch && a.q_len == b.q_len &&
         a.window == b.window && a.page_size == b.page_size && a.rope == b.rope &&
         a.scaled == b.scaled && a.num_q_heads == b.num_q_heads &&
         a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim;
}

/// The first slot of a key among 2^bits; bits from 1 to 31.
constexpr std::uint32_t slot_of(const Key& key, int bits) noexcept {
  const auto term = [](std::int64_t value, std::uint64_t factor) {
    return static_cast<std::uint64_t>(value) * factor;
  };
  std::uint64_t h =
      term(key.context, 0x9E3779B97F4A7C15u) + term(key.batch, 0xC2B2AE3D27D4EB4Fu) +
      term(key.q_len, 0x165667B19E3779F9u) + term(key.window, 0xD6E8FEB86659FD93u) +
      term(key.page_size, 0xA0761D6478BD642Fu) + term(key.num_q_heads, 0xE7037ED1A0B428DBu) +
      term(key.num_kv_heads, 0x8EBC6AF09C88C6E3u) + term(key.head_dim, 0x589965CC75374CC3u) +
      (key.rope ? 0x1D8E4E27C47D124Fu : 0) + (key.scaled ? 0xEB44ACCAB455D165u : 0);
  h ^= h >> 32;
  h *= 0x9FB21C651E98DF25u;
  return static_cast<std::uint32_t>(h >> (64 - bits));
}

/// The first row of exactly this key, or -1.
constexpr int find_exact(const Table& table, const Key& key) noexcept {
  if (table.row_count == 0) return -1;
  const std::uint32_t mask = (std::uint32_t{1} << table.slot_bits) - 1;
  for (std::uint32_t slot = slot_of(key, table.slot_bits);; slot = (slot + 1) & mask) {
    const std::int32_t row = table.slots[slot];  // at most half of the slots are taken
    if (row < 0 || same(table.rows[row].key, key)) return row;
  }
}

/// The order in which rows are tried: nearest first, then the same page size, the same window, the
/// order of the table.
struct Rank {
  std::int64_t distance;
  int mismatch;
  int row;
};
constexpr bool before(const Rank& a, const Rank& b) noexcept {
  if (a.distance != b.distance) return a.distance < b.distance;
  if (a.mismatch != b.mismatch) return a.mismatch < b.mismatch;
  return a.row < b.row;
}

inline constexpr std::int64_t kFar = INT64_MAX / 4;

/// Between two values and their logarithms; kFar where they have to be equal and are not.
constexpr std::int64_t apart(const Axis& axis, std::int64_t a, std::int64_t b, std::int32_t log_a,
                             std::int32_t log_b) noexcept {
  if (axis.exact) return a == b ? 0 : kFar;
  return std::int64_t{axis.weight} * (log_a < log_b ? log_b - log_a : log_a - log_b);
}

/// Where a row lies from what is asked: of its batch and of its context at most, or at least, as
/// much. A set of corners; corner 2 * (batch at least) + (context at least) is bit 1 << corner.
inline constexpr int kCorners = 4;
inline constexpr unsigned kLowBatch = 0x3, kHighBatch = 0xC;
inline constexpr unsigned kLowContext = 0x5, kHighContext = 0xA;
inline constexpr unsigned kEverywhere = 0xF;

/// A walk from a key outwards: in each corner the first row by rank that comes behind `after`.
struct Search {
  const Table& table;
  const Rules& rules;
  const Key& key;
  std::int32_t q_len_log2, batch_log2, context_log2;
  unsigned open;  ///< corners that may have a row
  Rank after;
  Rank best[kCorners];

  constexpr Search(const Table& where, const Rules& by, const Key& asked,
                   const Group& group) noexcept
      : table(where),
        rules(by),
        key(asked),
        q_len_log2(log2_fixed(asked.q_len)),
        batch_log2(log2_fixed(asked.batch)),
        context_log2(where.contexts ? log2_fixed(asked.context) : 0),
        open((group.most_context < asked.context ? kLowContext : kEverywhere) &
             (group.least_context > asked.context ? kHighContext : kEverywhere)),
        after{-1, 0, 0},
        best{} {}

  /// The largest distance at which a row can be of use in one of these corners.
  constexpr std::int64_t reach(unsigned corners) const noexcept {
    std::int64_t most = -1;
    for (int i = 0; i < kCorners; ++i) {
      if ((corners >> i & 1) != 0 && best[i].distance > most) most = best[i].distance;
    }
    return most;
  }
  /// False where this row, and what lies beyond it, is farther than the best.
  constexpr bool consider(int row, std::int64_t to_line, unsigned corners) noexcept {
    const Key& other = table.rows[row].key;
    const std::int64_t distance = to_line + apart(rules.context, key.context, other.context,
                                                  context_log2, table.context_log2[row]);
    if (distance > reach(corners)) return false;
    const int mismatch =
        (other.page_size != key.page_size ? 2 : 0) + (other.window != key.window ? 1 : 0);
    const Rank rank{distance, mismatch, row};
    if (!before(after, rank)) return true;
    for (int i = 0; i < kCorners; ++i) {
      if ((corners >> i & 1) != 0 && before(rank, best[i])) best[i] = rank;
    }
    return true;
  }
  /// False where the whole line, and those beyond it, are farther than the best.
  constexpr bool consider_line(const Line& line, std::int64_t to_block) noexcept {
    const unsigned corners = open & (line.batch < key.batch   ? kLowBatch
                                     : line.batch > key.batch ? kHighBatch
                                                              : kEverywhere);
    const std::int64_t to_line =
        to_block + apart(rules.batch, key.batch, line.batch, batch_log2, line.batch_log2);
    if (to_line > reach(corners)) return false;
    int from = line.first;
    for (int end = line.end; from < end;) {
      const int middle = from + (end - from) / 2;
      if (table.rows[middle].key.context < key.context) {
        from = middle + 1;
      } else {
        end = middle;
      }
    }
    for (int row = from; row < line.end; ++row) {
      const bool equal = table.rows[row].key.context == key.context;
      if (!consider(row, to_line, corners & (equal ? kEverywhere : kHighContext))) break;
    }
    for (int row = from; row > line.first; --row) {
      if (!consider(row - 1, to_line, corners & kLowContext)) break;
    }
    return true;
  }
  /// Lines of one q_len, from the batch asked for outwards.
  constexpr void consider_block(int first, int end, std::int64_t to_block) noexcept {
    int from = first;
    for (int to = end; from < to;) {
      const int middle = from + (to - from) / 2;
      if (table.lines[middle].batch < key.batch) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    for (int line = from; line < end && consider_line(table.lines[line], to_block);) ++line;
    for (int line = from; line > first && consider_line(table.lines[line - 1], to_block);) --line;
  }
  /// Whether there is a row within the limit; then nearest() is one. In its corner a row may be
  /// twice as far: whoever is near to one side of a gap needs the other side, too.
  constexpr bool next(const Group& group) noexcept {
    const std::int64_t most = rules.limit < kFar / 2 ? 2 * rules.limit : rules.limit;
    for (Rank& rank : best) rank = Rank{most, 4, table.row_count};
    for (int first = group.first; first < group.end;) {
      const Line& line = table.lines[first];
      int end = first + 1;
      for (int to = group.end; end < to;) {
        const int middle = end + (to - end) / 2;
        if (table.lines[middle].q_len == line.q_len) {
          end = middle + 1;
        } else {
          to = middle;
        }
      }
      const std::int64_t to_block =
          apart(rules.q_len, key.q_len, line.q_len, q_len_log2, line.q_len_log2);
      if (to_block <= reach(open)) consider_block(first, end, to_block);
      first = end;
    }
    return is_row(nearest()) && nearest().distance <= rules.limit;
  }
  constexpr bool is_row(const Rank& rank) const noexcept { return rank.row < table.row_count; }
  constexpr const Rank& nearest() const noexcept {
    int first = 0;
    for (int i = 1; i < kCorners; ++i) {
      if (before(best[i], best[first])) first = i;
    }
    return best[first];
  }
};

/// 2^31 * 2^-distance, straight between powers; 1 where that is less.
constexpr std::int64_t weight(std::int64_t distance) noexcept {
  const std::int64_t doublings = distance / kDistanceOne;
  if (doublings > 30) return 1;
  const std::int64_t rest = distance % kDistanceOne;  // below 2^24
  return ((std::int64_t{1} << 31) - (rest << 6)) >> doublings;
}

/// A group's choices by what they are expected to lose, the least first; of equals the pipeline of
/// the nearest row, then the lower one. Where one was not measured it is taken to lose what the
/// base loses there: nobody is put behind the base for want of a measurement. Who was measured on
/// no row around is none, as is, with the base not measured either, whoever has a gap there.
struct Scores {
  const Table& table;
  const Group& group;
  int nearest;
  int count;                       ///< rows around: the nearest of each corner, each once
  std::int64_t first[kCorners];    ///< the loss of each by the first choice
  std::int64_t weights[kCorners];  ///< of each
  std::int64_t total;              ///< of the weights
  std::int64_t score;              ///< of the choice that next() has found
  int choice;                      ///< that choice; -1 before the first

  constexpr Scores(const Table& where, const Group& in, const Search& search) noexcept
      : table(where),
        group(in),
        nearest(search.nearest().row),
        count(0),
        first{},
        weights{},
        total(0),
        score(-1),
        choice(-1) {
    const int first_row = table.lines[group.first].first;
    const std::int64_t choices = group.end_choice - group.first_choice;
    for (int i = 0; i < kCorners; ++i) {
      const Rank& rank = search.best[i];
      bool known = !search.is_row(rank);
      for (int j = 0; j < i; ++j) known = known || search.best[j].row == rank.row;
      if (known) continue;
      first[count] = group.first_loss + (rank.row - first_row) * choices;
      weights[count] = weight(rank.distance);
      total += weights[count++];
    }
  }
  constexpr Pipeline pipeline(int of) const noexcept { return Pipeline{table.choices[of]}; }
  /// Of the base on a row around.
  constexpr std::uint16_t base_loss(int row) const noexcept {
    return pipeline(group.first_choice) == kBase ? table.losses[first[row]] : kUnmeasured;
  }
  /// Weighted sum of the losses; -1 where the choice is none.
  constexpr std::int64_t score_of(int of) const noexcept {
    std::int64_t sum = 0;
    bool measured = false;
    for (int i = 0; i < count; ++i) {
      std::uint16_t loss = table.losses[first[i] + (of - group.first_choice)];
      if (loss != kUnmeasured) {
        measured = true;
      } else {
        loss = base_loss(i);
        if (loss == kUnmeasured) return -1;
      }
      sum += weights[i] * loss;  // below 2^49 in all
    }
    return measured ? sum : -1;
  }
  constexpr bool comes_before(std::int64_t score_a, int a, std::int64_t score_b,
                              int b) const noexcept {
    if (score_a != score_b) return score_a < score_b;
    const Pipeline own = table.rows[nearest].pipeline;
    if ((pipeline(a) == own) != (pipeline(b) == own)) return pipeline(a) == own;
    return a < b;
  }
  /// Whether there is a choice behind the last one.
  constexpr bool next() noexcept {
    std::int64_t least = -1;
    int found = -1;
    for (int of = group.first_choice; of < group.end_choice; ++of) {
      const std::int64_t sum = score_of(of);
      if (sum < 0 || (found >= 0 && !comes_before(sum, of, least, found))) continue;
      if (choice >= 0 && !comes_before(score, choice, sum, of)) continue;
      least = sum;
      found = of;
    }
    score = least;
    choice = found;
    return found >= 0;
  }
  /// Whether next() gives this pipeline sooner or later.
  constexpr bool has(Pipeline wanted) const noexcept {
    for (int of = group.first_choice; of < group.end_choice; ++of) {
      if (pipeline(of) == wanted) return score_of(of) >= 0;
    }
    return false;
  }
  constexpr double loss_pct(std::int64_t of_score) const noexcept {
    return static_cast<double>(of_score) / static_cast<double>(total) / 100;
  }
};

/// The group of a structure, or null.
constexpr const Group* find_group(const Table& table, const Structure& wanted) noexcept {
  int first = 0;
  for (int end = table.group_count; first < end;) {
    const int middle = first + (end - first) / 2;
    const int order = compare(table.groups[middle].structure, wanted);
    if (order == 0) return &table.groups[middle];
    if (order < 0) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return nullptr;
}

constexpr bool size(std::int64_t value) noexcept { return value > 0 && value <= kLargest; }

/// All of valid() that takes no division.
constexpr bool in_range(const Key& key, bool contexts) noexcept {
  return size(key.batch) && size(key.q_len) && size(key.num_q_heads) && size(key.num_kv_heads) &&
         size(key.head_dim) && size(key.page_size) && key.window >= 0 && key.window <= kLargest &&
         (!contexts || (size(key.context) && key.context >= key.q_len));
}

/// Within 5 % of the larger one. Negative and zero are near nothing.
constexpr bool close(std::int64_t a, std::int64_t b) noexcept {
  if (a <= 0 || b <= 0) return false;
  return a < b ? b - a <= b / 20 : a - b <= a / 20;
}

constexpr bool known(const Device& d) noexcept {
  return d.model != nullptr && d.isa != nullptr && *d.model != '\0' && *d.isa != '\0' &&
         d.sm_count > 0 && (d.host || d.cc > 0);
}

constexpr Choice base(Match match, Guard guard, Why why) noexcept {
  return {kBase, match, guard, why, 0, nullptr, -1};
}

constexpr Choice found(const Row& row, Pipeline pipeline, const Key& key, Guard guard,
                       std::int64_t distance, double expected_loss_pct) noexcept {
  const Match match = guard == Guard::kNearDevice ? Match::kOtherDevice
                      : same(row.key, key)        ? Match::kExact
                                                  : Match::kNear;
  return {pipeline,
          match,
          guard,
          Why::kMeasured,
          static_cast<double>(distance) / static_cast<double>(kDistanceOne),
          &row,
          expected_loss_pct};
}

/// Once the caller has refused every scored choice, and `refused`: the pipeline of the nearest row
/// that it accepts.
template <class Feasible>
constexpr Choice by_distance(Search& search, const Scores& scores, const Group& group,
                             const Row* refused, Guard guard, const Feasible& feasible) noexcept {
  do {
    const Rank nearest = search.nearest();
    const Row& row = search.table.rows[nearest.row];
    const bool asked =
        (refused != nullptr && refused->pipeline == row.pipeline) || scores.has(row.pipeline);
    if (!asked && feasible(row.pipeline)) {
      return found(row, row.pipeline, search.key, guard, nearest.distance, -1);
    }
    search.after = nearest;
  } while (search.next(group));
  return base(Match::kBase, guard, Why::kInfeasible);
}

/// The base where the nearest row of a group is beyond the limit, with its distance.
constexpr Choice too_far(const Table& table, Rules rules, const Key& key, Guard guard,
                         const Group& group) noexcept {
  rules.limit = kFar - 1;
  Search search(table, rules, key, group);
  Choice choice = base(Match::kBase, guard, Why::kTooFar);
  if (search.next(group)) {
    choice.distance =
        static_cast<double>(search.nearest().distance) / static_cast<double>(kDistanceOne);
  }
  return choice;
}

/// For a key in range that no row has, or whose row is `refused`.
template <class Feasible>
constexpr Choice find_near(const Table& table, const Rules& rules, const Key& key,
                           const Row* refused, Guard guard, const Feasible& feasible) noexcept {
  const Group* group = find_group(table, structure(key));
  if (group == nullptr) return base(Match::kBase, guard, Why::kOtherStructure);
  Search search(table, rules, key, *group);
  if (!search.next(*group)) return too_far(table, rules, key, guard, *group);
  const Rank nearest = search.nearest();
  Scores scores(table, *group, search);
  while (scores.next()) {
    const Pipeline pipeline = scores.pipeline(scores.choice);
    if (refused != nullptr && refused->pipeline == pipeline) continue;
    if (feasible(pipeline)) {
      return found(table.rows[nearest.row], pipeline, key, guard, nearest.distance,
                   scores.loss_pct(scores.score));
    }
  }
  return by_distance(search, scores, *group, refused, guard, feasible);
}

}  // namespace detail

/// Whether the key can be asked for at all; without `contexts` its context does not matter.
constexpr bool valid(const Key& key, bool contexts = true) noexcept {
  return detail::in_range(key, contexts) && key.num_q_heads % key.num_kv_heads == 0;
}

/// A key in range as rows carry it: no query of a windowed layer sees further back than window +
/// q_len
/// - 1.
constexpr Key normalized(Key key, bool contexts = true) noexcept {
  if (!contexts) {
    key.context = 0;
  } else if (key.window > 0 && key.context > key.window + key.q_len - 1) {
    key.context = key.window + key.q_len - 1;
  }
  return key;
}

/// What a table that was measured on one device is worth on another. A class is model,
/// architecture, SM count and, on a GPU, memory to within 5 % (drivers keep different amounts
/// back). A device without model, architecture or SMs is foreign to all.
constexpr Guard guard(const Device& measured, const Device& here) noexcept {
  if (!detail::known(measured) || !detail::known(here) || measured.host != here.host ||
      measured.cc != here.cc || !detail::same_text(measured.isa, here.isa)) {
    return Guard::kForeign;
  }
  const bool same_class = detail::same_text(measured.model, here.model) &&
                          measured.sm_count == here.sm_count &&
                          (here.host || detail::close(measured.memory_bytes, here.memory_bytes));
  if (!same_class) {
    return detail::close(measured.sm_count, here.sm_count) ? Guard::kNearDevice : Guard::kForeign;
  }
  if (measured.compiler_version != here.compiler_version) return Guard::kOtherCompiler;
  if (measured.driver_version != here.driver_version) return Guard::kOtherDriver;
  return Guard::kTuned;
}

/// Accepts every pipeline.
struct Anything {
  constexpr bool operator()(Pipeline) const noexcept { return true; }
};

/// The pipeline of the key's row. Without one, of the pipelines that were measured on the rows
/// around (the nearest with at most and at least the batch, at most and at least the context) that
/// which loses least there, near rows counting more; without one, that of the nearest row; the base
/// where no row is within the limit. `feasible` may refuse any: then the next in this order.
/// It is asked once about each pipeline that was measured around. No allocation; defined for every
/// key and every device.
template <class Feasible>
constexpr Choice find(const Table& table, const Rules& rules, const Key& asked, Guard guard,
                      const Feasible& feasible) noexcept {
  static_assert(noexcept(feasible(Pipeline{})), "say noexcept: nobody catches here");
  if (!detail::in_range(asked, table.contexts)) {
    return detail::base(Match::kInvalid, guard, Why::kInvalidKey);
  }
  const Key key = normalized(asked, table.contexts);
  const int exact = guard == Guard::kForeign ? -1 : detail::find_exact(table, key);
  const Row* own = exact >= 0 ? &table.rows[exact] : nullptr;
  if (own != nullptr && feasible(own->pipeline)) {  // rows have valid keys alone
    return detail::found(*own, own->pipeline, key, guard, 0, own->regret_pct);
  }
  if (key.num_q_heads % key.num_kv_heads != 0) {
    return detail::base(Match::kInvalid, guard, Why::kInvalidKey);
  }
  if (guard == Guard::kForeign) return detail::base(Match::kBase, guard, Why::kForeignDevice);
  return detail::find_near(table, rules, key, own, guard, feasible);
}

}  // namespace dispatch
}  // namespace muse

#endif  // MUSE_DISPATCH_LOOKUP_H_

namespace muse {
namespace dispatch {

// Where the tables come from.
inline constexpr const char* kGenerator = "muse-tune 0.0.0";
inline constexpr const char* kRegime = "cold";
inline constexpr const char* kTimer = "host";
inline constexpr const char* kDriver = "6.1.0";
inline constexpr const char* kToolkit = "none";
inline constexpr const char* kSourceHash = "0123456789abcdef0123456789abcdef";
inline constexpr Device kDevice = {"Fictional CPU \"8\" \\ two", "avx2", true, 0, 8, 68719476736, 0, 0};

// q_len, batch, context; the largest distance.
inline constexpr Rules kRules = {{true, 256}, {false, 256}, {false, 256}, 26843546};

// Time lost against the best measured of each shape, percent.
inline constexpr double kRegretPctWorst = 1.200;
inline constexpr double kRegretPctMean = 0.300;
inline constexpr double kCapturedRegretPctWorst = 2.500;
inline constexpr double kCapturedRegretPctMean = 1.000;

inline constexpr int kCandidateCount = 10;
inline constexpr const char* kCandidates[] = {
    "attention/scalar",
    "attention/vector:splits=4,tile_kv=64",
    "combine/scalar",
    "combine/vector",
    "fused/vector:tile_kv=128",
    "fused/vector:tile_kv=256",
    "gate/scalar",
    "gate/vector",
    "prepare/scalar",
    "prepare/vector",
};

namespace detail {
inline constexpr int kPipeline0[] = {8, 0, 2, 6};
inline constexpr int kPipeline1[] = {4};
inline constexpr int kPipeline2[] = {5};
inline constexpr int kPipeline3[] = {9, 1, 3, 7};
}  // namespace detail

// The base is number 0.
inline constexpr int kPipelineCount = 4;
inline constexpr PipelineInfo kPipelines[] = {
    {"prepare/scalar + attention/scalar + combine/scalar + gate/scalar", 4, detail::kPipeline0},
    {"fused/vector:tile_kv=128", 1, detail::kPipeline1},
    {"fused/vector:tile_kv=256", 1, detail::kPipeline2},
    {"prepare/vector + attention/vector:splits=4,tile_kv=64 + combine/vector + gate/vector", 4, detail::kPipeline3},
};

// Where shapes share a key the chosen one stands first (larger context as measured, then uniform
// lengths, then shape name); the others are evidence.
inline constexpr int kRowCount = 7;
inline constexpr Row kRows[] = {
    {{1, 1, 16, 2, 64, 1, 0, false, false, 4096}, Pipeline{3}, 12.345, 12.300, 12.400, 24.690, 50.000, 0.000, 1, "tie(2)", "b1_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{4, 1, 16, 2, 64, 1, 0, false, false, 2001}, Pipeline{1}, 12.345, 12.300, 12.400, 24.690, 50.000, 0.000, 1, "tie(2)", "b4_l1_h16x2_d64_ps1_w0_rope0_kv1_t8000_outlier1_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{8, 1, 16, 2, 64, 1, 0, false, false, 4096}, Pipeline{1}, 12.345, 12.300, 12.400, 24.690, 50.000, 0.000, 1, "tie(2)", "b8_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 1, 16, 2, 64, 1, 2048, true, false, 2048}, Pipeline{1}, 2.222, 2.177, 2.277, 4.444, 50.000, 0.000, 1, "tie(2)", "b1_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t32768_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 1, 16, 2, 64, 1, 2048, true, false, 2048}, Pipeline{3}, 1.111, 1.066, 1.166, 2.222, 50.000, 0.000, 1, "tie(2)", "b1_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 8, 16, 2, 64, 1, 2048, true, false, 1024}, Pipeline{0}, 12.345, 12.300, 12.400, 24.690, 50.000, 0.000, 1, "tie(2)", "b1_l8_h16x2_d64_ps1_w2048_rope500000_kv1_t1024_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 8, 16, 2, 64, 1, 2048, true, false, 2055}, Pipeline{1}, 12.345, 12.300, 12.400, 24.690, 50.000, 0.000, 1, "tie(2)", "b1_l8_h16x2_d64_ps1_w2048_rope500000_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
};
namespace detail {
inline constexpr std::int32_t kContextLog2[] = {
    786432, 718700, 786432, 720896, 720896, 655360, 721218,
};
inline constexpr int kLineCount = 5;
inline constexpr Line kLines[] = {
    {1, 1, 0, 0, 0, 1},
    {1, 4, 0, 131072, 1, 2},
    {1, 8, 0, 196608, 2, 3},
    {1, 1, 0, 0, 3, 5},
    {8, 1, 196608, 0, 5, 7},
};
inline constexpr int kGroupCount = 2;
inline constexpr Group kGroups[] = {
    {{{16, 2, 64, 0, 0, 0, 0}}, 0, 3, 2001, 4096, 0, 4, 0},
    {{{16, 2, 64, 0, 1, 1, 0}}, 3, 5, 1024, 2055, 4, 6, 12},
};
inline constexpr std::int32_t kSlots[] = {
    -1, -1, -1, 1, -1, 2, 6, -1, -1, -1, 0, 3, 5, -1, -1, -1,
};
inline constexpr std::uint16_t kChoices[] = {
    0, 1, 2, 3, 0, 1,
};
inline constexpr std::uint16_t kLosses[] = {
    6553, 120, 7, 0, 65535, 65535, 65535, 65535, 65535, 0, 65534, 65535, 10000, 0, 65535, 65535,
    65535, 65535, 65535, 65535,
};
}  // namespace detail
inline constexpr Table kTable = {
    true, kRows, kRowCount, detail::kContextLog2, detail::kLines,
    detail::kGroups, detail::kGroupCount, detail::kSlots, 4, detail::kChoices,
    detail::kLosses};

// One choice for every context.
inline constexpr int kCapturedRowCount = 3;
inline constexpr Row kCapturedRows[] = {
    {{1, 1, 16, 2, 64, 1, 0, false, false, 0}, Pipeline{3}, 12.345, 12.300, 12.400, 24.690, 50.000, 2.500, 1, "captured", "b1_l1_h16x2_d64_ps1_w0_rope0_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 1, 16, 2, 64, 1, 2048, true, false, 0}, Pipeline{1}, 12.345, 12.300, 12.400, 24.690, 50.000, 2.500, 2, "captured", "b1_l1_h16x2_d64_ps1_w2048_rope500000_kv1_t4096_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
    {{1, 8, 16, 2, 64, 1, 2048, true, false, 0}, Pipeline{0}, 12.345, 12.300, 12.400, 24.690, 50.000, 2.500, 2, "captured", "b1_l8_h16x2_d64_ps1_w2048_rope500000_kv1_t1024_uniform_random_s1", 3, "2030-01-02T03:04:05Z"},
};
namespace detail {
inline constexpr std::int32_t kCapturedContextLog2[] = {
    0, 0, 0,
};
inline constexpr int kCapturedLineCount = 3;
inline constexpr Line kCapturedLines[] = {
    {1, 1, 0, 0, 0, 1},
    {1, 1, 0, 0, 1, 2},
    {8, 1, 196608, 0, 2, 3},
};
inline constexpr int kCapturedGroupCount = 2;
inline constexpr Group kCapturedGroups[] = {
    {{{16, 2, 64, 0, 0, 0, 0}}, 0, 1, 0, 0, 0, 0, 0},
    {{{16, 2, 64, 0, 1, 1, 0}}, 1, 3, 0, 0, 0, 2, 0},
};
inline constexpr std::int32_t kCapturedSlots[] = {
    2, 1, -1, 0, -1, -1, -1, -1,
};
inline constexpr std::uint16_t kCapturedChoices[] = {
    0, 1,
};
inline constexpr std::uint16_t kCapturedLosses[] = {
    9999, 250, 65535, 65535,
};
}  // namespace detail
inline constexpr Table kCapturedTable = {
    false, kCapturedRows, kCapturedRowCount, detail::kCapturedContextLog2, detail::kCapturedLines,
    detail::kCapturedGroups, detail::kCapturedGroupCount, detail::kCapturedSlots, 3, detail::kCapturedChoices,
    detail::kCapturedLosses};

constexpr const PipelineInfo& info(Pipeline pipeline) noexcept {
  return kPipelines[static_cast<std::uint16_t>(pipeline)];
}

/// What these tables are worth on a device; ask once, at the start.
constexpr Guard guard(const Device& here) noexcept { return guard(kDevice, here); }

/// The pipeline for a key whose context is known. `feasible(Pipeline) noexcept -> bool` may refuse
/// one: then the next best is taken, in the end the base.
template <class Feasible = Anything>
constexpr Choice lookup(const Key& key, Guard tier, const Feasible& feasible = {}) noexcept {
  return find(kTable, kRules, key, tier, feasible);
}

/// The same for a graph that is captured once and replayed at every context: the least worst regret
/// over the contexts that were measured. The key's context does not matter.
template <class Feasible = Anything>
constexpr Choice lookup_captured(const Key& key, Guard tier,
                                 const Feasible& feasible = {}) noexcept {
  return find(kCapturedTable, kRules, key, tier, feasible);
}

// What the tables rely on. A build that defines MUSE_BUILD_VARIANTS(X) as a list of
// X(name, abi, source hash) is held against it; what is not listed here may differ.
inline constexpr int kVariantCount = 3;
inline constexpr VariantAbi kVariants[] = {
    {"attention/vector", 1, "cc"},
    {"fused/vector", 2, "bb"},
    {"prepare/scalar", 1, "aa"},
};

// The same for the linker: the library's variant_<stage>_<stem> of each.
#define MUSE_DISPATCH_VARIANTS(X) \
  X(attention, vector) \
  X(fused, vector) \
  X(prepare, scalar)

#ifdef MUSE_DISPATCH_SOURCE_HASH
static_assert(detail::same_text(kSourceHash, MUSE_DISPATCH_SOURCE_HASH),
              "the dispatch table was tuned for other kernel sources: sweep and emit again");
#endif
#ifdef MUSE_DISPATCH_ISA
static_assert(detail::same_text(kDevice.isa, MUSE_DISPATCH_ISA),
              "the dispatch table is of another architecture than this build: sweep and emit on "
              "such a device");
#endif

#ifdef MUSE_BUILD_VARIANTS
namespace detail {
#define MUSE_DISPATCH_ENTRY(name, abi, source_hash) {name, abi, source_hash},
inline constexpr VariantAbi kBuilt[] = {MUSE_BUILD_VARIANTS(MUSE_DISPATCH_ENTRY){"", 0, ""}};
#undef MUSE_DISPATCH_ENTRY
/// Where this build has a name; -1 where it has nothing under it.
constexpr int built(const char* name) noexcept {
  for (int i = 0; *kBuilt[i].name != '\0'; ++i) {
    if (same_text(kBuilt[i].name, name)) return i;
  }
  return -1;
}
constexpr bool built_with_abi(const char* name, int abi) noexcept {
  const int place = built(name);
  return place >= 0 && kBuilt[place].abi == abi;
}
constexpr bool built_from(const char* name, const char* source_hash) noexcept {
  const int place = built(name);
  return place >= 0 && same_text(kBuilt[place].source_hash, source_hash);
}
}  // namespace detail
static_assert(detail::built_with_abi("attention/vector", 1),
              "attention/vector: this build lacks it, or takes other arguments than the table was tuned with (ABI 1): sweep and emit again");
static_assert(detail::built_from("attention/vector", "cc"),
              "attention/vector: built from other sources than the table was tuned with: sweep and emit again");
static_assert(detail::built_with_abi("fused/vector", 2),
              "fused/vector: this build lacks it, or takes other arguments than the table was tuned with (ABI 2): sweep and emit again");
static_assert(detail::built_from("fused/vector", "bb"),
              "fused/vector: built from other sources than the table was tuned with: sweep and emit again");
static_assert(detail::built_with_abi("prepare/scalar", 1),
              "prepare/scalar: this build lacks it, or takes other arguments than the table was tuned with (ABI 1): sweep and emit again");
static_assert(detail::built_from("prepare/scalar", "aa"),
              "prepare/scalar: built from other sources than the table was tuned with: sweep and emit again");
#endif  // MUSE_BUILD_VARIANTS

}  // namespace dispatch
}  // namespace muse

#endif  // MUSE_DISPATCH_H_
