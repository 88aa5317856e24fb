// SPDX-License-Identifier: Apache-2.0
// The seam between the library and an emitted table: what one source file of the consumer's build
// (cmake/consumer/table.cpp) says of muse_dispatch.h and muse_kernels.cu. C++17.
#pragma once

#include "variants/runtime/dispatch_lookup.h"

namespace muse {

struct Variant;

namespace runtime {

/// One kernel compiled ahead of time: its address is what cudaLaunchKernelExC takes.
struct Kernel {
  const char* candidate;  ///< key
  const char* entry;      ///< one of Variant::entries
  const void* function;
};
/// Defined by muse_kernels.cu, which a GPU's table is linked with: its kernels, and the version of
/// the nvcc that compiled them, 1000 * major + 10 * minor (dispatch::Device::compiler_version).
extern const Kernel kKernels[];
extern const int kKernelCount;
extern const int kCompilerVersion;

class Target;  // what runs candidates: variants/runtime/target.h

/// Everything of a table. Pointers are to constants.
struct LinkedTable {
  const dispatch::Table* contexts;
  const dispatch::Table* captured;
  const dispatch::Rules* rules;
  const dispatch::Device* device;
  const dispatch::PipelineInfo* pipelines;
  int pipeline_count;
  const char* const* candidates;
  int candidate_count;
  const char* generator;  ///< "muse-tune 0.1.0"
  const Kernel* kernels;  ///< null for a CPU's table
  int kernel_count;
  /// Naming them makes the linker take their objects out of the library.
  const Variant& (*const* variants)();
  int variant_count;
  /// host_target or cuda_target: named by the table, so that a CPU's table links no CUDA.
  const Target& (*target)();
  int compiler_version;  ///< kCompilerVersion; 0 for a CPU's table
};

/// Defined by the consumer's build, once.
const LinkedTable& linked_table();

const Target& host_target();
const Target& cuda_target();  ///< in a library built with the CUDA target

}  // namespace runtime
}  // namespace muse
