// SPDX-License-Identifier: Apache-2.0
// How a fake wraps gate/scalar.
#include "tests/fakes/misbehaving/misbehaving.h"

#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "variants/registry.h"

namespace muse {
const Variant& variant_gate_scalar();
}

namespace muse::misbehaving {
namespace {

/// What gate/scalar sees: its own tunables.
Configuration inner_configuration(const Configuration& configuration) {
  Configuration inner = configuration;
  inner.erase("after");
  return inner;
}

Support supports(const Problem& problem, const Configuration& configuration,
                 const DeviceClass& device) {
  return variant_gate_scalar().supports(problem, inner_configuration(configuration), device);
}

Span span(const Configuration& configuration) {
  return variant_gate_scalar().span(inner_configuration(configuration));
}

Handoff produces(const Problem& problem, const Configuration& configuration) {
  return variant_gate_scalar().produces(problem, inner_configuration(configuration));
}

Support consumes(const Problem& problem, const Configuration& configuration,
                 const Handoff& handoff) {
  return variant_gate_scalar().consumes(problem, inner_configuration(configuration), handoff);
}

Geometry geometry(const Problem& problem, const Configuration& configuration,
                  const DeviceClass& device) {
  return variant_gate_scalar().geometry(problem, inner_configuration(configuration), device);
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder& encode, int launch) {
  const Arguments inner = variant_gate_scalar().bind(problem, inner_configuration(configuration),
                                                     buffers, workspace, encode, launch);
  if (inner.size() > Block::kInnerBytes) throw std::length_error("gate/scalar's arguments grew");
  Block block{};
  std::memcpy(block.inner, inner.data(), inner.size());
  block.after = configuration.at("after");
  block.out = buffers.out;
  block.elements = problem.tokens() * problem.num_q_heads * problem.head_dim;
  return Arguments::of(block);
}

struct Inner {
  alignas(128) std::byte bytes[Block::kInnerBytes];
};

}  // namespace

Variant fake_gate(const char* name, void (*entry)(const Arguments&, int launch)) {
  Variant fake = variant_gate_scalar();
  fake.name = name;
  fake.tunables.push_back({"after", {0, 20}, 0});
  fake.supports = supports;
  fake.span = span;
  fake.produces = produces;
  fake.consumes = consumes;
  fake.geometry = geometry;
  fake.bind = bind;
  fake.host_entry = entry;
  return fake;
}

const Block& block(const Arguments& arguments) { return arguments.as<Block>(); }

bool run_until_due(const Arguments& arguments, int launch) {
  static std::mutex mutex;
  static std::map<int64_t, int64_t> launches;
  const Block& all = block(arguments);
  Inner inner;
  std::memcpy(inner.bytes, all.inner, sizeof inner.bytes);
  variant_gate_scalar().host_entry(Arguments::of(inner), launch);
  const std::lock_guard lock(mutex);
  return launches[all.after]++ >= all.after;
}

}  // namespace muse::misbehaving
