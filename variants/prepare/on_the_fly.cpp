// SPDX-License-Identifier: Apache-2.0
// prepare/on_the_fly: cosines and sines computed from inv_freq, not loaded.
#include "variants/prepare/on_the_fly.cuh"

#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/device/prepare_contract.h"
#include "variants/registry.h"

namespace muse::prepare_on_the_fly {
namespace {

Support supports(const Problem& problem, const Configuration&, const DeviceClass& device) {
  if (!problem.rope()) return Support::no("no RoPE: prepare/warp is the same kernel");
  // The table's rows are f32(position) apart, and the reduction is exact below 2^24.
  return device::check_cuda(problem, device);
}

Arguments bind(const Problem& problem, const Configuration&, const Buffers& buffers, void*,
               const TensorMapEncoder&, int) {
  Args args{.prepare = device::prepare_args(problem, buffers, buffers.q8), .inv_freq = {}};
  for (int64_t pair = 0; pair < problem.head_dim / 2; ++pair) {
    args.inv_freq[pair] = device::inverse_frequency(problem.rope_theta, problem.head_dim, pair);
  }
  return Arguments::of(args);
}

Variant make_variant() {
  Variant variant;
  variant.name = "prepare/on_the_fly";
  device::set_prepare_contract(variant);
  device::set_token_launch(variant);
  variant.entries = {"prepare"};
  variant.supports = supports;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::prepare_on_the_fly

MUSE_REGISTER_VARIANT(prepare, on_the_fly, prepare_on_the_fly::make_variant())
