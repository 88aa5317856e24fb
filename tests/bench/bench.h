// SPDX-License-Identifier: Apache-2.0
// What muse-bench is made of: the harness's own speed, and candidates by name.
#pragma once

#include <string>

namespace muse::bench {

/// Lookups in dispatch tables of 1,000 and 10,000 rows, exact and near, in random order, beside a
/// std::unordered_map and a walk over all rows; allocations are counted.
void register_lookup();

/// Runs through the C interface beside the bare launches of the same steps, and making a plan: on a
/// Hopper GPU where there is one, else on the host.
void register_runtime();

/// Round insertion, plan expansion, config parsing, bootstrap. `source_dir` holds
/// configs/.
void register_harness(const std::string& source_dir);

/// Registers "candidate/<key>" on the shape, warm, on the host, beside what the sampler says.
/// Throws std::runtime_error with the reason where key, shape or support are wrong.
void register_candidate(const std::string& candidate_key, const std::string& shape_key);

/// Registers "chosen/<problem>" and "base/<problem>" for every pipeline that the last run of the
/// database chose, beside "read_512MiB" and "null_kernel", each timed as published figures are: one
/// graph, events, a read of 256 MiB before each replay, the median of 20. Cubins come from `cache`.
/// Throws std::runtime_error with the reason where there is no GPU, no run or no cubin.
void register_pipelines(const std::string& database, const std::string& cache);

/// Registers "aot/<pipeline>": kernels compiled ahead of time, through the C interface, beside those
/// of a sweep out of `cache`, on the same data at context 32768, in turns, timed as
/// register_pipelines() does. Throws std::runtime_error without a Hopper GPU.
void register_aot(const std::string& cache);

struct DecodeOptions {
  std::string database, cache;
  std::string seed;  ///< CSV of the other pipeline's times; empty = the published ones
  std::string json;  ///< file; empty = none
};
/// Times what the targets for one query token need, on the GPU, of everything that the database has
/// chosen, as published figures are timed; prints the verdicts and the shapes as Markdown, progress
/// on stderr. Throws std::runtime_error where there is no GPU or nothing to be timed.
void run_decode(const DecodeOptions& options);

/// Registers an empty kernel, spins of 3 to 300 us and reads of 25 and 200 MiB, each behind a
/// flush, by CUPTI or, where another tool holds it, by events. Throws std::runtime_error without a
/// GPU.
void register_kernels();

}  // namespace muse::bench
