// SPDX-License-Identifier: Apache-2.0
// What validations of one shape share: its buffers on the target, and all that does not depend on
// the candidate.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tuner/arena.h"
#include "tuner/cases.h"
#include "tuner/partials_view.h"
#include "tuner/target_memory.h"

namespace muse::tuner {

/// A Feed where a chain can be fed from, with what the reference makes of it.
struct FeedOnTarget {
  Feed host;
  std::map<std::string, TargetCopy, std::less<>> buffers;  ///< by BufferSpec name
  std::vector<double> combined;  ///< reference's O of fed partials, [T, Hq, D]; else empty
  std::vector<double> gated;     ///< reference's out of a fed O, [T, Hq, D]; else empty
};

/// An image of the caches that runs start from.
struct CachesOnTarget {
  std::shared_ptr<const CacheImage> host;  ///< where the target is the host, else null
  TargetCopy k, v;
};

/// One case as the target sees it, unchanged by any run.
struct Stand {
  std::shared_ptr<const Case> data;
  std::shared_ptr<const CachesOnTarget> caches;
  std::map<std::string, TargetCopy, std::less<>> inputs;  ///< by BufferSpec name, caches apart
  TargetCopy redirected;                                  ///< the other page table
  TargetCopy q8;                                          ///< the reference's
  std::map<std::string, std::shared_ptr<const FeedOnTarget>> feeds;  ///< by hand-off
  std::vector<double> end_to_end;  ///< reference's out of the whole step, by pair; made at need

  const Problem& problem() const { return data->inputs.shape.problem; }
};

/// One request of a stand in buffers of its own, over the caches of all.
struct AloneStand {
  std::shared_ptr<Stand> stand;
  std::unique_ptr<Arena> arena;
};

class ValidationBench {
 public:
  /// The backend must outlive it. Memory is taken at need.
  ValidationBench(Backend& backend, const Shape& shape, uint64_t seed);

  Backend& backend() const { return backend_; }
  const Shape& shape() const { return shape_; }  ///< a validation_shape
  uint64_t seed() const { return seed_; }
  /// Whether it serves validations of that shape, as given to the constructor.
  bool serves(const Shape& shape, uint64_t seed) const;

  /// kServed and kStored share one. On the host the stands of one fill at a time are kept, on a
  /// GPU all of them while memory lasts. Throws TrialError(kOom).
  std::shared_ptr<Stand> stand(Fill fill, CaseKind kind);
  /// The last request of a stand alone.
  AloneStand& last_alone(const std::shared_ptr<Stand>& stand);
  /// What a chain that starts at `first` is fed with; kept in the stand. `partials` matters to
  /// chains that start at combine.
  std::shared_ptr<const FeedOnTarget> feed(Stand& stand, Stage first, const Handoff& partials);
  /// The last request's part of it, without references.
  std::shared_ptr<const FeedOnTarget> last_alone(const FeedOnTarget& feed, const Problem& problem);
  Arena& arena();  ///< of the whole batch

  /// Attention of the bytes `step` that lie in `in` (on the target), of every pair where the target
  /// can compute it, else of a sample under `budget`.
  std::shared_ptr<const AttentionTruth> truth(const Stand& stand, const StepBytes& step,
                                              const Buffers& in, int64_t budget);
  /// Inputs, hand-off Q8 and caches as the reference makes them, on the target.
  Buffers reference_buffers(const Stand& stand) const;

  /// Memory of the host to read partials into: fresh pages would cost more than the copy.
  PartialsView& scratch() { return scratch_; }
  /// Target memory of at least `bytes`; what was in it is lost.
  void* staging(int64_t bytes);

  /// Frees what was made for one candidate.
  void release_extras();

 private:
  void forget();
  std::shared_ptr<Stand> make_stand(Fill fill, bool independent);
  std::shared_ptr<const CachesOnTarget> caches(Fill fill);

  Backend& backend_;
  const Shape asked_, shape_;
  const uint64_t seed_;
  std::unique_ptr<Arena> arena_;
  TargetBlock staging_;
  std::map<Fill, std::shared_ptr<const CachesOnTarget>> caches_;
  std::map<std::pair<Fill, bool>, std::shared_ptr<Stand>> stands_;
  AloneStand alone_;
  std::shared_ptr<Stand> alone_of_;
  PartialsView scratch_;
};

}  // namespace muse::tuner
