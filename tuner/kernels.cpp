// SPDX-License-Identifier: Apache-2.0
// From a plan to machine code, and from what did not compile to reasons.
#include "tuner/kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "variants/kernel_source.h"

namespace muse::tuner {
namespace {

/// Of a log: enough for the first errors, little enough for a row of each shape.
constexpr size_t kReasonBytes = 2048;

std::string shortened(const std::string& text) {
  return text.size() <= kReasonBytes ? text : plain_text(text.substr(0, kReasonBytes)) + " ...";
}

std::vector<Candidate> values(std::map<std::string, Candidate> by_key) {
  std::vector<Candidate> candidates;
  for (auto& [text, candidate] : by_key) candidates.push_back(std::move(candidate));
  return candidates;
}

NotCompiledMap not_compiled(const std::map<std::string, CompileResult>& results) {
  NotCompiledMap failed;
  for (const auto& [text, result] : results) {
    if (result.outcome == Outcome::kOk) continue;
    failed[text] = {result.outcome, shortened(result.reason)};
  }
  return failed;
}

/// Candidates that this toolkit is known not to compile: of one source, whatever the shape.
NotCompiledMap known_failures(const Plan& plan, const Records& records) {
  NotCompiledMap failed;
  for (const PlanItem& item : plan.items) {
    if (item.action == Action::kSkip) continue;
    const RaceGroup group{.shape = plan.shapes[item.shape].shape, .regime = item.regime};
    const auto trial = records.find({item.candidate}, group);
    if (!trial) continue;
    const std::optional<Outcome> outcome = parse_outcome(trial->state);
    if (outcome == Outcome::kCompileFailed || outcome == Outcome::kCompileTimeout) {
      failed[key(item.candidate)] = {*outcome, trial->reason};
    }
  }
  return failed;
}

/// The caller's options for this toolchain, which must know the architecture.
CompileOptions checked(CompileOptions options, const Toolchain& toolchain) {
  if (const auto reason = unsupported(toolchain, options.architecture)) {
    throw IoError(*reason + "; install a newer CUDA Toolkit");
  }
  options.cache = toolchain.cache;
  return options;
}

}  // namespace

Toolchain find_toolchain(const std::string& cache) {
  Toolchain toolchain;
  const std::filesystem::path folder =
      cache.empty() ? CubinCache::default_folder() : std::filesystem::path(cache);
  toolchain.cache = std::filesystem::absolute(folder);
  if (const auto compiler = find_compiler()) {
    toolchain.toolkit = compiler->toolkit;
    toolchain.targets = compiler->targets;
  } else {
    toolchain.missing = compiler.error();
    toolchain.toolkit = CubinCache(toolchain.cache).newest_toolkit();
    if (toolchain.toolkit.empty()) throw IoError(toolchain.missing);
  }
  return toolchain;
}

std::optional<std::string> unsupported(const Toolchain& toolchain,
                                       const std::string& architecture) {
  const std::vector<int>& targets = toolchain.targets;
  const int cc = cc_of(architecture);
  if (targets.empty() || std::find(targets.begin(), targets.end(), cc) != targets.end()) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (const int target : targets) names.push_back(cuda_architecture(target));
  return fmt::format("{}: not an architecture of {}; it compiles for {}", printable(architecture),
                     toolchain.toolkit, fmt::join(names, ", "));
}

bool accepts(const Target& target, int cc) {
  return target.kind == TargetKind::kCuda && cc >= target.minimum_cc &&
         (target.exact_cc == 0 || target.exact_cc == cc);
}

DeviceClass imagined_device(int cc) {
  DeviceClass device{.model = fmt::format("any of compute capability {}.{}", cc / 10, cc % 10),
                     .host = false,
                     .cc = cc,
                     .sm_count = 1,
                     .smem_per_block_bytes = int64_t{99} << 10,  // the least of them from 8.0 on
                     .isa = cuda_architecture(cc)};
  if (cc == 90) {
    device.sm_count = 132;
    device.memory_bytes = int64_t{141} << 30;
    device.l2_bytes = int64_t{60} << 20;
    device.smem_per_block_bytes = int64_t{227} << 10;
  }
  return device;
}

std::vector<Candidate> measured_candidates(const Plan& plan) {
  std::map<std::string, Candidate> by_key;
  for (const PlanItem& item : plan.items) {
    if (item.action != Action::kSkip) by_key.emplace(key(item.candidate), item.candidate);
  }
  for (const Candidate& candidate : plan.base) by_key.emplace(key(candidate), candidate);
  if (const auto canary = default_base(plan.target, Registry::global())) {
    for (const Candidate& candidate : *canary) by_key.emplace(key(candidate), candidate);
  }
  return values(std::move(by_key));
}

std::vector<Candidate> all_candidates(const Plan& plan, const Spec& spec, int cc) {
  std::map<std::string, Candidate> by_key;
  std::map<const Variant*, bool> has_space;
  const auto add = [&](const Candidate& candidate) {
    if (accepts(candidate.variant->target, cc)) by_key.emplace(key(candidate), candidate);
  };
  for (const PlanItem& item : plan.items) {
    // A variant without any configuration stands in the plan with its default one.
    const auto [at, fresh] = has_space.try_emplace(item.candidate.variant, false);
    if (fresh) at->second = !space(spec, *item.candidate.variant).empty();
    if (at->second) add(item.candidate);
  }
  for (const Candidate& candidate : plan.base) add(candidate);
  return values(std::move(by_key));
}

NotCompiledMap prepare_kernels(const Plan& plan, const Toolchain& toolchain,
                               const CompileOptions& options) {
  return not_compiled(
      compile_all(measured_candidates(plan), toolchain.toolkit, checked(options, toolchain)));
}

NotCompiledMap prepare_kernels(const Plan& plan, const Toolchain& toolchain, Records& records,
                               const CompileOptions& options) {
  NotCompiledMap failed = known_failures(plan, records);
  std::vector<Candidate> candidates = measured_candidates(plan);
  std::erase_if(candidates, [&](const Candidate& c) { return failed.contains(key(c)); });
  const std::map<std::string, CompileResult> results =
      compile_all(candidates, toolchain.toolkit, checked(options, toolchain));
  records.store().transaction([&] {
    for (const Candidate& candidate : candidates) {
      const auto result = results.find(key(candidate));
      if (result == results.end()) continue;  // stopped
      for (const db::KernelRow& row :
           kernel_rows(candidate, result->second, options.architecture)) {
        records.store().upsert(row);
      }
    }
  });
  failed.merge(not_compiled(results));
  return failed;
}

std::function<void(const std::string&, double)> compile_progress(ProgressLine& line) {
  return [&line](const std::string& candidate, double done) {
    line.update("compiled " + candidate, done);
  };
}

std::vector<db::KernelRow> kernel_rows(const Candidate& candidate, const CompileResult& result,
                                       const std::string& architecture) {
  std::vector<db::KernelRow> rows;
  if (!result.compiled) return rows;
  const Compiled& compiled = *result.compiled;
  for (const CompiledKernel& kernel : compiled.kernels) {
    rows.push_back({.name = kernel_expression(candidate, kernel.entry),
                    .architecture = architecture,
                    .source_hash = compiled.source_hash,
                    .cubin_hash = compiled.cubin_hash,
                    .registers = kernel.registers,
                    .shared_bytes = kernel.shared_bytes,
                    .spill_bytes = kernel.spill_bytes,
                    .compile_ms = compiled.compile_ms,
                    .log = shortened(compiled.log)});
  }
  return rows;
}

}  // namespace muse::tuner
