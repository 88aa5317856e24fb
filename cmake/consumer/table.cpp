// SPDX-License-Identifier: Apache-2.0
// Joins an emitted dispatch table and the library: compiled by the consumer's build, with the
// emitted folder and include/muse_tune on the include path. C++17.
//
// In this order: build_variants.h says what the library has, and muse_dispatch.h is held against
// it, so that a table of other sources or of another library is an error here.
#include "variants/runtime/build_variants.h"
//
#include "muse_dispatch.h"
//
#include "variants/runtime/linked_table.h"

#if MUSE_DISPATCH_FORMAT != MUSE_BUILD_DISPATCH_FORMAT
#error "muse_dispatch.h is of another format than this library reads: emit again with its muse-tune"
#endif
#ifndef MUSE_DISPATCH_VARIANTS
#error \
    "muse_dispatch.h does not list its variants for the linker: it is of an older muse-tune, or names a variant that is no C++ identifier: sweep and emit again with the muse-tune of this library"
#endif

namespace muse {

// What a stem defines (MUSE_REGISTER_VARIANT): naming it takes its object out of the library.
#define MUSE_DECLARE(stage, stem) const Variant& variant_##stage##_##stem();
MUSE_DISPATCH_VARIANTS(MUSE_DECLARE)
#undef MUSE_DECLARE

namespace runtime {
namespace {

#define MUSE_NAME(stage, stem) &variant_##stage##_##stem,
const Variant& (*const kLinkedVariants[])() = {MUSE_DISPATCH_VARIANTS(MUSE_NAME)};
#undef MUSE_NAME

// In a template what is not taken is not even named: a CPU's table asks for nothing of CUDA.
template <bool host>
LinkedTable made_for_its_target() {
  LinkedTable table = {};
  table.contexts = &dispatch::kTable;
  table.captured = &dispatch::kCapturedTable;
  table.rules = &dispatch::kRules;
  table.device = &dispatch::kDevice;
  table.pipelines = dispatch::kPipelines;
  table.pipeline_count = dispatch::kPipelineCount;
  table.candidates = dispatch::kCandidates;
  table.candidate_count = dispatch::kCandidateCount;
  table.generator = dispatch::kGenerator;
  table.variants = kLinkedVariants;
  table.variant_count = static_cast<int>(sizeof kLinkedVariants / sizeof kLinkedVariants[0]);
  if constexpr (host) {
    table.target = &host_target;
  } else {
    table.kernels = kKernels;
    table.kernel_count = kKernelCount;
    table.compiler_version = kCompilerVersion;
    table.target = &cuda_target;
  }
  return table;
}

}  // namespace

const LinkedTable& linked_table() {
  static const LinkedTable table = made_for_its_target<dispatch::kDevice.host>();
  return table;
}

}  // namespace runtime
}  // namespace muse
