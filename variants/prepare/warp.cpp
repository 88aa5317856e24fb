// SPDX-License-Identifier: Apache-2.0
// prepare/warp: norm, RoPE, quantise and store, a token to a warp or a few.
#include "variants/prepare/warp.cuh"

#include "variants/contract.h"
#include "variants/device/contract.h"
#include "variants/device/prepare_contract.h"
#include "variants/registry.h"

namespace muse::prepare_warp {
namespace {

Variant make_variant() {
  Variant variant;
  variant.name = "prepare/warp";
  device::set_prepare_contract(variant);
  device::set_token_launch(variant);
  variant.entries = {"prepare"};
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers, void*,
                    const TensorMapEncoder&, int) {
    return Arguments::of(Args{.prepare = device::prepare_args(problem, buffers, buffers.q8)});
  };
  return variant;
}

}  // namespace
}  // namespace muse::prepare_warp

MUSE_REGISTER_VARIANT(prepare, warp, prepare_warp::make_variant())
