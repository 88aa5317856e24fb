// SPDX-License-Identifier: Apache-2.0
// What validation feeds a chain with: poisoned inputs, reference hand-offs, and the references,
// kept from one candidate to the next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tuner/gates.h"
#include "tuner/inputs.h"
#include "variants/reference/reference.h"

namespace muse::tuner {

/// The byte in every cache row that is neither attended nor written: NaN in E4M3.
inline constexpr uint8_t kForeignRowByte = 0x7F;

enum class CaseKind : uint8_t {
  /// As served: cache_loc follows page_table, positions follow seq_lens. The step's rows are to be
  /// written by the chain and poisoned before.
  kServed,
  /// The same with the step's rows as the reference writes them, for chains that start later.
  kStored,
  /// Shifted positions, cache_loc in rows that page_table does not know, values that saturate: what
  /// was derived instead of read shows. Only prepare's bytes and the poison mean something here.
  kIndependent,
};

struct Case {
  Inputs inputs;                    ///< without caches; page_table -1 where no key is attended
  std::vector<int32_t> redirected;  ///< page_table with a page of poison in place of -1
  reference::Prepared prepared;
};

/// Both caches of one (shape, seed, fill), each [pages, ps, Hkv, D]: random codes in attended rows,
/// the step's rows as the reference writes them, kForeignRowByte in all others.
struct CacheImage {
  std::unique_ptr<uint8_t[]> k, v;
  int64_t bytes = 0;  ///< of each
};

/// Hand-offs for a chain that does not start at prepare; empty = not fed.
struct Feed {
  Handoff partials{.kind = HandoffKind::kO};  ///< kPartials where those are fed or produced
  std::vector<uint8_t> q8, partial_o;
  std::vector<float> partial_lse;
  std::vector<int32_t> n_splits;
  std::vector<uint16_t> o;
};

/// `shape` with a pool just larger than its lengths need: room for the step's rows once more and
/// for a page of poison. A pool with byte offsets beyond 31 bits keeps its size.
Shape validation_shape(const Shape& shape);

/// From the store of recent ones where it is there. `shape` is a validation_shape. kServed and
/// kStored differ in the caches alone and share one. cos_sin has as many rows for every kind.
std::shared_ptr<const Case> make_case(const Shape& shape, uint64_t seed, Fill fill, CaseKind kind);

/// From the store of recent ones, too.
std::shared_ptr<const CacheImage> make_caches(const Shape& shape, uint64_t seed, Fill fill);

/// Rows of the caches that hold kPoisonByte before the step in place of the image's bytes: those
/// that it is to write.
std::vector<int64_t> poisoned_rows(const Case& data, CaseKind kind);

/// Element of a cache for the one at `index` of the step's rows in the order of the tokens.
int64_t cache_index(const Case& data, int64_t index);

/// What a chain that starts at `first` reads, from references and seeds. Partials: ragged n_splits,
/// one empty split in each (token, head) and one fully masked head; what must not be read is NaN.
/// O: normal data of many magnitudes and a head of zeros.
Feed make_feed(const Case& data, Stage first, const Handoff& partials);

/// Request `b` alone, over the caches of all. Only structure and data are right in the result's
/// shape, not its lengths.
Case slice(const Case& data, int64_t b);
Feed slice(const Feed& feed, const Problem& problem, int64_t b);

/// What attention sees of a case beyond its image: hand-off Q8, and the step's rows of the caches
/// in the order of the tokens.
struct StepBytes {
  std::vector<uint8_t> q8, k, v;
  bool operator==(const StepBytes&) const = default;
};

/// The attention of `bytes` in that case: make()'s, or from the store of recent ones where the same
/// was asked for. `how` tells references of one case apart.
std::shared_ptr<const AttentionTruth> kept_truth(const Case& data, const StepBytes& bytes,
                                                 const std::string& how,
                                                 const std::function<AttentionTruth()>& make);

/// Reference of the pairs that sample_pairs() takes under `budget`; all pointers are the host's.
AttentionTruth sampled_truth(const Case& data, const Buffers& in, const uint8_t* q8,
                             int64_t budget);

}  // namespace muse::tuner
