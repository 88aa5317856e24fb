// SPDX-License-Identifier: Apache-2.0
// A gate for GPUs with one fault per configuration.
#include <numeric>

#include "tests/fakes/misbehaving/variants/gate/fake_fault.cuh"
#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/registry.h"

namespace muse::gate_fake_fault {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Geometry geometry(const Problem& problem, const Configuration& configuration,
                  const DeviceClass& device) {
  Launch launch = device::row_launch("gate", problem.tokens() * problem.num_q_heads,
                                     device::kRowLanes, kThreads);
  launch.pdl = false;
  Workspace workspace;
  switch (static_cast<Fault>(value(configuration, "fault"))) {
    case kNone:
    case kIllegalAddress:
    case kMisalignedAddress:
    case kTrap:
    case kAssert:
    case kSharedOverrun:
    case kSpin:
    case kFlood:
      break;
    case kLate:
      workspace = {.bytes = 256, .zeroed_once = true};
      break;
    case kTooManyThreads:
      launch.block.x = 2048;
      break;
    case kGridTooHigh:
      launch.grid.y = 70000;
      break;
    case kTooMuchShared:
      launch.smem_bytes = 1 << 20;
      break;
    case kOutOfMemory:
      workspace.bytes = device.memory_bytes + kGiB;
      break;
  }
  return {.launches = {launch}, .workspace = workspace};
}

Variant make_variant() {
  std::vector<int64_t> faults(kFaults);
  std::iota(faults.begin(), faults.end(), 0);
  Variant variant;
  variant.name = "gate/fake_fault";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = {{.name = "fault", .values = faults, .default_value = kNone}};
  variant.entries = {"gate"};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    return device::check_cuda(problem, device);
  };
  variant.span = [](const Configuration&) { return Span{Stage::kGate, Stage::kGate}; };
  variant.produces = [](const Problem&, const Configuration&) {
    return Handoff{.kind = HandoffKind::kOut};
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kO, handoff);
  };
  variant.geometry = geometry;
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers,
                    void* workspace, const TensorMapEncoder&, int) {
    return Arguments::of(Args{.qkv = buffers.qkv,
                              .o = buffers.o,
                              .out = buffers.out,
                              .launches = static_cast<int32_t*>(workspace),
                              .tokens = static_cast<int32_t>(problem.tokens()),
                              .num_q_heads = static_cast<int32_t>(problem.num_q_heads),
                              .num_kv_heads = static_cast<int32_t>(problem.num_kv_heads)});
  };
  return variant;
}

}  // namespace
}  // namespace muse::gate_fake_fault

MUSE_REGISTER_VARIANT(gate, fake_fault, gate_fake_fault::make_variant())
