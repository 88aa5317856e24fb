// SPDX-License-Identifier: Apache-2.0
// From candidates to machine code: NVRTC in processes of its own, each kernel against a deadline,
// and a cache that knows content, not places.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "tuner/outcome.h"
#include "variants/variant.h"

namespace muse::tuner {

/// One kernel in a cubin. Negative where the log does not say.
struct CompiledKernel {
  std::string entry;                                            ///< of Variant::entries
  std::string symbol;                                           ///< mangled name
  int64_t registers = -1, shared_bytes = -1, spill_bytes = -1;  ///< spill: stores + loads
  bool operator==(const CompiledKernel&) const = default;
};

/// All kernels of one candidate.
struct Compiled {
  std::string cubin;        ///< ELF image
  std::string cubin_hash;   ///< of its bytes
  std::string source_hash;  ///< muse::source_hash()
  std::vector<CompiledKernel> kernels;
  double compile_ms = 0;
  std::string log;  ///< the compiler's, warnings included
};

/// How it ended: kOk, kCompileFailed, kCompileTimeout, kCrashed (the compiler did) or kPending
/// (there is no compiler, or somebody killed it twice: nothing is known of the candidate).
struct CompileResult {
  Outcome outcome = Outcome::kOk;
  std::string reason;  ///< not ok: the compiler's log or what happened
  std::optional<Compiled> compiled;
  bool cached = false;
};

/// A folder of compiled candidates; written by rename, so that any number of processes share it.
class CubinCache {
 public:
  explicit CubinCache(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// $XDG_CACHE_HOME/muse-tune, else ~/.cache/muse-tune; throws IoError without either.
  static std::filesystem::path default_folder();
  const std::filesystem::path& folder() const { return folder_; }

  /// `toolkit`: "nvrtc 13.0"; `architecture`: "sm_90a". nullopt where it is not there or damaged.
  std::optional<Compiled> find(const Candidate& candidate, const std::string& toolkit,
                               const std::string& architecture) const;
  /// Throws IoError or db::Error where the folder cannot be written. Removes temp files of writers
  /// that were killed.
  void store(const Candidate& candidate, const std::string& toolkit,
             const std::string& architecture, const Compiled& compiled) const;
  /// The newest toolkit that some entry was compiled with; empty without one.
  std::string newest_toolkit() const;

 private:
  std::filesystem::path folder_;
};

struct CompileOptions {
  std::string architecture;                   ///< "sm_90a"
  std::filesystem::path cache;                ///< folder
  int jobs = 0;                               ///< compiler processes; 0 = one per CPU
  std::chrono::milliseconds deadline{60000};  ///< for one candidate
  std::filesystem::path executable;           ///< default: this process's own
  const std::atomic<int>* stop = nullptr;     ///< not 0: ends early, what is missing is left out
  std::function<void(const std::string& candidate, double done)> progress = [](const std::string&,
                                                                               double) {};
};

/// "nvrtc 13.0", or why it cannot be loaded with the remedy. Loads it in a process of its own,
/// started from `executable` (default: this process's own).
tl::expected<std::string, std::string> compiler_toolkit(
    const std::filesystem::path& executable = {});

/// NVRTC as it is here.
struct Compiler {
  std::string toolkit;       ///< "nvrtc 13.0"
  std::vector<int> targets;  ///< compute capabilities it compiles for, ascending
};
/// As compiler_toolkit().
tl::expected<Compiler, std::string> find_compiler(const std::filesystem::path& executable = {});

/// Compiles what the cache does not have; by candidate key, CUDA candidates only. Without NVRTC of
/// this toolkit everything must be in the cache; what is not is kPending with that reason. Throws
/// IoError where no process starts or the cache cannot be written.
std::map<std::string, CompileResult> compile_all(const std::vector<Candidate>& candidates,
                                                 const std::string& toolkit,
                                                 const CompileOptions& options);

/// The hidden command: compiles one candidate after the other as told on descriptor `fd`. Returns
/// its exit status.
int compile_worker_main(int fd, int parent_pid);

/// The inverse of muse::cuda_architecture(), with or without a suffix ("a" from 9.0 on, "f" from
/// 10.0 on); 0 for a text that is none.
int cc_of(std::string_view architecture);

}  // namespace muse::tuner
