// SPDX-License-Identifier: Apache-2.0
// NVRTC, NVIDIA's compiler as a library, loaded at run time: needs neither toolkit headers nor a
// GPU.
#pragma once

#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "profiler/dynamic_library.h"
#include "variants/kernel_source.h"

namespace muse::tuner {

/// What every kernel is compiled with, architecture apart. The ones nvcc knows too give the same
/// machine code there.
const std::vector<std::string>& compile_flags();

struct NvrtcProgram {
  std::string text;
  std::vector<SourceFile> headers;       ///< by the name they are included by
  std::vector<std::string> expressions;  ///< kernels to instantiate
  std::string architecture;              ///< "sm_90a"
};

struct NvrtcResult {
  bool ok = false;
  std::string log;                   ///< front end's and ptxas's
  std::string cubin;                 ///< ELF image; empty where not ok
  std::vector<std::string> symbols;  ///< mangled names of the expressions, in their order
};

class Nvrtc {
 public:
  /// The newest that can be found. The error says what was tried and what to do.
  static tl::expected<Nvrtc, std::string> load();

  /// "nvrtc 13.0".
  const std::string& toolkit() const { return toolkit_; }
  /// Compute capabilities that it compiles for, ascending.
  const std::vector<int>& targets() const { return targets_; }
  NvrtcResult compile(const NvrtcProgram& program) const;

 private:
  struct Functions;
  Nvrtc(profiler::DynamicLibrary library, std::shared_ptr<const Functions> functions,
        std::string toolkit, std::vector<int> targets)
      : library_(std::move(library)),
        functions_(std::move(functions)),
        toolkit_(std::move(toolkit)),
        targets_(std::move(targets)) {}

  profiler::DynamicLibrary library_;
  std::shared_ptr<const Functions> functions_;
  std::string toolkit_;
  std::vector<int> targets_;
};

}  // namespace muse::tuner
