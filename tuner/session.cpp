// SPDX-License-Identifier: Apache-2.0
// Rounds and validations on the shape at hand. One shape's memory is freed before the next one's is
// made, so the worker never needs two.
#include "tuner/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include "profiler/nvtx.h"
#include "tuner/failure.h"
#include "tuner/plan.h"
#include "tuner/revalidate.h"
#include "tuner/validate.h"

namespace muse::tuner {
namespace {

using Clock = std::chrono::steady_clock;

/// What runs without a look at the device's clock in between. The records of a request's last batch
/// are matched while the device is idle: short ones.
constexpr std::chrono::nanoseconds kBatchTime = std::chrono::milliseconds(5);
constexpr size_t kBatchSamples = 1024;
constexpr std::chrono::nanoseconds kRequestTime = std::chrono::milliseconds(250);
constexpr std::chrono::nanoseconds kShortest{1};
/// Of a chain before its first sample in a place: one for each part of a double-buffered workspace.
constexpr int kUntimedRuns = 2;
/// A candidate that leaves at the first checkpoint, after as many rounds, was set up in one place.
constexpr int kRoundsInAPlace = 2;

bool is_cold(const RoundRequest& request) {
  return request.regime == profiler::name(profiler::Regime::kCold);
}
bool is_rotating(const RoundRequest& request) {
  return request.regime == profiler::name(profiler::Regime::kRotating);
}

}  // namespace

namespace {

void run(Publisher& publisher, const std::vector<Step>& steps, int entrant) {
  for (const Step& step : steps) {
    for (int launch = 0; launch < step.program->launches(); ++launch) {
      publisher.at(entrant, step.candidate, launch);
      step.program->launch(launch);
    }
  }
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

TimedShape& Session::shaped(const Shape& shape, uint64_t seed, bool rotating) {
  if (!shaped_ || !shaped_->serves(shape, seed)) {
    shaped_.reset();
    shaped_ = std::make_unique<TimedShape>(*backend_, publisher_, registry_, shape, seed);
    turn_time_ = {};
  }
  if (shaped_->has_memory(rotating)) return *shaped_;
  if (backend_->target() == TargetKind::kHost) bench_.reset();  // as in judge()
  try {
    shaped_->make_memory(rotating);
  } catch (...) {
    if (current_failure().outcome != Outcome::kOom || !bench_) throw;
    bench_.reset();
    shaped_->make_memory(rotating);
  }
  return *shaped_;
}

// The first run on a GPU loads code, sizes stacks and may set up its workspace, which is another
// one in each place; none of that belongs into a sample.
void Session::warm_up(BoundChain& bound, int index, bool wait) {
  if (bound.warm || backend_->target() == TargetKind::kHost) return;
  if (wait) {
    feed(bound, index);
  } else {
    run(publisher_, bound.feeder, index);
  }
  for (int i = 0; i < kUntimedRuns; ++i) run(publisher_, bound.chain, index);
  if (wait) backend_->synchronize();
  bound.warm = true;
}

void Session::feed(const BoundChain& bound, int index) {
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

BoundChain& Session::ready(TimedShape& shaped, const EntrantText& entrant, int index,
                           size_t placement, bool wait) {
  BoundChain& bound = shaped.bound(entrant, index, placement);
  if (bound.fault != Outcome::kOk) return bound;
  try {
    warm_up(bound, index, wait);
  } catch (...) {
    const Failure failure = current_failure();
    bound.fault_reason = failure.reason;
    bound.fault = failure.outcome;
  }
  return bound;
}

profiler::Work Session::work(const BoundChain& bound, int index, bool cold) {
  return {.before =
              [this, &bound, index, cold] {
                run(publisher_, bound.feeder, index);
                if (cold) backend_->flush_caches();
                publisher_.at(index, 0, 0);  // fetches the page's line before the clock starts
              },
          .run = [this, &bound, index] { run(publisher_, bound.chain, index); },
          .kernels = bound.kernels};
}

RoundReply::One Session::take(const RoundRequest& request, const BoundChain& bound, int index,
                              double& device_ns) {
  if (bound.fault != Outcome::kOk) return failed({bound.fault, bound.fault_reason});
  const profiler::NvtxRange range("trial " + request.entrants[static_cast<size_t>(index)].chain);
  try {
    profiler::Work one = work(bound, index, is_cold(request));
    one.before = [this, &bound, index, cold = is_cold(request)] {
      feed(bound, index);
      if (cold) backend_->flush_caches();
      publisher_.at(index, 0, 0);
    };
    const profiler::Sample sample = backend_->sampler().take(one);
    backend_->synchronize();
    device_ns += sample.device_ns;
    return {.span_ns = sample.span_ns / static_cast<double>(bound.copies),
            .rejected = sample.rejected,
            .outcome = {},
            .reason = {}};
  } catch (...) {
    return failed(current_failure());
  }
}

RoundReply Session::one_by_one(const RoundRequest& request, std::span<const Turns> asked) {
  RoundReply reply;
  const auto start = Clock::now();
  for (const Turns& turns : asked) {
    if (!reply.rounds.empty() && Clock::now() - start >= kRequestTime) break;
    RoundReply::Round& round = reply.rounds.emplace_back();
    for (const Turn& turn : turns) {
      round.samples.push_back(take(request, *turn.bound, turn.entrant, reply.device_ns));
    }
    round.clock = backend_->read_clock();
  }
  return reply;
}

void Session::start(const RoundRequest& request, std::span<const Turns> batch) {
  std::vector<profiler::Work> works;
  for (const Turns& turns : batch) {
    for (const Turn& turn : turns) {
      if (turn.bound->fault != Outcome::kOk) continue;
      works.push_back(work(*turn.bound, turn.entrant, is_cold(request)));
    }
  }
  backend_->sampler().start(std::move(works));
}

// Two batches are under way at a time: one runs while the next one is enqueued, and while what is
// known of the one before is taken in. Who throws ends it; the batches before are good.
std::vector<Session::Batch> Session::run_batches(const RoundRequest& request,
                                                 std::span<const Turns> asked) {
  std::vector<Batch> batches;
  const auto start_one = [&] {
    const size_t turns = std::max<size_t>(asked.front().size(), 1);
    const size_t rounds = std::min(batch_rounds(turns), asked.size());
    start(request, asked.first(rounds));
    batches.push_back({rounds, {}});
    asked = asked.subspan(rounds);
  };
  const auto began = Clock::now();
  auto free_since = began;  // the device, but for what is under way
  try {
    start_one();
    for (size_t ended = 0; ended < batches.size(); ++ended) {
      batches[ended].clock = backend_->read_clock();
      const size_t turns = batches[ended].rounds * std::max<size_t>(request.orders[0].size(), 1);
      if (!asked.empty() && Clock::now() - began < kRequestTime) start_one();
      backend_->sampler().wait();
      const auto now = Clock::now();
      turn_time_ = std::max(kShortest, (now - free_since) / static_cast<int64_t>(turns));
      free_since = now;
    }
  } catch (...) {
    current_failure();  // a DeviceFault passes through
  }
  return batches;
}

RoundReply Session::back_to_back(const RoundRequest& request, std::span<const Turns> asked) {
  std::vector<Batch> batches = run_batches(request, asked);
  std::vector<profiler::Sample> samples;
  try {
    samples = backend_->sampler().collect();
    backend_->synchronize();  // behind a batch of which a part was enqueued
  } catch (...) {
    current_failure();
    batches.clear();
  }
  // Who throws while it is enqueued, or how the wait fails, is found out one by one.
  if (batches.empty()) return one_by_one(request, asked.first(1));
  RoundReply reply;
  auto sample = samples.begin();
  for (const Batch& batch : batches) {
    for (const Turns& turns : asked.first(batch.rounds)) {
      RoundReply::Round& round = reply.rounds.emplace_back();
      round.clock = batch.clock;
      for (const Turn& turn : turns) {
        const BoundChain& bound = *turn.bound;
        if (bound.fault != Outcome::kOk) {
          round.samples.push_back(failed({bound.fault, bound.fault_reason}));
          continue;
        }
        reply.device_ns += sample->device_ns;
        round.samples.push_back({.span_ns = sample->span_ns / static_cast<double>(bound.copies),
                                 .rejected = std::move(sample->rejected),
                                 .outcome = {},
                                 .reason = {}});
        ++sample;
      }
    }
    asked = asked.subspan(batch.rounds);
  }
  return reply;
}

/// How many rounds of so many turns fit into a batch, by the time that the last turns took.
size_t Session::batch_rounds(size_t turns) const {
  if (turn_time_.count() == 0) return 1;
  const auto fitting = static_cast<size_t>(kBatchTime / turn_time_);
  return std::max<size_t>(std::min(fitting, kBatchSamples) / turns, 1);
}

Reply Session::rounds(const RoundRequest& request) {
  const profiler::NvtxRange range("rounds " + request.shape);
  const auto shape = parse_shape(request.shape);
  if (!shape) return Refusal{fmt::format("shape '{}': {}", request.shape, shape.error())};
  const auto regime = profiler::parse_regime(request.regime);
  if (!regime) return Refusal{fmt::format("unknown regime '{}'", request.regime)};
  RoundReply reply;
  const auto fail_all = [&](const Failure& failure) {
    reply.rounds.push_back({.samples = {}, .clock = {}});
    reply.rounds.back().samples.assign(request.orders.front().size(), failed(failure));
    return reply;
  };
  if (request.orders.empty()) return Refusal{"no round is asked for"};
  publisher_.at(-1, -1, -1);
  std::vector<Turns> asked;
  try {
    TimedShape& shaped = this->shaped(*shape, request.seed, is_rotating(request));
    int number = request.first_round;
    for (const Order& order : request.orders) {
      // Who fails fails in the first place already; in the others a wait for each is only time.
      const bool wait = request.one_by_one || number == request.first_round;
      Turns& turns = asked.emplace_back();
      const auto placement =
          static_cast<size_t>(number++ / kRoundsInAPlace % std::max(request.placements, 1));
      for (const int index : order) {
        const EntrantText& entrant = request.entrants[static_cast<size_t>(index)];
        turns.push_back({index, &ready(shaped, entrant, index, placement, wait)});
      }
      backend_->synchronize();
    }
  } catch (...) {
    return fail_all(current_failure());
  }
  if (last_entrants_ != request.entrants) turn_time_ = {};  // others may take longer
  last_entrants_ = request.entrants;
  const auto start = Clock::now();
  reply = request.one_by_one ? one_by_one(request, asked) : back_to_back(request, asked);
  publisher_.at(-1, -1, -1);
  reply.rounds_s = std::chrono::duration<double>(Clock::now() - start).count();
  return reply;
}

Reply Session::revalidate(const RevalidateRequest& request) {
  const auto shape = parse_shape(request.shape);
  if (!shape) return Refusal{fmt::format("shape '{}': {}", request.shape, shape.error())};
  try {
    TimedShape& shaped = this->shaped(*shape, request.seed, false);
    const BoundChain& bound = ready(shaped, request.entrant, 0, 0, true);
    if (bound.fault != Outcome::kOk) {
      return ValidationReport{.outcome = bound.fault, .reason = bound.fault_reason, .gates = {}};
    }
    ValidationReport report =
        muse::tuner::revalidate(*backend_, shaped.arena(), *shape, request.other_seed, [&] {
          run(publisher_, bound.chain, 0);
          backend_->synchronize();
        });
    publisher_.at(-1, -1, -1);
    shaped_.reset();  // its data are others now
    return report;
  } catch (...) {
    const Failure failure = current_failure();
    shaped_.reset();
    return ValidationReport{.outcome = failure.outcome, .reason = failure.reason, .gates = {}};
  }
}

}  // namespace muse::tuner
