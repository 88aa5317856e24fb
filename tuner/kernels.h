// SPDX-License-Identifier: Apache-2.0
// The compile phase: before anything is measured, every planned CUDA candidate has its machine
// code, or the reason why not.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "db/rows.h"
#include "tuner/compile.h"
#include "tuner/console.h"
#include "tuner/plan.h"
#include "tuner/records.h"

namespace muse::tuner {

/// What compiles, or what once did.
struct Toolchain {
  std::filesystem::path cache;  ///< absolute
  std::string toolkit;          ///< "nvrtc 13.0"
  std::string missing;          ///< why NVRTC cannot be loaded; empty = it can
  std::vector<int> targets;     ///< Compiler::targets; empty where it cannot be loaded
};
/// Why the toolchain cannot compile for the architecture and what it can; nullopt where it can, or
/// where NVRTC cannot be asked.
std::optional<std::string> unsupported(const Toolchain& toolchain, const std::string& architecture);

/// `cache`: --cache, empty = CubinCache::default_folder(). Without NVRTC the toolkit is that of the
/// newest cubins in the cache. Throws IoError without a folder for it, and without NVRTC and
/// cubins.
Toolchain find_toolchain(const std::string& cache);

/// The configuration is planned for a device of this compute capability.
bool accepts(const Target& target, int cc);

/// A device of that compute capability, for planning without one: an H200 for 90, of others only
/// what their architecture says.
DeviceClass imagined_device(int cc);

/// Every candidate of the plan with an item that asks for a measurement, those of the base, and
/// those of the default base, which is a worker's canary; by key, each once.
std::vector<Candidate> measured_candidates(const Plan& plan);
/// Every candidate of the plan that a device of this compute capability takes, and those of the
/// base, whatever the problems; by key, each once.
std::vector<Candidate> all_candidates(const Plan& plan, const Spec& spec, int cc);

/// How the candidates that are not kOk ended, by key; the reason is short enough for a table.
struct NotCompiled {
  Outcome outcome = Outcome::kCompileFailed;
  std::string reason;
};
using NotCompiledMap = std::map<std::string, NotCompiled>;

/// Compiles what the plan measures, stores kernel rows, and says what cannot be measured. A
/// candidate whose trials already ended as not compiled is not tried again. The options' cache is
/// the toolchain's. Throws IoError where NVRTC does not know their architecture.
NotCompiledMap prepare_kernels(const Plan& plan, const Toolchain& toolchain, Records& records,
                               const CompileOptions& options);
/// The same without a database.
NotCompiledMap prepare_kernels(const Plan& plan, const Toolchain& toolchain,
                               const CompileOptions& options);

/// Says on the line what has just been compiled.
std::function<void(const std::string&, double)> compile_progress(ProgressLine& line);

/// One row for each kernel that was compiled.
std::vector<db::KernelRow> kernel_rows(const Candidate& candidate, const CompileResult& result,
                                       const std::string& architecture);

}  // namespace muse::tuner
