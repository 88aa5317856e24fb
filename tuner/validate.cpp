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
#include "variants/numerics.h"

namespace muse::tuner {
namespace {

template <class T>
std::span<const uint8_t> raw(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

/// Ends a validation early; never leaves this file.
struct Ended {};

/// A chain's hand-off Partials, one or (fed) several to try; kO stands for none.
std::vector<Handoff> partials_of(const Chain& chain, const Problem& problem) {
  for (const Candidate& candidate : chain) {
    const Handoff made = candidate.variant->produces(problem, candidate.configuration);
    if (made.kind == HandoffKind::kPartials) return {made};
  }
  if (span(chain).first != Stage::kCombine) return {Handoff{.kind = HandoffKind::kO}};
  std::vector<Handoff> accepted;
  for (const PartialType type : {PartialType::kF32, PartialType::kBf16}) {
    for (const int64_t capacity : {5, 4, 3, 8, 16, 32, 2, 1}) {  // three and more leave some unread
      const Handoff fed{HandoffKind::kPartials, type, capacity};
      const Candidate& first = chain.front();
      if (!first.variant->consumes(problem, first.configuration, fed).ok()) continue;
      accepted.push_back(fed);
      break;
    }
  }
  return accepted;
}

class Validation {
 public:
  Validation(Backend& backend, const Chain& chain, const Shape& shape,
             const ValidateOptions& options)
      : backend_(backend),
        chain_(chain),
        shape_(validation_shape(shape)),
        options_(options),
        span_(span(chain)),
        sight_(sight(chain)) {}

  ValidationReport report() {
    try {
      if (const std::string reason = unsupported(problem()); !reason.empty()) {
        end(Outcome::kUnsupported, reason);
      }
      const std::vector<Handoff> handoffs = partials_of(chain_, shape_.problem);
      if (handoffs.empty()) {
        end(Outcome::kUnsupported, key(chain_) + " accepts none of the partials it was offered");
      }
      if (span_.first == Stage::kPrepare) judge_independent(handoffs.front());
      for (const Handoff& handoff : handoffs) judge_fills(handoff);
    } catch (const Ended&) {
    }
    return std::move(report_);
  }

 private:
  const Problem& problem() const { return shape_.problem; }
  bool covers(Stage stage) const { return span_.covers(stage); }

  [[noreturn]] void end(Outcome outcome, std::string reason) {
    report_.outcome = outcome;
    report_.reason = std::move(reason);
    throw Ended{};
  }

  /// Empty where every candidate takes the problem and the hand-offs join.
  std::string unsupported(const Problem& asked) const {
    for (const Candidate& candidate : chain_) {
      const Support support =
          candidate.variant->supports(asked, candidate.configuration, backend_.device_class());
      if (!support.ok()) return key(candidate) + ": " + support.reason;
    }
    return joins(asked, chain_).reason;
  }

  /// Host-only work between two calls of options.phase.
  template <class Work>
  auto reference(const Work& work) {
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

  void launch(ChainRun& run, Fill fill, const std::vector<int32_t>& page_table, bool taps) {
    run.run(page_table, taps, options_.announce);
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
    const auto data =
        reference([&] { return make_case(shape_, options_.seed, fill, CaseKind::kIndependent); });
    const Feed feed = make_feed(*data, Stage::kPrepare, partials);
    ChainRun run(backend_, chain_, *data, feed);
    launch(run, fill, data->inputs.page_table, sight_.taps);
    reference([&] { judge_prepare(run, *data, fill); });
  }

  void judge_fills(const Handoff& partials) {
    const bool reads_cache = covers(Stage::kAttention);
    const CaseKind kind = span_.first == Stage::kPrepare ? CaseKind::kServed : CaseKind::kStored;
    for (const Fill fill : options_.fills) {
      if (fill != options_.fills.front() && !reads_cache) break;
      const auto data = reference([&] { return make_case(shape_, options_.seed, fill, kind); });
      const Feed feed = reference([&] { return make_feed(*data, span_.first, partials); });
      ChainRun run(backend_, chain_, *data, feed);
      launch(run, fill, data->inputs.page_table, sight_.taps);
      const std::vector<Product> made = products(run, partials);
      reference([&] { judge(run, *data, feed, fill); });
      if (fill == options_.fills.front()) {
        judge_again(run, *data, fill, made, partials);
        judge_alone(run, *data, feed, fill);
      }
    }
  }

  void judge(ChainRun& run, const Case& data, const Feed& feed, Fill fill) {
    if (covers(Stage::kPrepare)) judge_prepare(run, data, fill);
    if (covers(Stage::kAttention)) judge_attention_stages(run, data, feed, fill);
    if (span_.first == Stage::kCombine) judge_combine_alone(run, data, feed, fill);
    if (covers(Stage::kGate)) {
      const std::vector<uint16_t> o = sight_.o.empty() ? feed.o : run.read<uint16_t>(sight_.o);
      const std::vector<double> expected = reference::gate(problem(), data.inputs.view(), o.data());
      record(Gate::kGate, fill, judge_gate("out", expected, run.read<uint16_t>("out")));
    }
    if (span_ == kWholeStep) judge_whole(run, data, fill);
  }

  void judge_prepare(ChainRun& run, const Case& data, Fill fill) {
    const auto q8 = run.read<uint8_t>(sight_.q8);
    record(Gate::kPrepare, fill, judge_codes(sight_.q8, data.prepared.q8, q8));
    const Problem& p = problem();
    const int64_t width = p.num_kv_heads * p.head_dim;
    const auto rows = [&](const char* name, const std::vector<uint8_t>& expected,
                          const std::vector<uint8_t>& cache) {
      Judgement verdict = judge_codes(name, expected, run.step_rows(cache));
      if (verdict.failure) {  // from the place among the step's rows to that in the cache
        int64_t& index = verdict.failure->index;
        index = data.inputs.cache_loc[static_cast<size_t>(index / width)] * width + index % width;
      }
      record(Gate::kPrepare, fill, verdict);
    };
    rows("k_cache", data.prepared.k8, run.k_cache());
    rows("v_cache", data.prepared.v8, run.v_cache());
  }

  /// The inputs with the caches that the run left.
  static Buffers after(ChainRun& run, const Case& data) {
    Buffers in = data.inputs.view();
    in.k_cache = run.k_cache().data();
    in.v_cache = run.v_cache().data();
    return in;
  }

  std::shared_ptr<const AttentionTruth> truth(ChainRun& run, const Case& data,
                                              const std::vector<uint8_t>& q8) {
    return attention_truth(data, after(run, data), q8, options_.reference_budget);
  }

  /// Elements of a [T, Hq, D] buffer in the order of the pairs.
  template <class Value>
  std::vector<double> of_pairs(const AttentionTruth& truth, const Value& value) const {
    std::vector<double> out;
    for (const reference::Pair& pair : truth.pairs) {
      for (int64_t i = 0; i < problem().q_len; ++i) {
        const int64_t offset = head_offset(problem(), pair, i);
        for (int64_t d = 0; d < problem().head_dim; ++d) {
          out.push_back(value(static_cast<size_t>(offset + d)));
        }
      }
    }
    return out;
  }

  void judge_attention_stages(ChainRun& run, const Case& data, const Feed& feed, Fill fill) {
    const auto q8 = sight_.q8.empty() ? feed.q8 : run.read<uint8_t>(sight_.q8);
    const auto exact = truth(run, data, q8);
    Precision precision = Precision::kF32;
    for (const Candidate& candidate : chain_) {
      if (candidate.span().covers(Stage::kAttention)) {
        precision = candidate.variant->declared.precision;
      }
    }
    if (sight_.partials) judge_split_lse(run, *exact, fill);
    // Partials in memory part the stages: attention answers for them, a combine behind it for O, so
    // that neither pays for the other's rounding.
    const std::string buffer = sight_.partials ? "partial_o" : sight_.o;
    std::vector<double> got;
    if (sight_.partials) {
      const std::vector<double> o = combined(run.partials(), feed.partials, data);
      got = of_pairs(*exact, [&](size_t i) { return o[i]; });
      if (!sight_.o.empty()) {
        record(Gate::kAttention, fill,
               judge_combine(sight_.o, problem().head_dim, o, run.read<uint16_t>(sight_.o)));
      }
    } else {
      const auto o = run.read<uint16_t>(sight_.o);
      got = of_pairs(*exact, [&](size_t i) { return bf16_to_f32(o[i]); });
    }
    record(Gate::kAttention, fill, judge_attention(buffer, problem(), precision, *exact, got));
  }

  std::vector<double> combined(PartialsView view, const Handoff& partials, const Case& data) const {
    Buffers in = data.inputs.view();
    in.partial_o = view.o.data();
    in.partial_lse = view.lse.data();
    in.n_splits = view.n_splits.data();
    in.split_capacity = partials.split_capacity;
    in.partial_type = partials.partial_type;
    return reference::combine(problem(), in);
  }

  /// O alone would not see a wrong scale of all log-sum-exps of a request with one split.
  void judge_split_lse(const ChainRun& run, const AttentionTruth& exact, Fill fill) {
    const PartialsView view = run.partials();
    const int64_t heads = problem().tokens() * problem().num_q_heads;
    std::vector<double> total;
    for (const reference::Pair& pair : exact.pairs) {
      for (int64_t i = 0; i < problem().q_len; ++i) {
        const int64_t head = head_offset(problem(), pair, i) / problem().head_dim;
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        const int splits = view.n_splits[static_cast<size_t>(pair.request)];
        const auto lse = [&](int s) {
          return static_cast<double>(view.lse[static_cast<size_t>(s * heads + head)]);
        };
        for (int s = 0; s < splits; ++s) largest = std::max(largest, lse(s));
        for (int s = 0; s < splits && std::isfinite(largest); ++s) {
          sum += std::exp2(lse(s) - largest);
        }
        total.push_back(std::isfinite(largest) ? largest + std::log2(sum) : largest);
      }
    }
    record(Gate::kAttention, fill, judge_lse("partial_lse", problem(), exact, total));
  }

  void judge_combine_alone(const ChainRun& run, const Case& data, const Feed& feed, Fill fill) {
    const std::vector<double> expected =
        combined({feed.partial_o, feed.partial_lse, feed.n_splits}, feed.partials, data);
    record(Gate::kAttention, fill,
           judge_combine(sight_.o, problem().head_dim, expected, run.read<uint16_t>(sight_.o)));
  }

  /// The whole step from the reference's own bytes; the run's caches serve as the store's target.
  void judge_whole(ChainRun& run, const Case& data, Fill fill) {
    reference::store(problem(), data.prepared, after(run, data));
    const auto exact = truth(run, data, data.prepared.q8);
    const Problem& p = problem();
    std::vector<uint16_t> o(static_cast<size_t>(p.tokens() * p.num_q_heads * p.head_dim));
    size_t next = 0;
    of_pairs(*exact, [&](size_t i) {
      o[i] = f32_to_bf16(static_cast<float>(exact->exact.o[next++]));
      return 0.0;
    });
    const std::vector<double> gated = reference::gate(p, data.inputs.view(), o.data());
    const auto out = run.read<uint16_t>("out");
    const auto expected = of_pairs(*exact, [&](size_t i) { return gated[i]; });
    const auto got = of_pairs(*exact, [&](size_t i) { return bf16_to_f32(out[i]); });
    record(Gate::kEndToEnd, fill, judge_end_to_end("out", expected, got));
  }

  /// What the chain hands on, by buffer; what nobody may read is zero.
  struct Product {
    std::string buffer;
    Element element;
    std::vector<uint8_t> bytes;
  };
  std::vector<Product> products(ChainRun& run, const Handoff& partials) const {
    std::vector<Product> made;
    const auto add = [&](const char* name, Element element) {
      made.push_back({name, element, run.read<uint8_t>(name)});
    };
    if (sight_.q8 == "q8") add("q8", Element::kE4m3);
    if (!sight_.q8.empty()) {
      made.push_back({"k_cache", Element::kE4m3, run.step_rows(run.k_cache())});
      made.push_back({"v_cache", Element::kE4m3, run.step_rows(run.v_cache())});
    }
    if (sight_.partials) {
      const PartialsView view = run.partials();
      const bool wide = partials.partial_type == PartialType::kF32;
      const auto bytes = [](std::span<const uint8_t> all) {
        return std::vector<uint8_t>(all.begin(), all.end());
      };
      made.push_back({"n_splits", Element::kI32, bytes(raw(view.n_splits))});
      made.push_back({"partial_lse", Element::kF32, bytes(raw(view.lse))});
      made.push_back({"partial_o", wide ? Element::kF32 : Element::kBf16, view.o});
    }
    if (sight_.o == "o") add("o", Element::kBf16);
    if (sight_.out) add("out", Element::kBf16);
    return made;
  }

  bool all_declare(bool Declared::*property) const {
    return std::all_of(chain_.begin(), chain_.end(), [&](const Candidate& candidate) {
      return candidate.variant->declared.*property;
    });
  }

  /// Equal data again, without taps and with poison behind the page table's unused entries.
  void judge_again(ChainRun& run, const Case& data, Fill fill, const std::vector<Product>& first,
                   const Handoff& partials) {
    launch(run, fill, data.redirected, false);
    if (!all_declare(&Declared::deterministic)) return;
    compare(first, products(run, partials), fill,
            "differs from the run before, which had taps and -1 in unused page table entries");
  }

  void compare(const std::vector<Product>& expected, const std::vector<Product>& got, Fill fill,
               const char* what) {
    for (size_t i = 0; i < expected.size(); ++i) {
      record(Gate::kPoison, fill,
             {{},
              judge_equal(expected[i].buffer, expected[i].element, expected[i].bytes, got[i].bytes,
                          what)});
    }
  }

  /// Batch-invariant: the last request alone gives the same bits. Split-KV partials may be cut
  /// differently as long as what they combine to is the same; chains that end there are not judged.
  void judge_alone(ChainRun& run, const Case& data, const Feed& feed, Fill fill) {
    if (problem().batch == 1 || span_.last < Stage::kCombine) return;
    if (!all_declare(&Declared::batch_invariant)) return;
    const int64_t request = problem().batch - 1;
    const Case alone = reference([&] { return slice(data, request); });
    if (!unsupported(alone.inputs.shape.problem).empty()) return;
    Feed part = slice(feed, problem(), request);
    part.partials = span_.first == Stage::kCombine
                        ? feed.partials
                        : partials_of(chain_, alone.inputs.shape.problem).front();
    ChainRun single(backend_, chain_, alone, part);
    single.run(alone.inputs.page_table, false, options_.announce);
    const char* last = sight_.out ? "out" : "o";
    const auto all = run.read<uint8_t>(last), got = single.read<uint8_t>(last);
    const std::span<const uint8_t> expected = std::span(all).last(got.size());
    record(Gate::kPoison, fill,
           {{},
            judge_equal(last, Element::kBf16, expected, got,
                        "the last request alone differs from the same in the batch")});
  }

  Backend& backend_;
  const Chain& chain_;
  const Shape shape_;
  const ValidateOptions& options_;
  const Span span_;
  const Sight sight_;
  ValidationReport report_;
};

}  // namespace

ValidationReport validate(Backend& backend, const Chain& chain, const Shape& shape,
                          const ValidateOptions& options) {
  const auto failed = [](Outcome outcome, std::string reason) {
    return ValidationReport{.outcome = outcome, .reason = std::move(reason), .gates = {}};
  };
  try {
    return Validation(backend, chain, shape, options).report();
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

}  // namespace muse::tuner
