// SPDX-License-Identifier: Apache-2.0
// Kernels for tests of the emulator itself.
#pragma once

#include "tests/simt/machine.h"

namespace muse::simt_test {

struct Args {
  int* out;
  const int* in;
  int number;
};

simt::Kernel rotate_kernel();
simt::Kernel read_unwritten_kernel();
simt::Kernel shuffle_kernel();
simt::Kernel shuffle_in_halves_kernel();
simt::Kernel ends_early_kernel();
simt::Kernel parts_at_barrier_kernel();
simt::Kernel lacks_itself_kernel();
simt::Kernel mma_in_half_a_warp_kernel();
simt::Kernel multiply_kernel();
simt::Kernel transpose_kernel();
simt::Kernel copy_kernel();
simt::Kernel write_shared_kernel();
simt::Kernel misaligned_kernel();
simt::Kernel dereference_null_kernel();
simt::Kernel pass_on_kernel();
simt::Kernel store_to_the_ended_kernel();
simt::Kernel misuse_cluster_kernel();
simt::Kernel through_ring_kernel();
simt::Kernel copy_box_kernel();
simt::Kernel come_last_kernel();
simt::Kernel count_kernel();

}  // namespace muse::simt_test
