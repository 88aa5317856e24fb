// SPDX-License-Identifier: Apache-2.0
// The target as the tuner sees it: memory, binding and running candidates, samplers, cache control.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "profiler/clock_reading.h"
#include "profiler/device_instance.h"
#include "profiler/sampler.h"
#include "tuner/floor_model.h"
#include "tuner/outcome.h"
#include "variants/reference/reference.h"
#include "variants/variant.h"

struct CUstream_st;

namespace muse::tuner {

/// A candidate could not be bound, launched or run; becomes its outcome, never ends the worker.
class TrialError : public std::runtime_error {
 public:
  TrialError(Outcome outcome, const std::string& what)
      : std::runtime_error(what), outcome(outcome) {}
  Outcome outcome;  ///< kCompileFailed, kLaunchFailed, kOom, ...
};

/// The device has failed under this process (illegal access, trap, ...): nothing more can run in
/// it. Passes through every handler; the worker ends with it.
class DeviceFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The target, or the timer on it, cannot be had at all.
class TargetError : public std::runtime_error {
 public:
  enum class Kind : uint8_t { kDevice, kTimer };
  TargetError(Kind kind, int code, const std::string& what)
      : std::runtime_error(what), kind(kind), code(code) {}
  Kind kind;
  int code;  ///< CUDA's or CUPTI's; 0 where there is none
};

/// Launches in order: one candidate bound to buffers, or several captured into one graph.
class Program {
 public:
  virtual ~Program() = default;
  virtual int launches() const = 0;
  /// Enqueues launch number `launch`; the host runs it to its end.
  virtual void launch(int launch) = 0;
  /// Symbols of the kernels that all launches together run, in order; empty on the host.
  virtual std::vector<std::string> kernels() const = 0;
};

/// Bytes to be put somewhere on the target: from elsewhere there, not overlapping, or (source null)
/// one byte over and over.
struct Put {
  void* target = nullptr;
  const void* source = nullptr;
  int64_t bytes = 0;
  uint8_t byte = 0;
};

/// Bytes on the target, and what they should be: others there, or (expected null) one byte over and
/// over.
struct Compared {
  const void* got = nullptr;
  const void* expected = nullptr;
  int64_t bytes = 0;
  uint8_t byte = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual TargetKind target() const = 0;
  virtual const DeviceClass& device_class() const = 0;
  virtual const profiler::DeviceInstance& device_instance() const = 0;
  /// What made the code that runs: "nvrtc 13.0"; host: the compiler. Part of a trial's key.
  virtual std::string toolkit() const = 0;

  /// 256-byte aligned. Throws TrialError(kOom) with requested and free bytes.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* address) = 0;
  virtual void upload(void* target, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* target, int64_t bytes) = 0;
  /// All of them, in any order: none overlaps another one's target.
  virtual void put(std::span<const Put> puts) = 0;
  /// Where the first byte that differs is: in which of `all`, and how far into it.
  struct Difference {
    size_t index;
    int64_t offset;
  };
  virtual std::optional<Difference> first_difference(std::span<const Compared> all) = 0;
  void fill(void* target, uint8_t byte, int64_t bytes) {
    const Put one{.target = target, .bytes = bytes, .byte = byte};
    put({&one, 1});
  }
  void copy(void* target, const void* source, int64_t bytes) {
    const Put one{.target = target, .source = source, .bytes = bytes};
    put({&one, 1});
  }
  /// Waits for everything enqueued; throws DeviceFault where the device reports one.
  virtual void synchronize() = 0;

  /// `workspace` holds geometry().workspace.bytes (twice that if double-buffered).
  virtual std::unique_ptr<Program> bind(const Candidate& candidate, const Problem& problem,
                                        const Buffers& buffers, void* workspace) = 0;
  /// One program of one launch that runs the given ones in order: a captured graph, with
  /// programmatic edges where `pdl` is set and both sides allow it, and none between one chain of
  /// `chain_length` programs and the next. They must outlive it. Null where the target has no
  /// graphs: there they are launched one by one.
  virtual std::unique_ptr<Program> capture(const std::vector<Program*>& programs, bool pdl,
                                           size_t chain_length) = 0;

  /// Attention of all (request, head) pairs on the target at double precision, and the FA3
  /// emulation; inputs as in Buffers, on the target. Both are ordered as reference::Pair orders.
  /// nullopt on the host, whose reference samples pairs.
  struct TargetTruth {
    reference::Attention exact, emulated;
  };
  virtual std::optional<TargetTruth> attention_truth(const Problem& problem,
                                                     const Buffers& buffers) = 0;

  /// What partials on the target combine to in double precision, and the first element of each kind
  /// that they must not hold; -1 where there is none.
  struct CombinedPartials {
    std::vector<double> o;               ///< [T, Hq, D]; empty where no values were asked for
    std::vector<double> lse;             ///< [T, Hq] base 2; the same
    int64_t bad_n_splits = -1;           ///< request
    int64_t nan_lse = -1, inf_lse = -1;  ///< elements of partial_lse that count
    int64_t nan_o = -1;                  ///< of partial_o, of splits that are not empty
  };
  /// nullopt on the host.
  virtual std::optional<CombinedPartials> combined_partials(const Problem& problem,
                                                            const Buffers& buffers,
                                                            bool values) = 0;

  /// Where everything is enqueued; null on the host.
  virtual CUstream_st* stream() const { return nullptr; }
  virtual profiler::Sampler& sampler() = 0;
  /// Puts the caches into the regime's state before a sample; enqueued on a GPU.
  virtual void flush_caches() = 0;
  virtual profiler::ClockReading read_clock() = 0;
  /// What the device can do at best, and what the sampler shows of nothing.
  virtual DeviceLimits limits() = 0;
  /// Regime recipe, flush and sampler version; part of the protocol hash.
  virtual std::string protocol() const = 0;
};

/// The CPU as a target.
std::unique_ptr<Backend> make_host_backend();

struct CudaOptions {
  int device = 0;  ///< ordinal among the visible ones
  profiler::Timer timer = profiler::Timer::kCupti;
  std::filesystem::path cache;  ///< cubins
  std::string toolkit;          ///< that those were compiled with
};
/// A GPU as a target. Throws TargetError; in a build without CUDA always.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

}  // namespace muse::tuner
