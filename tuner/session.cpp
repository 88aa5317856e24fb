// SPDX-License-Identifier: Apache-2.0
// Rounds and validations on the shape at hand. One shape's memory is freed before the next one's is
// made, so the worker never needs two.
#include "tuner/session.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "profiler/nvtx.h"
#include "tuner/inputs.h"
#include "tuner/plan.h"
#include "tuner/validate.h"

namespace muse::tuner {

/// One candidate bound, with where it stands in its entrant.
struct Step {
  Program* program;
  int candidate;  ///< -1: of the feeder
};

struct Session::Bound {
  std::vector<Step> feeder, chain;
  std::unique_ptr<Program> graph;    ///< the chain captured, where the target has graphs
  std::vector<std::string> kernels;  ///< what a sampler may see of the chain
  bool warm = false;                 ///< has run once, untimed
  std::string fault_reason;          ///< not empty: it cannot be bound
  Outcome fault = Outcome::kOk;
};

// Members die in reverse: programs before the memory they point to.
struct Session::Shaped {
  Shaped(Backend& backend, const Shape& the_shape, uint64_t the_seed)
      : shape(the_shape), seed(the_seed), arena(backend, inputs(the_shape, the_seed)) {}

  /// The host's copy lives as long as the upload takes.
  static Inputs inputs(const Shape& shape, uint64_t seed) {
    return make_inputs(shape, seed, Fill::kNormal);
  }

  Shape shape;
  uint64_t seed;
  Arena arena;
  std::map<std::string, std::unique_ptr<Program>> programs;  ///< by candidate and partials
  std::map<std::string, Bound> chains;                       ///< by feeder and chain
};

namespace {

void run(Publisher& publisher, const std::vector<Step>& steps, int entrant) {
  for (const Step& step : steps) {
    for (int launch = 0; launch < step.program->launches(); ++launch) {
      publisher.at(entrant, step.candidate, launch);
      step.program->launch(launch);
    }
  }
}

std::string program_key(const Candidate& candidate, const Handoff& partials) {
  return fmt::format("{}@{}_{}", key(candidate), partials.split_capacity,
                     static_cast<int>(partials.partial_type));
}

RoundReply::One failed(const Failure& failure) {
  return {.span_ns = 0,
          .rejected = {},
          .outcome = std::string(name(failure.outcome)),
          .reason = failure.reason};
}

/// Small, ragged, more than one page a request: every stage has something to get wrong.
Shape canary_shape() {
  Shape shape;
  shape.problem = {.batch = 2,
                   .q_len = 2,
                   .num_q_heads = 4,
                   .num_kv_heads = 2,
                   .page_size = 4,
                   .window = 16,
                   .rope_theta = 500000,
                   .max_context = 32};
  shape.lengths.profile = Profile::kList;
  shape.lengths.list = {24, 7};
  shape.lengths.context = 24;
  shape.lengths.pool_bytes = 1 << 16;
  return shape;
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const DeviceFault&) {
    throw;
  } catch (const TrialError& error) {
    return {error.outcome, plain_text(error.what())};
  } catch (const std::bad_alloc&) {
    return {Outcome::kOom, "out of host memory: std::bad_alloc"};
  } catch (const std::exception& error) {
    return {Outcome::kLaunchFailed, "exception: " + plain_text(error.what())};
  } catch (...) {
    return {Outcome::kLaunchFailed, "an exception that is no std::exception"};
  }
}

Session::Session(Backend& backend, Publisher& publisher, const Registry& registry)
    : backend_(watch(backend, publisher)), publisher_(publisher), registry_(registry) {}

Session::~Session() = default;

ValidationBench& Session::bench(const Shape& shape, uint64_t seed) {
  if (!bench_ || !bench_->serves(shape, seed)) {
    bench_.reset();
    bench_ = std::make_unique<ValidationBench>(*backend_, shape, seed);
  }
  return *bench_;
}

ValidationReport Session::judge(const Chain& chain, const Shape& shape,
                                const ValidateOptions& options) {
  // On a GPU the shape at hand may stay, where there is room: only the host computes beside it.
  if (backend_->target() == TargetKind::kHost) shaped_.reset();
  ValidationReport report = judge_on(bench(shape, options.seed), chain, options);
  if (report.outcome == Outcome::kOom && shaped_) {
    shaped_.reset();
    bench_.reset();
    report = judge_on(bench(shape, options.seed), chain, options);
  }
  return report;
}

ValidationReport Session::judge_on(ValidationBench& bench, const Chain& chain,
                                   const ValidateOptions& options) {
  publisher_.at(0, -1, -1);
  try {
    return muse::tuner::validate(bench, chain, options);
  } catch (...) {
    const Failure failure = current_failure();
    return {.outcome = failure.outcome, .reason = failure.reason, .gates = {}};
  }
}

Reply Session::validate(const ValidateRequest& request) {
  const auto shape = parse_shape(request.shape);
  if (!shape) return Refusal{fmt::format("shape '{}': {}", request.shape, shape.error())};
  const auto chain = registry_.parse_chain(request.chain);
  if (!chain) return Refusal{fmt::format("chain '{}': {}", request.chain, chain.error())};
  ValidateOptions options;
  options.seed = request.seed;
  options.phase = [this](bool) { publisher_.beat(); };
  options.announce = [this](int candidate, int launch) { publisher_.at(0, candidate, launch); };
  return judge(*chain, *shape, options);
}

Reply Session::canary() {
  const auto base = default_base(backend_->target(), registry_);
  if (!base) return Refusal{"no base to check the device with: " + base.error()};
  ValidateOptions options;
  options.fills = {Fill::kNormal};
  options.phase = [this](bool) { publisher_.beat(); };
  ValidationBench bench(*backend_, canary_shape(), options.seed);
  return judge_on(bench, *base, options);
}

Session::Shaped& Session::shaped(const Shape& shape, uint64_t seed) {
  if (shaped_ && shaped_->shape == shape && shaped_->seed == seed) return *shaped_;
  shaped_.reset();
  if (backend_->target() == TargetKind::kHost) bench_.reset();  // as in judge()
  try {
    shaped_ = std::make_unique<Shaped>(*backend_, shape, seed);
  } catch (const TrialError& error) {
    if (error.outcome != Outcome::kOom || !bench_) throw;
    bench_.reset();
    shaped_ = std::make_unique<Shaped>(*backend_, shape, seed);
  }
  return *shaped_;
}

// The first run loads code and sizes stacks on a GPU; none of that belongs into a sample.
void Session::warm_up(Bound& bound, int index) {
  if (bound.warm || backend_->target() == TargetKind::kHost) return;
  feed(bound, index);
  run(publisher_, bound.chain, index);
  backend_->synchronize();
  bound.warm = true;
}

void Session::feed(const Bound& bound, int index) {
  const auto before = [](const std::string& what) { return "what runs before it: " + what; };
  try {
    run(publisher_, bound.feeder, index);
    backend_->synchronize();
  } catch (const DeviceFault& fault) {
    throw DeviceFault(before(fault.what()));
  } catch (...) {
    const Failure failure = current_failure();
    throw TrialError(failure.outcome, before(failure.reason));
  }
}

// What cannot be bound stays so for the shape: the failure is kept like a program.
Session::Bound& Session::bound(Shaped& shaped, const EntrantText& entrant, int index) {
  const auto [found, added] = shaped.chains.try_emplace(entrant.feeder + " > " + entrant.chain);
  Bound& bound = found->second;
  if (!added) return bound;
  try {
    const auto parse = [&](const std::string& text) {
      auto chain = registry_.parse_chain(text);
      if (!chain) throw TrialError(Outcome::kUnsupported, chain.error());
      return *std::move(chain);
    };
    Chain all = entrant.feeder.empty() ? Chain{} : parse(entrant.feeder);
    const size_t feeders = all.size();
    const Chain timed = parse(entrant.chain);
    all.insert(all.end(), timed.begin(), timed.end());
    all.pdl = timed.pdl;
    const Problem& problem = shaped.shape.problem;
    if (const Support joined = joins(problem, all); !joined.ok()) {
      throw TrialError(Outcome::kUnsupported, joined.reason);
    }
    if (span(all).first != Stage::kPrepare) {
      throw TrialError(Outcome::kUnmeasurable, "nothing computes what the first stage reads");
    }
    Handoff partials{.kind = HandoffKind::kO};  // anything without partials
    for (size_t i = 0; i < all.size(); ++i) {
      const Candidate& candidate = all[i];
      const int number = i < feeders ? -1 : static_cast<int>(i - feeders);
      publisher_.at(index, number, -1);
      const Handoff left = candidate.variant->produces(problem, candidate.configuration);
      if (left.kind == HandoffKind::kPartials) partials = left;
      std::unique_ptr<Program>& program = shaped.programs[program_key(candidate, partials)];
      if (!program) {
        const Geometry geometry =
            candidate.variant->geometry(problem, candidate.configuration, backend_->device_class());
        program = backend_->bind(candidate, problem, shaped.arena.buffers(partials, false),
                                 shaped.arena.workspace(key(candidate), geometry.workspace));
      }
      (number < 0 ? bound.feeder : bound.chain).push_back({program.get(), number});
    }
    std::vector<Program*> programs;
    for (const Step& step : bound.chain) programs.push_back(step.program);
    bound.graph = backend_->capture(programs, all.pdl);
    if (bound.graph) bound.chain = {{bound.graph.get(), 0}};
    for (const Step& step : bound.chain) {
      for (std::string& kernel : step.program->kernels()) bound.kernels.push_back(kernel);
    }
  } catch (...) {
    const Failure failure = current_failure();
    bound = {};
    bound.fault_reason = failure.reason;
    bound.fault = failure.outcome;
  }
  return bound;
}

RoundReply::One Session::take(Shaped& shaped, const RoundRequest& request, int index) {
  Bound& bound = this->bound(shaped, request.entrants[static_cast<size_t>(index)], index);
  if (bound.fault != Outcome::kOk) return failed({bound.fault, bound.fault_reason});
  const profiler::NvtxRange range("trial " + request.entrants[static_cast<size_t>(index)].chain);
  const bool cold = request.regime == profiler::name(profiler::Regime::kCold);
  try {
    warm_up(bound, index);
    const profiler::Sample sample = backend_->sampler().take(
        {.before =
             [&] {
               feed(bound, index);
               if (cold) backend_->flush_caches();
               publisher_.at(index, 0, 0);  // fetches the page's line before the clock starts
             },
         .run = [&] { run(publisher_, bound.chain, index); },
         .kernels = bound.kernels});
    backend_->synchronize();
    return {.span_ns = sample.span_ns, .rejected = sample.rejected, .outcome = {}, .reason = {}};
  } catch (...) {
    return failed(current_failure());
  }
}

Reply Session::round(const RoundRequest& request) {
  const profiler::NvtxRange range("round " + request.shape);
  const auto shape = parse_shape(request.shape);
  if (!shape) return Refusal{fmt::format("shape '{}': {}", request.shape, shape.error())};
  const auto regime = profiler::parse_regime(request.regime);
  if (!regime) return Refusal{fmt::format("unknown regime '{}'", request.regime)};
  RoundReply reply;
  const auto fail_all = [&](const Failure& failure) {
    reply.samples.assign(request.order.size(), failed(failure));
    return reply;
  };
  if (*regime == profiler::Regime::kRotating) {
    return fail_all({Outcome::kUnmeasurable,
                     "regime rotating replays graphs over copies of the inputs, which is not "
                     "measured here"});
  }
  publisher_.at(-1, -1, -1);
  Shaped* shaped = nullptr;
  try {
    shaped = &this->shaped(*shape, request.seed);
  } catch (...) {
    return fail_all(current_failure());
  }
  for (const int index : request.order) reply.samples.push_back(take(*shaped, request, index));
  publisher_.at(-1, -1, -1);
  reply.clock = backend_->read_clock();
  return reply;
}

}  // namespace muse::tuner
