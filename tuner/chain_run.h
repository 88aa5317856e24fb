// SPDX-License-Identifier: Apache-2.0
// One chain on one case's buffers: restore, poison, run, and look at what it left behind.
#pragma once

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/arena.h"
#include "tuner/cases.h"

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

/// Split-KV partials as read back.
struct PartialsView {
  std::vector<uint8_t> o;
  std::vector<float> lse;
  std::vector<int32_t> n_splits;
};

class ChainRun {
 public:
  using Announce = std::function<void(int candidate, int launch)>;

  /// Keeps references to everything given. Throws TrialError where memory does not suffice.
  ChainRun(Backend& backend, const Chain& chain, const Case& data, const Feed& feed);

  /// Restores the inputs, poisons what the chain shall write, binds and runs. Throws TrialError for
  /// whatever the chain throws.
  void run(const std::vector<int32_t>& page_table, bool taps, const Announce& announce);

  /// Guard bands, inputs, and cache rows that were not the step's to write.
  std::optional<GateFailure> disturbed();
  /// Products of the chain hold no poison and no NaN. Call after disturbed().
  std::optional<GateFailure> unwritten(bool taps) const;
  /// An enabled tap that nobody has written to; empty if there is none.
  std::string silent_tap() const;

  /// A copy of a buffer by its BufferSpec name.
  template <class T>
  std::vector<T> read(std::string_view name) const {
    const std::vector<uint8_t> bytes = arena_.download(area(name).name);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  /// What nobody may read set to zero, so that two runs can be compared.
  PartialsView partials() const;
  /// The caches after the run, as disturbed() has read them.
  std::vector<uint8_t>& k_cache() { return k_cache_; }
  std::vector<uint8_t>& v_cache() { return v_cache_; }
  /// Rows cache_loc of a cache, in the order of the tokens.
  std::vector<uint8_t> step_rows(const std::vector<uint8_t>& cache) const;

 private:
  const Arena::Area& area(std::string_view name) const;
  void restore(const std::vector<int32_t>& page_table);
  std::optional<GateFailure> unwritten_partials() const;
  std::optional<GateFailure> changed_cache(std::string_view name,
                                           const std::vector<uint8_t>& before,
                                           const std::vector<uint8_t>& after) const;

  Backend& backend_;
  const Chain& chain_;
  const Case& case_;
  const Feed& feed_;
  Sight sight_;
  Arena arena_;
  int runs_ = 0;
  std::vector<Arena::Area> areas_;
  std::vector<uint8_t> k_cache_, v_cache_;
  std::vector<std::vector<uint8_t>> sources_;  ///< by area; empty for what is no input
};

}  // namespace muse::tuner
