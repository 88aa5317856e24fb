// SPDX-License-Identifier: Apache-2.0
// compile: fills the cubin cache, with no GPU needed.
#include "tuner/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "tuner/commands/command.h"
#include "tuner/kernels.h"
#include "tuner/ptxas_log.h"

namespace muse::tuner {
namespace {

struct Options {
  std::string config, architecture = "sm_90a", cache, variant_glob, seed, deadline = "60s";
  int jobs = 0, sample = -1;
  bool defaults = false, json = false, quiet = false;
};

using Results = std::map<std::string, CompileResult>;

bool is_default(const Candidate& candidate) {
  return candidate.configuration == default_configuration(*candidate.variant);
}

/// The default configurations and `count` others, the same ones for a seed on every machine.
std::vector<Candidate> sampled(std::vector<Candidate> candidates, size_t count, uint64_t seed) {
  const auto others = std::stable_partition(candidates.begin(), candidates.end(), is_default);
  std::mt19937_64 random(seed);
  auto end = others;
  for (; count > 0 && end != candidates.end(); --count, ++end) {
    std::iter_swap(end, end + static_cast<ptrdiff_t>(
                                  random() % static_cast<uint64_t>(candidates.end() - end)));
  }
  candidates.erase(end, candidates.end());
  return candidates;
}

std::vector<Candidate> choose(const Options& options, int cc) {
  const uint64_t seed = parse_seed(options.seed, 1);  // a bad one is refused, used or not
  const Spec spec = load_config(options.config);
  const Known nothing_known = [](const auto&...) { return std::optional<Outcome>(); };
  const auto plan = make_plan(spec, Registry::global(), imagined_device(cc),
                              {.variant_glob = options.variant_glob}, nothing_known);
  if (!plan) throw CommandError(ExitCode::kUsage, printable(options.config) + ": " + plan.error());
  std::vector<Candidate> candidates = all_candidates(*plan, spec, cc);
  if (options.defaults) {
    std::erase_if(candidates, [](const Candidate& c) { return !is_default(c); });
  } else if (options.sample >= 0) {
    candidates = sampled(std::move(candidates), static_cast<size_t>(options.sample), seed);
  }
  if (candidates.empty()) {
    throw CommandError(ExitCode::kUsage,
                       fmt::format("{}: none of its variants is for {}", printable(options.config),
                                   options.architecture));
  }
  // Those of the base are there whatever the glob: alone they are not what was asked for.
  if (!options.variant_glob.empty() &&
      std::none_of(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
        return glob_match(options.variant_glob, candidate.variant->name);
      })) {
    throw CommandError(
        ExitCode::kUsage,
        fmt::format("--variant {}: no candidate left by {}{} for {}",
                    printable(options.variant_glob), printable(options.config),
                    options.defaults ? " and --defaults" : "", options.architecture));
  }
  return candidates;
}

std::string count_text(int64_t count) { return count < 0 ? "-" : fmt::to_string(count); }

std::string results_table(const Results& results) {
  std::vector<std::vector<std::string>> rows{
      {"candidate", "outcome", "kernel", "registers", "static smem", "spills", "ms", "cached"}};
  for (const auto& [text, result] : results) {
    const std::string outcome(name(result.outcome));
    if (!result.compiled) {
      rows.push_back({text, outcome, "-", "-", "-", "-", "-", "-"});
      continue;
    }
    for (const CompiledKernel& kernel : result.compiled->kernels) {
      rows.push_back({text, outcome, kernel.entry, count_text(kernel.registers),
                      count_text(kernel.shared_bytes), count_text(kernel.spill_bytes),
                      fmt::format("{:.0f}", result.compiled->compile_ms),
                      result.cached ? "yes" : "no"});
    }
  }
  return format_table(rows);
}

nlohmann::json to_json(const CompileResult& result) {
  nlohmann::json value{{"outcome", name(result.outcome)},
                       {"reason", result.reason},
                       {"cached", result.cached},
                       {"kernels", nlohmann::json::array()}};
  if (!result.compiled) return value;
  const Compiled& compiled = *result.compiled;
  for (const CompiledKernel& kernel : compiled.kernels) {
    value["kernels"].push_back({{"entry", kernel.entry},
                                {"symbol", kernel.symbol},
                                {"registers", kernel.registers},
                                {"shared_bytes", kernel.shared_bytes},
                                {"spill_bytes", kernel.spill_bytes}});
  }
  value["compile_ms"] = compiled.compile_ms;
  value["source_hash"] = compiled.source_hash;
  value["cubin_hash"] = compiled.cubin_hash;
  value["cubin_bytes"] = compiled.cubin.size();
  value["warnings"] = warnings(compiled.log);
  return value;
}

/// The line of a log that says most: the first with an error in it, else its first.
std::string telling_line(const std::string& log) {
  std::istringstream lines(log);
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("error") != std::string::npos) return line;
    if (first.empty()) first = line;
  }
  return first;
}

ExitCode conclude(const Results& results) {
  const auto ok = std::count_if(results.begin(), results.end(), [](const auto& entry) {
    return entry.second.outcome == Outcome::kOk;
  });
  if (ok == 0) return ExitCode::kGateFailed;
  return static_cast<size_t>(ok) == results.size() ? ExitCode::kOk : ExitCode::kIncomplete;
}

std::string summary(const Results& results) {
  int cached = 0;
  std::map<Outcome, int> counts;
  for (const auto& [text, result] : results) {
    ++counts[result.outcome];
    cached += result.cached ? 1 : 0;
  }
  std::string text =
      fmt::format("{} compiled, {} from the cache", counts[Outcome::kOk] - cached, cached);
  for (const auto& [outcome, count] : counts) {
    if (outcome != Outcome::kOk) text += fmt::format(", {} {}", count, name(outcome));
  }
  return text;
}

/// Its compute capability; what is none is refused, with or without a compiler.
int checked_cc(const std::string& architecture) {
  const int cc = cc_of(architecture);
  if (cc != 0) return cc;
  Toolchain toolchain;
  if (const auto compiler = find_compiler()) {
    toolchain = {.toolkit = compiler->toolkit, .targets = compiler->targets};
  }
  throw CommandError(ExitCode::kUsage,
                     "--arch " + unsupported(toolchain, architecture)
                                     .value_or(printable(architecture) +
                                               ": not an architecture; write sm_90a, sm_89, ..."));
}

ExitCode run(const Options& options) {
  const int cc = checked_cc(options.architecture);
  const std::chrono::duration<double> deadline = parse_duration("--deadline", options.deadline);
  const std::vector<Candidate> candidates = choose(options, cc);
  const Toolchain toolchain = find_toolchain(options.cache);
  if (!toolchain.missing.empty()) throw CommandError(ExitCode::kEnvironment, toolchain.missing);
  if (const auto reason = unsupported(toolchain, options.architecture)) {
    throw CommandError(ExitCode::kUsage, "--arch " + *reason);
  }
  if (!options.quiet) {
    say(
        fmt::format("{} candidate{} for {} into {}; --variant, --sample and --defaults take fewer, "
                    "--jobs sets how many at once",
                    candidates.size(), candidates.size() == 1 ? "" : "s", options.architecture,
                    printable(toolchain.cache.string())));
  }
  ProgressLine progress(!options.quiet);
  const Results results =
      compile_all(candidates, toolchain.toolkit,
                  {.architecture = options.architecture,
                   .cache = toolchain.cache,
                   .jobs = options.jobs,
                   .deadline = std::chrono::duration_cast<std::chrono::milliseconds>(deadline),
                   .progress = compile_progress(progress)});
  progress.clear();
  if (options.json) {
    nlohmann::json entries = nlohmann::json::array();
    for (const auto& [text, result] : results) {
      entries.push_back(to_json(result));
      entries.back()["candidate"] = text;
    }
    print_json("compile", {{"architecture", options.architecture},
                           {"toolkit", toolchain.toolkit},
                           {"cache", toolchain.cache.string()},
                           {"candidates", entries}});
  } else {
    print(results_table(results));
  }
  for (const auto& [text, result] : results) {
    if (result.outcome == Outcome::kOk) continue;
    say(fmt::format("{}: {}: {}", text, name(result.outcome), telling_line(result.reason)));
  }
  say(fmt::format("{} in {}; {}, {}, {}", summary(results), format_seconds(progress.elapsed_s()),
                  options.architecture, toolchain.toolkit, toolchain.cache.string()));
  return conclude(results);
}

}  // namespace

Command compile_command() {
  return {
      "compile", "Compile kernels into the cache; needs no GPU", [](CLI::App& app) {
        auto options = std::make_shared<Options>();
        app.add_option("config", options->config, "Config file (YAML)")->required();
        app.add_option("--arch", options->architecture, "Architecture to compile for")
            ->capture_default_str();
        app.add_option("--cache", options->cache,
                       "Folder of compiled kernels; default: muse-tune in the XDG cache folder");
        app.add_option("--jobs", options->jobs, "Compiler processes; default: one per CPU")
            ->check(CLI::Range(1, 1024));
        app.add_option("--variant", options->variant_glob, "Only variants that match this glob");
        const CLI::Option* defaults =
            app.add_flag("--defaults", options->defaults, "Only default configurations");
        app.add_option("--sample", options->sample,
                       "Default configurations and this many others, chosen by --seed")
            ->check(CLI::NonNegativeNumber)
            ->excludes(const_cast<CLI::Option*>(defaults));
        app.add_option("--seed", options->seed, "Seed of --sample; default: 1");
        app.add_option("--deadline", options->deadline, "Time one candidate may take")
            ->capture_default_str();
        app.add_flag("--quiet", options->quiet, "No first line, no progress");
        add_json(app, options->json);
        return [options] { return run(*options); };
      }};
}

}  // namespace muse::tuner
