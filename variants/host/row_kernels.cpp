// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this CPU has, and the table of each.
#include "variants/host/row_kernels.h"

#include "variants/host/simd_avx2.h"
#include "variants/host/simd_avx512.h"
#include "variants/host/simd_baseline.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace muse::host {
namespace {

#if defined(__x86_64__)
// clang's __builtin_cpu_supports does not know f16c: bit 29 of ECX in leaf 1. The operating
// system's part, saving the wide registers, is in the answer to avx2.
bool has_f16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 29)) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512vbmi") != 0;
}
#endif

}  // namespace

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return {};
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::kBaseline};
#if defined(__x86_64__)
  if (has_avx2()) isas.push_back(Isa::kAvx2);
  if (has_avx2() && has_avx512()) isas.push_back(Isa::kAvx512);
#endif
  return isas;
}

const RowKernels& row_kernels(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      break;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2::kRowKernels;
    case Isa::kAvx512:
      return avx512::kRowKernels;
#else
    case Isa::kAvx2:
    case Isa::kAvx512:
      break;
#endif
  }
  return baseline::kRowKernels;
}

// No list is made here: a first run allocates no more than the others.
const RowKernels& row_kernels() {
  static const RowKernels& widest = []() -> const RowKernels& {
#if defined(__x86_64__)
    if (has_avx2()) return row_kernels(has_avx512() ? Isa::kAvx512 : Isa::kAvx2);
#endif
    return row_kernels(Isa::kBaseline);
  }();
  return widest;
}

}  // namespace muse::host
