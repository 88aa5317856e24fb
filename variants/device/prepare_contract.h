// SPDX-License-Identifier: Apache-2.0
// What the contracts of CUDA variants that prepare have in common.
#pragma once

#include "variants/device/prepare_args.h"
#include "variants/variant.h"

namespace muse::device {

/// Sets target, span, produces, consumes and supports of a variant that is prepare alone: it
/// supports what check_cuda() does.
void set_prepare_contract(Variant& variant);

/// Sets tunables, constraints and geometry of one launch of `warps` warps to a token and `tokens`
/// tokens to a CTA. `early`: whether the launch after may start at once, or not before this one
/// ends.
void set_token_launch(Variant& variant);

/// `q8`: where Q8 goes, the hand-off or a tap.
PrepareArgs prepare_args(const Problem& problem, const Buffers& buffers, uint8_t* q8);

/// inv_freq of pair j, 0..D/2-1, as the table's: RN_f32(1 / RN_f32(theta^(2j/D))).
float inverse_frequency(double rope_theta, int64_t head_dim, int64_t pair);

}  // namespace muse::device
