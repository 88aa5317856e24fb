// SPDX-License-Identifier: Apache-2.0
// What a plan needs of the kind of device that it is for: a CPU or a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>

#include "variants/runtime/linked_table.h"
#include "variants/runtime/muse_attention.h"
#include "variants/variant.h"

namespace muse::runtime {

/// Why a call of the C interface does not do what it was asked for.
struct Failure {
  muse_attention_status status;
  std::string what;
};
template <class T>
using Expected = tl::expected<T, Failure>;

/// What a device said where a step is enqueued. The texts are constants: a run allocates nothing,
/// not even where it fails.
struct LaunchError {
  int code = 0;  ///< 0 = none
  const char* name = "";
  const char* text = "";
  explicit operator bool() const { return code != 0; }
};

/// One launch, with all that does not depend on addresses and lengths made ready.
class ReadyLaunch {
 public:
  ReadyLaunch() = default;
  ReadyLaunch(const ReadyLaunch&) = delete;
  ReadyLaunch& operator=(const ReadyLaunch&) = delete;
  virtual ~ReadyLaunch() = default;
  /// Enqueues it; on the host it has run to its end when this returns.
  virtual LaunchError run(const Arguments& arguments, void* stream) const = 0;
};

/// Which launch of a candidate to make ready.
struct LaunchRequest {
  const Candidate& candidate;
  const Launch& launch;
  int index;          ///< among the candidate's launches
  bool programmatic;  ///< it may start before the launch ahead of it in the stream has ended
};

/// Stateless; the references given to load() outlive what it returns.
class Target {
 public:
  virtual ~Target() = default;
  virtual TargetKind kind() const = 0;
  /// The number of a device that may be asked for as MUSE_ATTENTION_CURRENT_DEVICE.
  virtual Expected<int> ordinal(int asked) const = 0;
  virtual Expected<DeviceClass> device_class(int ordinal) const = 0;
  /// Loads its code there, so that no run does.
  virtual Expected<std::unique_ptr<ReadyLaunch>> load(int ordinal, const LaunchRequest& request,
                                                      std::span<const Kernel> kernels) const = 0;
  /// Empty on the host.
  virtual TensorMapEncoder encoder() const = 0;
  /// Enqueues zeros.
  virtual LaunchError zero(void* memory, size_t bytes, void* stream) const = 0;
  /// An error where the calling thread is not at that device.
  virtual LaunchError elsewhere(int ordinal) const = 0;
};

}  // namespace muse::runtime
