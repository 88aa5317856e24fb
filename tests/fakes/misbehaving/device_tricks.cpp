// SPDX-License-Identifier: Apache-2.0
// A gate for GPUs under many names and with tricks that timing could fall for.
#include <numeric>

#include "tests/fakes/misbehaving/variants/gate/fake_trick.cuh"
#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/registry.h"

namespace muse::gate_fake_trick {
namespace {

std::vector<int64_t> up_to(int count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

Variant make_variant() {
  Variant variant;
  variant.name = "gate/fake_trick";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = {{.name = "name", .values = up_to(kNames), .default_value = 0},
                      {.name = "trick", .values = up_to(kTricks), .default_value = kHonest}};
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
  variant.geometry = [](const Problem& problem, const Configuration& configuration,
                        const DeviceClass&) {
    Launch launch = device::row_launch("gate", problem.tokens() * problem.num_q_heads,
                                       device::kRowLanes, kThreads);
    launch.pdl = false;
    Workspace workspace;
    if (value(configuration, "trick") == kSlowStart)
      workspace = {.bytes = 256, .zeroed_once = true, .double_buffered = true};
    return Geometry{.launches = {launch}, .workspace = workspace};
  };
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
}  // namespace muse::gate_fake_trick

MUSE_REGISTER_VARIANT(gate, fake_trick, gate_fake_trick::make_variant())
