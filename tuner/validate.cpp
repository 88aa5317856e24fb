// SPDX-License-Identifier: Apache-2.0
// Which runs a chain is put through and which gates judge each. Gates isolate stages: attention is
// judged on the Q8 and cache bytes that the chain itself made, the gate on the chain's own O.
#include "tuner/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "tuner/chain_run.h"
#include "tuner/pairs.h"
#include "tuner/partly_attended.h"
#include "variants/numerics.h"

namespace muse::tuner {
namespace {

/// Ends a validation early; never leaves this file.
struct Ended {};

/// Of Partials that a combine alone is fed with: as many splits as fit.
constexpr int64_t kMostFedBytes = int64_t{64} << 20;

/// A chain's hand-off Partials, one or (fed) several to try; kO stands for none.
std::vector<Handoff> partials_of(const Chain& chain, const Problem& problem) {
  for (const Candidate& candidate : chain) {
    const Handoff made = candidate.variant->produces(problem, candidate.configuration);
    if (made.kind == HandoffKind::kPartials) return {made};
  }
  if (span(chain).first != Stage::kCombine) return {Handoff{.kind = HandoffKind::kO}};
  // A few splits, three and more leave some unread; and many, for loops over more than one pass.
  const std::vector<int64_t> few{5, 4, 3, 8, 16, 32, 2, 1}, many{255, 129, 67, 64, 33, 32, 17, 16};
  const Candidate& first = chain.front();
  const int64_t row_bytes =
      problem.tokens() * problem.num_q_heads * problem.head_dim * size_bytes(Element::kF32);
  std::vector<Handoff> accepted;
  for (const PartialType type : {PartialType::kF32, PartialType::kBf16}) {
    for (const auto& capacities : {few, many}) {
      for (const int64_t capacity : capacities) {
        const Handoff fed{HandoffKind::kPartials, type, capacity};
        if (capacity > few.front() && capacity * row_bytes > kMostFedBytes) continue;
        if (!first.variant->consumes(problem, first.configuration, fed).ok()) continue;
        if (std::find(accepted.begin(), accepted.end(), fed) == accepted.end()) {
          accepted.push_back(fed);
        }
        break;
      }
    }
  }
  return accepted;
}

class Validation {
 public:
  Validation(ValidationBench& bench, const Chain& chain, const ValidateOptions& options)
      : bench_(bench), chain_(chain), options_(options), span_(span(chain)), sight_(sight(chain)) {}

  ValidationReport report() {
    try {
      if (const std::string reason = unsupported(problem()); !reason.empty()) {
        end(Outcome::kUnsupported, reason);
      }
      const std::vector<Handoff> handoffs = partials_of(chain_, problem());
      if (handoffs.empty()) {
        end(Outcome::kUnsupported, key(chain_) + " accepts none of the partials it was offered");
      }
      if (span_.first == Stage::kPrepare) judge_independent(handoffs.front());
      for (const Handoff& handoff : handoffs) {
        bench_.release_extras();  // partials of the hand-off before
        judge_fills(handoff);
      }
    } catch (const Ended&) {
    }
    return std::move(report_);
  }

 private:
  const Problem& problem() const { return bench_.shape().problem; }
  bool covers(Stage stage) const { return span_.covers(stage); }

  [[noreturn]] void end(Outcome outcome, std::string reason) {
    report_.outcome = outcome;
    report_.reason = std::move(reason);
    throw Ended{};
  }

  /// Empty where every candidate takes the problem and the hand-offs join.
  std::string unsupported(const Problem& asked) const {
    for (const Candidate& candidate : chain_) {
      const Support support = candidate.variant->supports(asked, candidate.configuration,
                                                          bench_.backend().device_class());
      if (!support.ok()) return key(candidate) + ": " + support.reason;
    }
    return joins(asked, chain_).reason;
  }

  /// Host-only work between two calls of options.phase.
  template <class Work>
  decltype(auto) reference(const Work& work) {
    struct Phase {
      const ValidateOptions& options;
      explicit Phase(const ValidateOptions& o) : options(o) { options.phase(true); }
      ~Phase() { options.phase(false); }
    } phase(options_);
    return work();
  }

  /// Adds the verdict to its gate and fill; the first failure ends the validation.
  void record(Gate gate, Fill fill, const Judgement& verdict) {
    auto result =
        std::find_if(report_.gates.begin(), report_.gates.end(),
                     [&](const GateResult& r) { return r.gate == gate && r.fill == fill; });
    if (result == report_.gates.end()) {
      result = report_.gates.insert(result, GateResult{gate, fill, true, {}, std::nullopt});
    }
    for (const auto& [metric, value] : verdict.metrics) {
      const auto [known, fresh] = result->metrics.try_emplace(metric, value);
      const bool smaller_is_worse = metric == "cosine" || metric == "worst_cosine";
      if (!fresh && (smaller_is_worse ? value < known->second : value > known->second)) {
        known->second = value;
      }
    }
    if (!verdict.failure) return;
    result->passed = false;
    result->failure = verdict.failure;
    end(Outcome::kIncorrect, verdict.failure->text(gate));
  }

  void launch(ChainRun& run, Fill fill, bool redirected, bool taps) {
    run.run(redirected, taps, options_.announce);
    reference([&] {
      record(Gate::kPoison, fill, {{}, run.disturbed()});
      if (taps) {
        const std::string silent = run.silent_tap();
        if (!silent.empty()) {
          end(Outcome::kUnmeasurable, fmt::format("{} fuses stages and left {} untouched: nothing "
                                                  "inside it can be judged",
                                                  key(chain_), silent));
        }
      }
      record(Gate::kPoison, fill, {{}, run.unwritten(taps)});
    });
  }

  void judge_independent(const Handoff& partials) {
    const Fill fill = options_.fills.front();
    const CaseKind kind = CaseKind::kIndependent;
    const auto stand = reference([&] { return bench_.stand(fill, kind); });
    const auto feed = reference([&] { return bench_.feed(*stand, Stage::kPrepare, partials); });
    ChainRun run(bench_, bench_.arena(), chain_, *stand, kind, *feed, partials);
    launch(run, fill, false, sight_.taps);
    reference([&] { judge_prepare(run, *stand->data, fill); });
  }

  void judge_fills(const Handoff& partials) {
    const bool reads_cache = covers(Stage::kAttention);
    const CaseKind kind = span_.first == Stage::kPrepare ? CaseKind::kServed : CaseKind::kStored;
    for (const Fill fill : options_.fills) {
      if (fill != options_.fills.front() && !reads_cache) break;
      const auto stand = reference([&] { return bench_.stand(fill, kind); });
      const auto feed = reference([&] { return bench_.feed(*stand, span_.first, partials); });
      ChainRun run(bench_, bench_.arena(), chain_, *stand, kind, *feed, partials);
      launch(run, fill, false, sight_.taps);
      const bool first = fill == options_.fills.front();
      const bool repeats = first && is_deterministic();
      const Products made = repeats ? run.products() : Products();
      reference([&] { judge(run, *stand, *feed, fill); });
      if (!first) continue;
      judge_with_nan_values(run, *stand, fill);
      judge_again(run, fill, repeats ? &made : nullptr);
      judge_alone(run, stand, *feed, kind, partials, fill);
    }
  }

  void judge(ChainRun& run, Stand& stand, const FeedOnTarget& feed, Fill fill) {
    if (covers(Stage::kPrepare)) judge_prepare(run, *stand.data, fill);
    if (covers(Stage::kAttention)) judge_attention_stages(run, stand, fill);
    if (span_.first == Stage::kCombine) {
      record(
          Gate::kAttention, fill,
          judge_combine(sight_.o, problem().head_dim, feed.combined, run.read<uint16_t>(sight_.o)));
    }
    if (covers(Stage::kGate)) {
      const auto out = run.read<uint16_t>("out");
      if (sight_.o.empty()) {
        record(Gate::kGate, fill, judge_gate("out", feed.gated, out));
      } else {
        const auto o = run.read<uint16_t>(sight_.o);
        record(Gate::kGate, fill,
               judge_gate("out", reference::gate(problem(), stand.data->inputs.view(), o.data()),
                          out));
      }
    }
    if (span_ == kWholeStep) judge_whole(run, stand, fill);
  }

  void judge_prepare(ChainRun& run, const Case& data, Fill fill) {
    const auto q8 = run.read<uint8_t>(sight_.q8);
    record(Gate::kPrepare, fill, judge_codes(sight_.q8, data.prepared.q8, q8));
    const auto rows = [&](const char* name, const std::vector<uint8_t>& expected,
                          const std::vector<uint8_t>& got) {
      Judgement verdict = judge_codes(name, expected, got);
      if (verdict.failure) verdict.failure->index = cache_index(data, verdict.failure->index);
      record(Gate::kPrepare, fill, verdict);
    };
    rows("k_cache", data.prepared.k8, run.step_k());
    rows("v_cache", data.prepared.v8, run.step_v());
  }

  /// Of the bytes that the chain works on: the reference's own, or those it has made itself.
  std::shared_ptr<const AttentionTruth> truth_of(ChainRun& run, const Stand& stand) {
    if (sight_.q8.empty()) return reference_truth(stand);
    const StepBytes made{run.read<uint8_t>(sight_.q8), run.step_k(), run.step_v()};
    if (made == reference_step(stand)) return reference_truth(stand);
    Buffers in = run.buffers();
    if (sight_.q8 == "q8_tap") in.q8 = in.q8_tap;
    return bench_.truth(stand, made, in, options_.reference_budget);
  }

  static StepBytes reference_step(const Stand& stand) {
    const reference::Prepared& prepared = stand.data->prepared;
    return {prepared.q8, prepared.k8, prepared.v8};
  }

  std::shared_ptr<const AttentionTruth> reference_truth(const Stand& stand) {
    return bench_.truth(stand, reference_step(stand), bench_.reference_buffers(stand),
                        options_.reference_budget);
  }

  Precision precision() const {
    Precision precision = Precision::kF32;
    for (const Candidate& candidate : chain_) {
      if (candidate.span().covers(Stage::kAttention)) {
        precision = candidate.variant->declared.precision;
      }
    }
    return precision;
  }

  void judge_attention_stages(ChainRun& run, const Stand& stand, Fill fill) {
    const auto exact = truth_of(run, stand);
    // Partials in memory part the stages: attention answers for them, a combine behind it for O, so
    // that neither pays for the other's rounding.
    const std::string buffer = sight_.partials ? "partial_o" : sight_.o;
    std::vector<double> got;
    if (sight_.partials) {
      const Backend::CombinedPartials combined = run.combined();
      judge_split_lse(combined.lse, *exact, fill);
      const std::vector<double>& o = combined.o;
      got = of_pairs(problem(), exact->pairs, [&](size_t i) { return o[i]; });
      if (!sight_.o.empty()) {
        record(Gate::kAttention, fill,
               judge_combine(sight_.o, problem().head_dim, o, run.read<uint16_t>(sight_.o)));
      }
    } else {
      const auto o = run.read<uint16_t>(sight_.o);
      got = of_pairs(problem(), exact->pairs, [&](size_t i) { return bf16_to_f32(o[i]); });
    }
    record(Gate::kAttention, fill, judge_attention(buffer, problem(), precision(), *exact, got));
  }

  /// O alone would not see a wrong scale of all log-sum-exps of a request with one split.
  void judge_split_lse(const std::vector<double>& lse, const AttentionTruth& exact, Fill fill) {
    std::vector<double> total;
    for (const reference::Pair& pair : exact.pairs) {
      for (int64_t i = 0; i < problem().q_len; ++i) {
        const int64_t head = head_offset(problem(), pair, i) / problem().head_dim;
        total.push_back(lse[static_cast<size_t>(head)]);
      }
    }
    record(Gate::kAttention, fill, judge_lse("partial_lse", problem(), exact, total));
  }

  /// The whole step from the reference's own bytes.
  void judge_whole(ChainRun& run, Stand& stand, Fill fill) {
    const auto exact = reference_truth(stand);
    if (stand.end_to_end.empty())
      stand.end_to_end = gated(problem(), stand.data->inputs.view(), *exact);
    const auto out = run.read<uint16_t>("out");
    const auto got =
        of_pairs(problem(), exact->pairs, [&](size_t i) { return bf16_to_f32(out[i]); });
    record(Gate::kEndToEnd, fill, judge_end_to_end("out", stand.end_to_end, got));
  }

  bool is_deterministic() const {
    return std::all_of(chain_.begin(), chain_.end(), [](const Candidate& candidate) {
      return candidate.variant->declared.deterministic;
    });
  }

  /// What the chain ends with: out, O, or what its partials combine to; [T, Hq, D].
  std::vector<double> result(ChainRun& run) const {
    if (!sight_.out && sight_.o.empty()) return run.combined().o;
    const auto codes = run.read<uint16_t>(result_name());
    std::vector<double> values(codes.size());
    std::transform(codes.begin(), codes.end(), values.begin(), bf16_to_f32);
    return values;
  }
  const char* result_name() const {
    if (sight_.out) return "out";
    return sight_.o.empty() ? "partial_o" : "o";
  }

  /// NaN in rows that some queries of a request attend: it reaches those and no other. `run` has
  /// just run without.
  void judge_with_nan_values(ChainRun& run, const Stand& stand, Fill fill) {
    const Inputs& in = stand.data->inputs;
    const std::vector<NanValues> values = partly_attended(in);
    if (values.empty() || !covers(Stage::kAttention)) return;
    const std::vector<double> expected =
        reference([&] { return with_nan(in, values, sight_.out, result(run)); });
    run.run_with_nan(values, options_.announce);
    reference([&] {
      record(Gate::kPoison, fill,
             {{}, judge_with_nan(result_name(), problem().head_dim, expected, result(run))});
    });
  }

  /// Equal data again, without taps and with poison behind the page table's unused entries.
  void judge_again(ChainRun& run, Fill fill, const Products* first) {
    launch(run, fill, true, false);
    if (!first) return;
    record(Gate::kPoison, fill,
           {{},
            run.differs(*first,
                        "differs from the run before, which had taps and -1 in unused "
                        "page table entries")});
  }

  /// Batch-invariant: the last request alone gives the same bits. Split-KV partials may be cut
  /// differently as long as what they combine to is the same; chains that end there are not judged.
  void judge_alone(ChainRun& run, const std::shared_ptr<Stand>& stand, const FeedOnTarget& feed,
                   CaseKind kind, const Handoff& partials, Fill fill) {
    if (problem().batch == 1 || span_.last < Stage::kCombine) return;
    if (!std::all_of(chain_.begin(), chain_.end(), is_batch_invariant)) return;
    AloneStand& alone = reference([&]() -> AloneStand& { return bench_.last_alone(stand); });
    const Problem& one = alone.stand->problem();
    if (!unsupported(one).empty()) return;
    const auto part = reference([&] { return bench_.last_alone(feed, problem()); });
    const bool fed = span_.first == Stage::kCombine;
    ChainRun single(bench_, *alone.arena, chain_, *alone.stand, kind, *part,
                    fed ? partials : partials_of(chain_, one).front());
    const char* last = sight_.out ? "out" : "o";
    const auto all = run.read<uint8_t>(last);
    single.run(false, false, options_.announce);
    const auto got = single.read<uint8_t>(last);
    const std::span<const uint8_t> expected = std::span(all).last(got.size());
    record(Gate::kPoison, fill,
           {{},
            judge_equal(last, Element::kBf16, expected, got,
                        "the last request alone differs from the same in the batch")});
  }

  ValidationBench& bench_;
  const Chain& chain_;
  const ValidateOptions& options_;
  const Span span_;
  const Sight sight_;
  ValidationReport report_;
};

}  // namespace

ValidationReport validate(ValidationBench& bench, const Chain& chain,
                          const ValidateOptions& options) {
  const auto failed = [](Outcome outcome, std::string reason) {
    return ValidationReport{.outcome = outcome, .reason = std::move(reason), .gates = {}};
  };
  struct Extras {
    ValidationBench& bench;
    ~Extras() { bench.release_extras(); }
  } extras{bench};
  try {
    return Validation(bench, chain, options).report();
  } catch (const DeviceFault&) {
    throw;
  } catch (const TrialError& error) {
    return failed(error.outcome, error.what());
  } catch (const std::bad_alloc&) {
    return failed(Outcome::kOom, "out of host memory while making data and references");
  } catch (const std::exception& error) {  // supports, span, produces, consumes
    return failed(Outcome::kLaunchFailed,
                  fmt::format("setting up {}: {}", key(chain), error.what()));
  } catch (...) {
    return failed(Outcome::kLaunchFailed,
                  fmt::format("setting up {}: something that is no std::exception", key(chain)));
  }
}

ValidationReport validate(Backend& backend, const Chain& chain, const Shape& shape,
                          const ValidateOptions& options) {
  ValidationBench bench(backend, shape, options.seed);
  return validate(bench, chain, options);
}

}  // namespace muse::tuner
