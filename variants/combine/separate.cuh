// SPDX-License-Identifier: Apache-2.0
// combine/separate: partials to O, rows of heads apart from each other.
#pragma once

#include "variants/device/combine.cuh"

namespace muse::combine_separate {

struct Args {
  device::CombineInputs in;
  uint16_t* o;  // bf16 [T, Hq, D]
};

#if defined(MUSE_DEVICE_CODE)

template <class C>
__global__ void __launch_bounds__(C::threads) combine(const __grid_constant__ Args args) {
  const int heads = args.in.num_q_heads;
  const device::RowPlace row = device::row_place<C::threads, C::lanes>(args.in.tokens, heads);
  device::wait_for_predecessor();
  device::allow_successor();
  const device::Slice o = device::combined<C::lanes, C::splits_per_step>(args.in, row);
  if (!row.exists || row.lane >= device::kRowLanes) return;
  const int64_t to = device::row_start(row.token, heads, row.head) + row.lane * device::kSlice;
  device::store_bf16(args.o + to, o);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::combine_separate
