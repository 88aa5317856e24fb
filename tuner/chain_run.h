// SPDX-License-Identifier: Apache-2.0
// One chain on one case's buffers: restore, poison, run, and look at what it left behind. Large
// buffers are restored and compared on the target; what a chain makes is read back.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/partly_attended.h"
#include "tuner/validation_bench.h"

namespace muse::tuner {

/// Where the gates look. Names of buffers (of BufferSpec); empty = the chain does not make it.
struct Sight {
  std::string q8;         ///< "q8", or "q8_tap" where prepare is fused
  std::string o;          ///< "o", or "o_tap" where the gate is fused
  bool partials = false;  ///< leaves Partials in memory
  bool out = false;
  bool taps = false;  ///< needs one
};
Sight sight(const Chain& chain);

/// What a chain hands on, kept on the target to be compared with what another run makes.
struct Product {
  std::string buffer;  ///< BufferSpec name
  Element element;
  TargetBlock bytes;
};
struct Products {
  std::vector<Product> buffers;
  std::vector<uint8_t> k, v;  ///< the step's rows of the caches, where the chain writes them
};

class ChainRun {
 public:
  using Announce = std::function<void(int candidate, int launch)>;

  /// Keeps references to everything given; `arena` is the stand's. `partials`: those that the chain
  /// makes or is fed with. Throws TrialError where memory does not suffice.
  ChainRun(ValidationBench& bench, Arena& arena, const Chain& chain, const Stand& stand,
           CaseKind kind, const FeedOnTarget& feed, const Handoff& partials);

  /// Restores the inputs, poisons what the chain shall write, binds and runs. `redirected` picks
  /// the page table. Throws TrialError for whatever the chain throws.
  void run(bool redirected, bool taps, const Announce& announce);
  /// The same, without taps, on inputs that have these NaN: in the step's own rows by way of qkv
  /// where the chain writes them, else in the caches. disturbed() and unwritten() mean nothing
  /// after it.
  void run_with_nan(const std::vector<NanValues>& values, const Announce& announce);

  /// Guard bands, inputs, and cache rows that were not the step's to write.
  std::optional<GateFailure> disturbed();
  /// Products of the chain hold no poison and no NaN. Call after disturbed().
  std::optional<GateFailure> unwritten(bool taps);
  /// An enabled tap that nobody has written to; empty if there is none.
  std::string silent_tap();

  /// A copy of a buffer by its BufferSpec name.
  template <class T>
  std::vector<T> read(std::string_view name) {
    const std::vector<uint8_t>& bytes = bytes_of(name);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  /// What the partials combine to in float64.
  Backend::CombinedPartials combined();
  /// Rows cache_loc of the caches in the order of the tokens, as disturbed() has seen them.
  const std::vector<uint8_t>& step_k() const { return step_k_; }
  const std::vector<uint8_t>& step_v() const { return step_v_; }
  /// Pointers to what is there after the run.
  Buffers buffers() { return arena_.buffers(partials_, true); }

  Products products() const;
  /// The first element of the products in which this run and another differ. Split-KV partials:
  /// what nobody may read does not count.
  std::optional<GateFailure> differs(const Products& other, std::string_view what);

 private:
  const Arena::Area& area(std::string_view name) const;
  const std::vector<uint8_t>& bytes_of(std::string_view name);
  void restore(bool redirected);
  /// What makes them NaN for this chain.
  Put nan_at(const NanValues& values) const;
  /// Binds and runs on what is there.
  void launch_all(bool taps, const Announce& announce);
  /// All programs as one graph with programmatic edges, where the target has graphs.
  void run_overlapping(const std::vector<std::unique_ptr<Program>>& programs,
                       const Announce& announce);
  void poison_step_rows();
  const TargetCopy& input(std::string_view name) const;
  const TargetCopy& image(std::string_view name) const;
  std::optional<GateFailure> changed_cache(std::string_view name,
                                           const std::vector<uint8_t>& prepared,
                                           std::vector<uint8_t>& step);
  /// As read back once a run, in the bench's scratch memory: valid until partials of another run
  /// are read.
  const PartialsView& partials();
  std::optional<GateFailure> unwritten_partials();
  std::optional<GateFailure> unwritten_there(const Backend::CombinedPartials& seen);
  GateFailure illegal_splits(int64_t request, double got) const;
  static GateFailure infinite_lse(int64_t index);
  std::optional<GateFailure> unwritten_rows(std::string_view name,
                                            const std::vector<uint8_t>& rows) const;
  std::optional<GateFailure> differing_partials(const Products& other, std::string_view what);
  /// Offset of the first byte; -1 where none differs.
  int64_t first_difference(const void* got, const void* expected, int64_t bytes) const;
  /// Of the element at that byte of an area, against other bytes on the target.
  GateFailure difference(const Arena::Area& area, int64_t offset, const void* expected,
                         std::string_view what) const;

  ValidationBench& bench_;
  Backend& backend_;
  Arena& arena_;
  const Chain& chain_;
  const Stand& stand_;
  const CaseKind kind_;
  const FeedOnTarget& feed_;
  const Handoff partials_;
  const Sight sight_;
  const int64_t row_bytes_;
  int runs_ = 0;
  bool redirected_ = false;
  std::vector<Arena::Area> areas_;
  std::map<std::string, std::vector<uint8_t>, std::less<>> read_;  ///< of this run
  bool partials_read_ = false;
  std::vector<uint8_t> step_k_, step_v_;
};

}  // namespace muse::tuner
