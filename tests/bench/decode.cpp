// SPDX-License-Identifier: Apache-2.0
// Times what the decode targets need, on a GPU, and prints the verdicts.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>

#include "tests/bench/bench.h"
#include "tests/bench/decode_cases.h"
#include "tests/bench/decode_table.h"
#include "tests/bench/gather.h"
#include "tests/bench/seed_figures.h"
#include "tests/bench/seed_pipeline.h"

#ifdef MUSE_HAS_CUDA
#include "profiler/device_memory.h"
#include "tests/bench/graph_timer.h"
#include "tuner/compile.h"
#include "tuner/regret.h"
#endif

namespace muse::bench {

#ifdef MUSE_HAS_CUDA
namespace {

std::string read_text(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw std::runtime_error(file + ": cannot be read");
  return text.str();
}

std::vector<SeedFigure> seed_figures(const std::string& file) {
  if (file.empty()) return parse_seed_figures(kSeedPipeline);
  const std::string text = read_text(file);
  try {
    return parse_seed_figures(text);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(file + ": " + error.what());
  }
}

void say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

double us(const profiler::Timing& timing) {
  if (timing.samples == 0) {
    throw tuner::TrialError(tuner::Outcome::kUnmeasurable, "no sample: " + timing.why);
  }
  return timing.median_ns / 1000;
}

/// The pieces of one geometry on the device.
class Gather {
 public:
  Gather(GraphTimer& timer, const Shape& shape, const GatherGeometry& geometry,
         const std::vector<TokenRange>& ranges)
      : timer_(timer),
        geometry_(geometry),
        pieces_(cut(ranges, resident_blocks(geometry) * geometry.waves, rows_at_once(geometry))),
        memory_(static_cast<int64_t>(pieces_.size() * sizeof(GatherPiece)) + 256) {
    const Buffers buffers = timer.arena(shape).buffers({.kind = HandoffKind::kO}, false);
    caches_ = {buffers.k_cache, buffers.v_cache, buffers.page_table, shape.problem.max_pages(),
               shape.problem.page_size};
    timer.backend().upload(pieces(), pieces_.data(), memory_.bytes() - 256);
    timer.backend().fill(memory_.data(), 0, 256);
    timer.backend().synchronize();
  }

  uint32_t sum() {
    uint32_t sum = 0;
    timer_.backend().fill(memory_.data(), 0, sizeof(sum));
    launch_summed_gather(timer_.backend().stream(), geometry_, caches_, pieces(), count(), sink());
    timer_.backend().synchronize();
    timer_.backend().download(&sum, memory_.data(), sizeof(sum));
    return sum;
  }

  Timed time() {
    const profiler::Timing timing = timer_.time([&] {
      launch_gather(timer_.backend().stream(), geometry_, caches_, pieces(), count(), sink());
    });
    return {fmt::format("{} blocks of {} threads, {} rows in flight", count(), geometry_.threads,
                        2 * geometry_.unroll),
            us(timing)};
  }

 private:
  int64_t count() const { return static_cast<int64_t>(pieces_.size()); }
  GatherPiece* pieces() const { return memory_.as<GatherPiece>(256); }
  uint32_t* sink() const { return memory_.as<uint32_t>(); }

  GraphTimer& timer_;
  GatherGeometry geometry_;
  GatherCaches caches_{};
  std::vector<GatherPiece> pieces_;
  profiler::DeviceMemory memory_;  // the sum, then the pieces
};

/// The fastest geometry, measured once more. Throws TrialError where one has read other rows.
Timed best_gather(GraphTimer& timer, const Shape& shape, const std::vector<TokenRange>& ranges) {
  const tuner::Arena& arena = timer.arena(shape);
  const std::vector<int32_t> table = page_table(shape);
  const GatherCaches sizes{nullptr, nullptr, nullptr, shape.problem.max_pages(),
                           shape.problem.page_size};
  const uint32_t expected = sum_of_rows(table, sizes, arena.download("k_cache"), ranges) +
                            sum_of_rows(table, sizes, arena.download("v_cache"), ranges);
  std::optional<GatherGeometry> best;
  double least = std::numeric_limits<double>::infinity();
  for (const GatherGeometry& geometry : gather_geometries()) {
    Gather gather(timer, shape, geometry, ranges);
    if (gather.sum() != expected) {
      throw tuner::TrialError(tuner::Outcome::kIncorrect, "it has not read what it must");
    }
    const double time = gather.time().us;
    if (time >= least) continue;
    least = time;
    best = geometry;
  }
  return Gather(timer, shape, best.value(), ranges).time();
}

/// Times decode cases, and says on stderr what cannot be timed.
class DecodeBench {
 public:
  explicit DecodeBench(const std::string& cache) : timer_(cache), cubins_(cache) {}

  /// Fills `figures`, which hold what was measured until then if it throws.
  void run(const DecodeCases& cases, const std::vector<SeedFigure>& seed, DecodeFigures& figures) {
    for (const std::string& left_out : cases.left_out) say("left out: " + left_out);
    figures.device = timer_.backend().device_instance().name;
    figures.null_us = us(timer_.null_kernel());
    figures.read_us = us(timer_.read_512mib());
    for (const SeedFigure& figure : seed) {
      figures.seed_shapes += figure.q_len == 1 && figure.page_size == 1 ? 1 : 0;
    }
    for (const DecodeCase& one : cases.cases) {
      say(key(one.shape));
      figures.shapes.push_back(shape_figures(one));
      if (const auto time = seed_us(seed, one.shape)) {
        figures.shapes.back().seed_us = *time * figures.read_us / kSeedReadUs;
      }
    }
    for (const std::vector<size_t>& group : by_context(cases.cases)) {
      if (cases.cases[group.front()].shape.problem.page_size == 1) {
        time_unknown_context(cases.cases, group, figures);
      }
    }
  }

 private:
  /// nullopt, with a word on stderr, where it cannot be timed.
  std::optional<Timed> time(const Chain& chain, const Shape& shape) {
    try {
      require(chain, shape.problem);
      return Timed{key(chain), us(timer_.time(chain, shape))};
    } catch (const tuner::TrialError& error) {
      say(fmt::format("  {} cannot be timed: {}", key(chain), error.what()));
      return std::nullopt;
    }
  }

  /// Throws TrialError where the chain is none for this problem, whose capacity may be another one
  /// than it was chosen for.
  void require(const Chain& chain, const Problem& problem) {
    Support support = joins(problem, chain);
    for (const Candidate& candidate : chain) {
      if (support.ok()) {
        support = candidate.variant->supports(problem, candidate.configuration,
                                              timer_.backend().device_class());
      }
    }
    if (!support.ok()) throw tuner::TrialError(tuner::Outcome::kUnsupported, support.reason);
  }

  /// The fastest, measured once more, so that no luck of the first time is in the figure.
  std::optional<Timed> best(const std::vector<Chain>& chains, const Shape& shape) {
    const Chain* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const Chain& chain : chains) {
      const auto timed = time(chain, shape);
      if (!timed || timed->us >= least) continue;
      least = timed->us;
      best = &chain;
    }
    return best ? time(*best, shape) : std::nullopt;
  }

  std::optional<int64_t> spills(const Chain& chain) {
    const std::string& architecture = timer_.backend().device_class().isa;
    int64_t sum = 0;
    for (const Candidate& candidate : chain) {
      const auto compiled = cubins_.find(candidate, timer_.backend().toolkit(), architecture);
      if (!compiled) return std::nullopt;
      for (const tuner::CompiledKernel& kernel : compiled->kernels) {
        if (kernel.spill_bytes < 0) return std::nullopt;
        sum += kernel.spill_bytes;
      }
    }
    return sum;
  }

  ShapeFigures shape_figures(const DecodeCase& one) {
    const Shape& shape = one.shape;
    const std::vector<TokenRange> ranges =
        attended(contexts(shape.lengths, shape.problem.batch, shape.problem.q_len),
                 shape.problem.q_len, shape.problem.window);
    const int64_t row_bytes = shape.problem.num_kv_heads * shape.problem.head_dim;
    ShapeFigures figures;
    figures.shape = shape;
    figures.kv_bytes = 2 * row_bytes * tokens(ranges);
    figures.spill_bytes = spills(one.pipeline);
    try {
      timer_.run(one.base, shape);  // queries and new rows, which attention reads
    } catch (const tuner::TrialError& error) {
      say(fmt::format("  the base cannot run: {}", error.what()));
      return figures;
    }
    figures.pipeline = time(one.pipeline, shape);
    if (row_bytes == kGatherRowBytes && shape.problem.page_size == 1) {
      figures.gather = gather(shape, ranges);
    }
    figures.attention = best(one.attention, shape);
    figures.complete = best(one.complete, shape);
    return figures;
  }

  std::optional<Timed> gather(const Shape& shape, const std::vector<TokenRange>& ranges) {
    try {
      return best_gather(timer_, shape, ranges);
    } catch (const tuner::TrialError& error) {
      say(fmt::format("  the gather cannot be timed: {}", error.what()));
      return std::nullopt;
    }
  }

  /// One graph must do for every context: all pipelines chosen in the group, each with the capacity
  /// of the largest, and of them the one whose worst regret is the least.
  void time_unknown_context(const std::vector<DecodeCase>& cases, const std::vector<size_t>& group,
                            DecodeFigures& figures) {
    std::map<std::string, Chain> chosen;
    int64_t capacity = 0;
    for (const size_t i : group) {
      chosen.emplace(key(cases[i].pipeline), cases[i].pipeline);
      capacity = std::max(capacity, cases[i].shape.problem.max_context);
    }
    std::vector<Chain> chains;
    for (const auto& [unused, chain] : chosen) chains.push_back(chain);
    tuner::Times times(chains.size());
    for (const size_t i : group) {
      const Shape shape = with_capacity(cases[i].shape, capacity);
      for (size_t c = 0; c < chains.size(); ++c) {
        const auto timed = time(chains[c], shape);
        times[c].push_back(timed ? timed->us : std::numeric_limits<double>::infinity());
      }
    }
    const Chain& least = chains[tuner::least_worst_regret(times)];
    for (const size_t i : group) {
      figures.shapes[i].unknown_context = time(least, with_capacity(cases[i].shape, capacity));
    }
  }

  static Shape with_capacity(Shape shape, int64_t capacity) {
    shape.problem.max_context = capacity;
    return shape;
  }

  GraphTimer timer_;
  tuner::CubinCache cubins_;
};

}  // namespace

void run_decode(const DecodeOptions& options) {
  const std::vector<SeedFigure> seed = seed_figures(options.seed);
  const DecodeCases cases =
      decode_cases(db::Store::open(options.database, db::Open::kRead), Registry::global());
  if (cases.cases.empty() && cases.left_out.empty()) {
    throw std::runtime_error(options.database + ": no pipeline chosen for one query token");
  }
  DecodeBench bench(options.cache);
  DecodeFigures figures;
  std::exception_ptr broken;  // what was measured before is still worth reading
  try {
    bench.run(cases, seed, figures);
  } catch (...) {
    broken = std::current_exception();
  }
  std::fputs(decode_markdown(figures).c_str(), stdout);
  if (!options.json.empty()) {
    std::ofstream out(options.json);
    out << decode_json(figures) << std::flush;
    if (!out) throw std::runtime_error(options.json + ": cannot be written");
  }
  if (broken) std::rethrow_exception(broken);
}
#else
void run_decode(const DecodeOptions&) {
  throw std::runtime_error("--decode: this build has no CUDA target");
}
#endif

}  // namespace muse::bench
