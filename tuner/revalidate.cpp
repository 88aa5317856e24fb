// SPDX-License-Identifier: Apache-2.0
// Other data into the memory that was timed, two runs, and the end-to-end gate.
#include "tuner/revalidate.h"

#include <algorithm>
#include <cstring>

#include "profiler/statistics.h"
#include "tuner/cases.h"
#include "tuner/pairs.h"
#include "tuner/target_memory.h"
#include "tuner/timed_data.h"

namespace muse::tuner {
namespace {

/// Attended keys that the float64 reference takes on the host.
constexpr int64_t kReferenceBudget = 1'000'000;

void poison_results(Arena& arena) {
  for (const Arena::Area& area : arena.areas()) {
    if (area.role == BufferRole::kHandoff || area.role == BufferRole::kOutput) {
      arena.poison(area.name);
    }
  }
}

/// Into the rows of a cache that the step writes: `rows`, [T, Hkv, D] on the target, or (null)
/// poison.
void put_step_rows(Backend& backend, const Arena& arena, std::string_view cache,
                   const Inputs& inputs, const void* rows) {
  const Problem& p = inputs.shape.problem;
  const int64_t row_bytes = p.num_kv_heads * p.head_dim;
  auto* first = static_cast<uint8_t*>(arena.area(cache).address);
  std::vector<Put> puts;
  for (size_t n = 0; n < inputs.cache_loc.size(); ++n) {
    puts.push_back(
        {.target = first + inputs.cache_loc[n] * row_bytes,
         .source = rows ? static_cast<const uint8_t*>(rows) + static_cast<int64_t>(n) * row_bytes
                        : nullptr,
         .bytes = row_bytes,
         .byte = kPoisonByte});
  }
  backend.put(puts);
}

AttentionTruth truth(Backend& backend, const Case& data, const Buffers& in) {
  const Problem& problem = data.inputs.shape.problem;
  if (auto computed = backend.attention_truth(problem, in)) {
    return {.pairs = all_pairs(problem),
            .exact = std::move(computed->exact),
            .fa3 = std::move(computed->emulated)};
  }
  return sampled_truth(data, in, in.q8, kReferenceBudget);
}

}  // namespace

Shape with_other_lengths(const Shape& shape, uint64_t seed) {
  const Problem& p = shape.problem;
  const std::vector<int64_t> old = contexts(shape.lengths, p.batch, p.q_len);
  profiler::SplitMix random(seed);
  Shape other = shape;
  other.lengths = {.profile = Profile::kList,
                   .page_order = PageOrder::kRandom,
                   .seed = seed,
                   .pool_bytes = 2 * pool_pages(shape) * p.page_size * p.num_kv_heads * p.head_dim};
  for (const int64_t context : old) {
    const auto most = static_cast<size_t>(context - p.q_len + 1);
    other.lengths.list.push_back(p.q_len + static_cast<int64_t>(random.below(most)));
  }
  other.lengths.context = *std::max_element(other.lengths.list.begin(), other.lengths.list.end());
  return other;
}

ValidationReport revalidate(Backend& backend, Arena& arena, const Shape& shape, uint64_t seed,
                            const std::function<void()>& run) {
  Case data;
  data.inputs = make_inputs_without_caches(with_other_lengths(shape, seed), seed, Fill::kNormal);
  const Inputs& inputs = data.inputs;
  data.prepared = reference::prepare(shape.problem, inputs.view());
  upload_inputs(arena, inputs);
  const auto run_from = [&](const auto& prepare_results) {
    for (const char* cache : {"k_cache", "v_cache"}) {
      put_step_rows(backend, arena, cache, inputs, nullptr);
    }
    prepare_results();
    run();
    return arena.download("out");
  };
  // Over the results of the timed data, for whoever computes only what is not there; then over
  // poison, for whoever does not write all of it.
  const std::vector<uint8_t> over_results = run_from([] {});
  const std::vector<uint8_t> over_poison = run_from([&] { poison_results(arena); });
  const TargetCopy k8(backend, data.prepared.k8), v8(backend, data.prepared.v8);
  put_step_rows(backend, arena, "k_cache", inputs, k8.address());
  put_step_rows(backend, arena, "v_cache", inputs, v8.address());
  arena.upload("q8", data.prepared.q8.data(), static_cast<int64_t>(data.prepared.q8.size()));
  const Buffers in = arena.buffers(Handoff{.kind = HandoffKind::kO}, false);
  const AttentionTruth exact = truth(backend, data, in);
  const std::vector<double> expected = gated(shape.problem, inputs.view(), exact);
  const auto judge = [&](const std::vector<uint8_t>& bytes) {
    std::vector<uint16_t> out(bytes.size() / sizeof(uint16_t));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return judge_end_to_end("out", expected, of_pairs(shape.problem, exact.pairs, [&](size_t i) {
                              return bf16_to_f32(out[i]);
                            }));
  };
  Judgement verdict = judge(over_results);
  if (!verdict.failure) verdict = judge(over_poison);
  ValidationReport report;
  GateResult result{.gate = Gate::kEndToEnd,
                    .fill = Fill::kNormal,
                    .passed = !verdict.failure,
                    .metrics = std::move(verdict.metrics),
                    .failure = std::move(verdict.failure)};
  result.metrics[kOtherDataSeed] = static_cast<double>(seed);
  if (result.failure) {
    report.outcome = Outcome::kIncorrect;
    report.reason = "after it was timed, on other data: " + result.failure->text(result.gate);
  }
  report.gates.push_back(std::move(result));
  return report;
}

}  // namespace muse::tuner
