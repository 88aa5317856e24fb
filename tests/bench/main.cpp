// SPDX-License-Identifier: Apache-2.0
// muse-bench: Google Benchmark over the harness's own parts, over candidates named with
// --candidate, over chosen pipelines; or the targets for one query token and what was reached.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "tests/bench/bench.h"

namespace {

constexpr const char* kUsage =
    "usage: muse-bench [--benchmark_...]\n"
    "       muse-bench --candidate KEY [--candidate KEY ...] --shape KEY [--benchmark_...]\n"
    "       muse-bench --kernels [--benchmark_...]\n"
    "       muse-bench --pipelines DATABASE --cache FOLDER [--benchmark_...]\n"
    "       muse-bench --aot --cache FOLDER [--benchmark_...]\n"
    "       muse-bench --decode DATABASE --cache FOLDER [--seed-figures CSV] [--json FILE]\n";

struct Options {
  std::vector<std::string> candidates;
  std::string shape, pipelines, cache;
  muse::bench::DecodeOptions decode;
  std::vector<char*> rest;  ///< for Google Benchmark
  bool kernels = false, aot = false, wrong = false;
};

Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, std::string*> single{{"--shape", &options.shape},
                                                   {"--pipelines", &options.pipelines},
                                                   {"--decode", &options.decode.database},
                                                   {"--cache", &options.cache},
                                                   {"--seed-figures", &options.decode.seed},
                                                   {"--json", &options.decode.json}};
  for (int i = 0; i < argc; ++i) {
    const bool candidate = std::strcmp(argv[i], "--candidate") == 0;
    const auto option = single.find(argv[i]);
    if (std::strcmp(argv[i], "--kernels") == 0) {
      options.kernels = true;
    } else if (std::strcmp(argv[i], "--aot") == 0) {
      options.aot = true;
    } else if (!candidate && option == single.end()) {
      options.rest.push_back(argv[i]);
    } else if (i + 1 == argc) {
      options.wrong = true;
    } else if (candidate) {
      options.candidates.emplace_back(argv[++i]);
    } else {
      *option->second = argv[++i];
    }
  }
  options.decode.cache = options.cache;
  const bool decode = !options.decode.database.empty();
  const bool pipelines = !options.pipelines.empty();
  options.wrong =
      options.wrong || options.candidates.empty() != options.shape.empty() ||
      (decode || pipelines || options.aot) != !options.cache.empty() ||
      static_cast<int>(decode) + static_cast<int>(pipelines) + static_cast<int>(options.aot) > 1 ||
      (!options.decode.json.empty() && !decode);
  return options;
}

}  // namespace

int main(int argc, char** argv) try {
  Options options = parse(argc, argv);
  int rest = static_cast<int>(options.rest.size());
  benchmark::Initialize(&rest, options.rest.data());
  if (options.wrong || benchmark::ReportUnrecognizedArguments(rest, options.rest.data())) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (!options.decode.database.empty()) {
    muse::bench::run_decode(options.decode);
    return 0;
  }
  if (options.kernels) {
    muse::bench::register_kernels();
  } else if (options.aot) {
    muse::bench::register_aot(options.cache);
  } else if (!options.pipelines.empty()) {
    muse::bench::register_pipelines(options.pipelines, options.cache);
  } else if (options.candidates.empty()) {
    muse::bench::register_lookup();
    muse::bench::register_runtime();
    muse::bench::register_harness(MUSE_SOURCE_DIR);
  }
  for (const std::string& candidate : options.candidates) {
    muse::bench::register_candidate(candidate, options.shape);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "muse-bench: %s\n", error.what());
  return 2;
}
