// SPDX-License-Identifier: Apache-2.0
// The target as the tuner sees it: memory, binding and running candidates, samplers, cache control.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "profiler/device_instance.h"
#include "profiler/sampler.h"
#include "tuner/outcome.h"
#include "variants/variant.h"

namespace muse::tuner {

/// A candidate could not be bound, launched or run; becomes its outcome, never ends the worker.
class TrialError : public std::runtime_error {
 public:
  TrialError(Outcome outcome, const std::string& what)
      : std::runtime_error(what), outcome(outcome) {}
  Outcome outcome;  ///< kCompileFailed, kLaunchFailed, kOom, ...
};

/// One candidate bound to buffers: its launches in order.
class Program {
 public:
  virtual ~Program() = default;
  virtual int launches() const = 0;
  /// Enqueues launch number `launch`; the host runs it to its end.
  virtual void launch(int launch) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual TargetKind target() const = 0;
  virtual const DeviceClass& device_class() const = 0;
  virtual const profiler::DeviceInstance& device_instance() const = 0;

  /// 256-byte aligned. Throws TrialError(kOom) with requested and free bytes.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* address) = 0;
  virtual void upload(void* target, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* target, int64_t bytes) = 0;
  virtual void fill(void* target, uint8_t byte, int64_t bytes) = 0;
  /// Waits for everything enqueued; throws TrialError where the device reports a fault.
  virtual void synchronize() = 0;

  /// `workspace` holds geometry().workspace.bytes (twice that if double-buffered).
  virtual std::unique_ptr<Program> bind(const Candidate& candidate, const Problem& problem,
                                        const Buffers& buffers, void* workspace) = 0;
  virtual profiler::Sampler& sampler() = 0;
  /// Puts the caches into the regime's state before a sample.
  virtual void flush_caches() = 0;
  /// Regime recipe, flush and sampler version; part of the protocol hash.
  virtual std::string protocol() const = 0;
};

/// The CPU as a target.
std::unique_ptr<Backend> make_host_backend();

}  // namespace muse::tuner
