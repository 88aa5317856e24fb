// SPDX-License-Identifier: Apache-2.0
// The emulator's stand-in for variants/device/ptx_phases.cuh, as overlay's ptx.cuh is for that one.
#pragma once

#include "variants/device/ptx.cuh"
#include "variants/device/tensor_map.h"

namespace muse::device {

inline constexpr bool kHasPhaseBarriers = true;

struct alignas(8) PhaseBarrier {
  uint32_t state[2];
};

inline void init_barrier(PhaseBarrier* barrier, int arrivals) {
  simt::init_barrier(barrier, arrivals);
}
inline void publish_barriers() {}
inline void arrive_at(PhaseBarrier* barrier) { simt::arrive_at(barrier, 0); }
inline void arrive_expecting(PhaseBarrier* barrier, int bytes) { simt::arrive_at(barrier, bytes); }
inline void arrive_with_copies(PhaseBarrier* barrier) { simt::arrive_with_copies(barrier); }
inline void wait_at(PhaseBarrier* barrier, int parity) { simt::wait_at(barrier, parity); }

inline void copy_box_async(void* shared, const TensorMap& map, int x, int y, int z, int w,
                           PhaseBarrier* barrier) {
  simt::copy_box(shared, &map, {x, y, z, w}, barrier);
}

template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

}  // namespace muse::device
