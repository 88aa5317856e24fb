// SPDX-License-Identifier: Apache-2.0
// combine/gated: partials to O, and O through the gate, in one kernel.
#pragma once

#include "variants/device/combine.cuh"

namespace muse::combine_gated {

struct Args {
  device::CombineInputs in;
  const uint16_t* qkv;  // bf16 [T, (2*Hq+2*Hkv)*D]
  uint16_t* out;        // bf16 [T, Hq*D]
  uint16_t* o_tap;      // bf16 [T, Hq, D], null when timed
  int32_t num_kv_heads;
};

#if defined(MUSE_DEVICE_CODE)

template <class C>
__global__ void __launch_bounds__(C::threads) combine(const __grid_constant__ Args args) {
  const int heads = args.in.num_q_heads;
  const device::RowPlace row = device::row_place<C::threads, C::lanes>(args.in.tokens, heads);
  const int slice = row.lane % device::kRowLanes;
  // The gate is an input of the step, older than the launch before: it may be read ahead.
  const device::Slice gate =
      device::load_gate(args.qkv, heads, args.num_kv_heads, row.token, row.head, slice);
  device::wait_for_predecessor();
  device::allow_successor();
  // The gate takes O as it lies in memory: rounded.
  const device::Slice o =
      device::round_bf16(device::combined<C::lanes, C::splits_per_step>(args.in, row));
  const device::Slice out = device::gated(o, gate);
  if (!row.exists || row.lane >= device::kRowLanes) return;
  const int64_t to = device::row_start(row.token, heads, row.head) + slice * device::kSlice;
  if (args.o_tap != nullptr) device::store_bf16(args.o_tap + to, o);
  device::store_bf16(args.out + to, out);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::combine_gated
