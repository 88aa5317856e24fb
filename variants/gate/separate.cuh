// SPDX-License-Identifier: Apache-2.0
// gate/separate: O to out, rows of heads apart from each other.
#pragma once

#include "variants/device/rows.cuh"

namespace muse::gate_separate {

struct Args {
  const uint16_t* qkv;  // bf16 [T, (2*Hq+2*Hkv)*D]
  const uint16_t* o;    // bf16 [T, Hq, D]
  uint16_t* out;        // bf16 [T, Hq*D]
  int32_t tokens, num_q_heads, num_kv_heads;
};

#if defined(MUSE_DEVICE_CODE)

template <class C>
__global__ void __launch_bounds__(C::threads) gate(const __grid_constant__ Args args) {
  const int heads = args.num_q_heads;
  const device::RowPlace row = device::row_place<C::threads>(args.tokens, heads);
  // The gate is an input of the step, older than the launch before: it may be read ahead.
  const device::Slice gate =
      device::load_gate(args.qkv, heads, args.num_kv_heads, row.token, row.head, row.lane);
  device::wait_for_predecessor();
  device::allow_successor();
  const int64_t at = device::row_start(row.token, heads, row.head) + row.lane * device::kSlice;
  const device::Slice out = device::gated(device::load_bf16(args.o + at), gate);
  if (row.exists) device::store_bf16(args.out + at, out);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::gate_separate
