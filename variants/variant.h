// SPDX-License-Identifier: Apache-2.0
// The contract of a variant: what one stem says about itself. A plain value with function pointers;
// nothing here runs before main or touches a device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "variants/buffers.h"
#include "variants/expression.h"
#include "variants/problem.h"
#include "variants/runtime/device_class.h"

namespace muse {

/// Yes, or the reason why not.
struct Support {
  std::string reason;  ///< empty = yes
  bool ok() const { return reason.empty(); }
  static Support yes() { return {}; }
  static Support no(std::string reason) { return {std::move(reason)}; }
};

struct Tunable {
  std::string name;
  std::vector<int64_t> values;
  int64_t default_value;
};

struct Constraint {
  std::string expr;    ///< see expression.h; a configuration is legal where it is not 0
  std::string reason;  ///< what breaks otherwise
};

struct Dim3 {
  int64_t x = 1, y = 1, z = 1;
};

struct Launch {
  std::string entry;       ///< CUDA: one of Variant::entries; host: a label for reports
  Dim3 grid, block;        ///< host: block.x = threads
  Dim3 cluster;            ///< 1,1,1 = none
  int64_t smem_bytes = 0;  ///< dynamic
  bool pdl = false;        ///< may start before its predecessor has ended (it waits by itself)
};

struct Workspace {
  int64_t bytes = 0;
  bool zeroed_once = false;  ///< zero before the first use, kept right by the kernels themselves
  bool double_buffered = false;  ///< two of them, used in turns
};

struct Geometry {
  std::vector<Launch> launches;
  Workspace workspace;
};

/// The argument block of one launch: a trivially copyable POD, passed as __grid_constant__.
class Arguments {
 public:
  static constexpr size_t kCapacity = 4032;
  template <class Pod>
  static Arguments of(const Pod& pod) {
    static_assert(std::is_trivially_copyable_v<Pod> && sizeof(Pod) <= kCapacity);
    Arguments arguments;
    std::memcpy(arguments.bytes_, &pod, sizeof(Pod));
    arguments.size_ = sizeof(Pod);
    return arguments;
  }
  template <class Pod>
  const Pod& as() const {
    return *reinterpret_cast<const Pod*>(bytes_);
  }
  const void* data() const { return bytes_; }
  size_t size() const { return size_; }

 private:
  alignas(128) std::byte bytes_[kCapacity];
  size_t size_ = 0;
};

/// A tensor map to encode; extents and strides innermost first. Of fixed size, as it is made anew
/// in every bind, which allocates nothing.
struct TensorMapRequest {
  static constexpr size_t kMostRank = 5;
  const void* base = nullptr;
  Element element = Element::kByte;
  size_t rank = 0;  ///< how many of the entries below count
  std::array<int64_t, kMostRank> extent = {};
  std::array<int64_t, kMostRank - 1> stride_bytes = {};  ///< of the outer dimensions
  std::array<int32_t, kMostRank> box = {};
  int32_t swizzle_bytes = 0;
};
/// Writes the 128 bytes of a tensor map. Empty on the host.
using TensorMapEncoder = std::function<Support(const TensorMapRequest&, void* map128)>;

enum class TargetKind : uint8_t { kHost, kCuda };
struct Target {
  TargetKind kind = TargetKind::kHost;
  int minimum_cc = 0;  ///< CUDA: 80, 89, 90, ...
  int exact_cc = 0;  ///< CUDA: this one only (architecture-specific code), 0 = any from the minimum
};
std::string_view name(TargetKind kind);  ///< host, cuda

/// What P is kept in between softmax and P*V: decides the limit of gate 3 (SPEC: 4e-3 unless e4m3).
enum class Precision : uint8_t { kF32, kF16, kBf16, kE4m3 };
std::string_view name(Precision precision);

struct Declared {
  bool batch_invariant = false;  ///< one request alone and in a batch give the same bits,
  std::string batch_invariant_unless = {};  ///< unless this tunable is not 0; empty: always
  bool deterministic = true;                ///< run to run the same bits
  Precision precision = Precision::kF32;
};

struct Variant {
  std::string
      name;     ///< "stage/stem"; stage "fused" where the span starts at prepare and goes beyond
  int abi = 1;  ///< of the argument POD and the launch order; rises when they change
  Target target;
  std::vector<Tunable> tunables;
  std::vector<Constraint> constraints;
  Declared declared;
  /// CUDA: the kernel templates of `stem.cuh`, named without their namespace muse::<stage>_<stem>;
  /// each takes the configuration as its type parameter. Host: empty.
  std::vector<std::string> entries;

  Support (*supports)(const Problem&, const Configuration&, const DeviceClass&) = nullptr;
  Span (*span)(const Configuration&) = nullptr;
  /// What it leaves behind; its kind follows from the span's last stage, except that attention
  /// leaves kPartials where its span ends at attention.
  Handoff (*produces)(const Problem&, const Configuration&) = nullptr;
  /// Whether it can take what the stage before left. Never asked of a span that starts at prepare.
  Support (*consumes)(const Problem&, const Configuration&, const Handoff&) = nullptr;
  Geometry (*geometry)(const Problem&, const Configuration&, const DeviceClass&) = nullptr;
  /// `launch` counts into geometry().launches. Buffers that the span neither reads nor writes may
  /// be null; taps are null when timed.
  Arguments (*bind)(const Problem&, const Configuration&, const Buffers&, void* workspace,
                    const TensorMapEncoder& encode, int launch) = nullptr;
  /// Host target only: runs launch number `launch` to its end.
  void (*host_entry)(const Arguments&, int launch) = nullptr;
};

/// A variant with one of its legal configurations.
struct Candidate {
  const Variant* variant = nullptr;
  Configuration configuration;

  Span span() const { return variant->span(configuration); }
  bool operator==(const Candidate&) const = default;
};

/// Candidates in stage order whose spans join; a pipeline where they cover the whole step.
struct Chain : std::vector<Candidate> {
  using vector::vector;
  /// Launches that allow it (Launch::pdl) start before their predecessor has ended: programmatic
  /// dependent launch.
  bool pdl = false;

  bool operator==(const Chain& other) const {
    return pdl == other.pdl &&
           static_cast<const vector&>(*this) == static_cast<const vector&>(other);
  }
};

/// What the candidate's variant declares of this configuration.
bool is_batch_invariant(const Candidate& candidate);

/// "attention/simt:splits=4,tile_kv=64" (tunables sorted); "gate/scalar" without tunables.
std::string key(const Candidate& candidate);
/// Candidate keys joined by " + "; with programmatic dependent launch " + pdl" at the end.
std::string key(const Chain& chain);
/// First stage of the first to last stage of the last.
Span span(const Chain& chain);

Configuration default_configuration(const Variant& variant);
/// Every legal configuration: the product of the tunables' values (narrowed to those that
/// `overrides` lists; names the variant does not have are passed over) less what the variant's and
/// the `extra` constraints remove; ordered by tunable name, then value. Throws std::logic_error on
/// an expression that does not parse or evaluate (the registry checks the variant's own, the config
/// loader the extra ones).
std::vector<Configuration> space(const Variant& variant,
                                 const std::map<std::string, std::vector<int64_t>>& overrides = {},
                                 const std::vector<Expression>& extra = {});
/// Empty if the configuration names exactly the variant's tunables with listed values and breaks no
/// constraint, else the reason.
std::string check(const Variant& variant, const Configuration& configuration);

/// Whether the chain's spans join and each hand-off is accepted; else the reason.
Support joins(const Problem& problem, const Chain& chain);

}  // namespace muse
