// SPDX-License-Identifier: Apache-2.0
// Making plans and running them.
#include "variants/runtime/plan.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "variants/lengths.h"

namespace muse::runtime {
namespace {

/// From here on a launch can start before its predecessor has ended.
constexpr int kProgrammaticCc = 90;
/// Stands for all scales but 1: kernels read the scale itself on the device.
constexpr double kSomeScale = 2;

tl::unexpected<Failure> invalid(std::string what) {
  return tl::unexpected(Failure{MUSE_ATTENTION_INVALID, std::move(what)});
}

Expected<Problem> checked(const muse_attention_problem& asked, int64_t context) {
  Problem problem{.batch = asked.batch,
                  .q_len = asked.q_len,
                  .num_q_heads = asked.num_q_heads,
                  .num_kv_heads = asked.num_kv_heads,
                  .head_dim = asked.head_dim,
                  .page_size = asked.page_size,
                  .window = asked.window,
                  .rope_theta = asked.rope_theta,
                  .qk_scale_factor = asked.qk_scale_factor,
                  .sm_scale = asked.sm_scale,
                  .kv_scale = asked.scaled != 0 ? kSomeScale : 1};
  if (asked.max_pages < 1 ||
      __builtin_mul_overflow(asked.max_pages, asked.page_size, &problem.max_context)) {
    return invalid(
        fmt::format("max_pages is {}; allowed: 1 and above, max_pages * page_size being "
                    "the capacity in tokens",
                    asked.max_pages));
  }
  std::string error = check(problem);
  if (!error.empty()) return invalid(std::move(error));
  if (context != MUSE_ATTENTION_ANY_CONTEXT &&
      (context < problem.q_len || context > problem.max_context)) {
    return invalid(
        fmt::format("context is {}; allowed: {} (q_len) to {} (max_pages * page_size), or "
                    "MUSE_ATTENTION_ANY_CONTEXT",
                    context, problem.q_len, problem.max_context));
  }
  return problem;
}

template <class T>
T* at(void* workspace, int64_t offset) {
  if (offset < 0) return nullptr;
  return reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + offset);
}

}  // namespace

Expected<std::unique_ptr<const Plan>> Plan::make(Catalogue& catalogue,
                                                 const muse_attention_problem& asked,
                                                 int64_t context, int device) {
  const auto problem = checked(asked, context);
  if (!problem) return tl::unexpected(problem.error());
  const auto here = catalogue.here(device);
  if (!here) return tl::unexpected(here.error());
  const auto chosen = catalogue.choose(*problem, context, **here);
  if (!chosen) return tl::unexpected(chosen.error());
  std::unique_ptr<Plan> plan(new Plan(catalogue, *problem, **here, *chosen));
  if (auto prepared = plan->prepare(); !prepared) return tl::unexpected(prepared.error());
  return plan;
}

Plan::Plan(const Catalogue& catalogue, const Problem& problem, const Here& here,
           const Chosen& chosen)
    : catalogue_(catalogue),
      problem_(problem),
      here_(here),
      chosen_(chosen),
      why_(catalogue.why_text(chosen.choice)),
      encoder_(catalogue.target().encoder()) {}

Expected<void> Plan::prepare() {
  const Chain& chain = *chosen_.chain;
  std::vector<Geometry> geometries;
  for (const Candidate& candidate : chain) {
    geometries.push_back(
        candidate.variant->geometry(problem_, candidate.configuration, here_.device_class));
  }
  auto layout = workspace_layout(problem_, chain, geometries);
  if (!layout) return tl::unexpected(std::move(layout.error()));
  layout_ = *std::move(layout);

  const LinkedTable& table = catalogue_.table();
  const std::span<const Kernel> kernels(table.kernels, static_cast<size_t>(table.kernel_count));
  for (size_t i = 0; i < chain.size(); ++i) {
    const std::vector<Launch>& launches = geometries[i].launches;
    for (size_t n = 0; n < launches.size(); ++n) {
      // The first one's predecessor is the caller's: whether that may overlap is not known.
      const bool programmatic = chain.pdl && launches[n].pdl && !steps_.empty() &&
                                here_.device_class.cc >= kProgrammaticCc;
      auto ready = catalogue_.target().load(
          here_.ordinal, {chain[i], launches[n], static_cast<int>(n), programmatic}, kernels);
      if (!ready) return tl::unexpected(std::move(ready.error()));
      steps_.push_back({&chain[i], key(chain[i]), launches[n].entry, static_cast<int>(n),
                        layout_.candidates[i], *std::move(ready)});
    }
  }
  return {};
}

LaunchError Plan::init(void* workspace, void* stream) const {
  if (layout_.zeroed_bytes == 0) return {};
  const LaunchError elsewhere = catalogue_.target().elsewhere(here_.ordinal);
  if (elsewhere) return elsewhere;
  return catalogue_.target().zero(workspace, static_cast<size_t>(layout_.zeroed_bytes), stream);
}

StepError Plan::run(const Buffers& inputs, void* workspace, void* stream) const {
  if (const LaunchError error = catalogue_.target().elsewhere(here_.ordinal)) return {error};
  Buffers buffers = inputs;
  buffers.q8 = at<uint8_t>(workspace, layout_.q8);
  buffers.partial_o = at<void>(workspace, layout_.partial_o);
  buffers.partial_lse = at<float>(workspace, layout_.partial_lse);
  buffers.n_splits = at<int32_t>(workspace, layout_.n_splits);
  buffers.o = at<uint16_t>(workspace, layout_.o);
  buffers.split_capacity = layout_.partials.split_capacity;
  buffers.partial_type = layout_.partials.partial_type;
  for (const Step& step : steps_) {
    const Arguments arguments =
        step.candidate->variant->bind(problem_, step.candidate->configuration, buffers,
                                      at<void>(workspace, step.workspace), encoder_, step.launch);
    const LaunchError error = step.ready->run(arguments, stream);
    if (error) return {error, step.name.c_str(), step.entry.c_str()};
  }
  return {};
}

void Plan::explain(muse_attention_explanation& explanation) const {
  const dispatch::Choice& choice = chosen_.choice;
  const dispatch::Row* row = choice.row;
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  explanation.pipeline = catalogue_.table().pipelines[static_cast<size_t>(choice.pipeline)].key;
  explanation.match = Catalogue::match_text(choice.match);
  explanation.guard = Catalogue::guard_text(choice.guard);
  explanation.why = why_.c_str();
  explanation.distance = choice.distance;
  explanation.expected_us = row != nullptr ? row->median_us : kUnknown;
  explanation.low_us = row != nullptr ? row->low_us : kUnknown;
  explanation.high_us = row != nullptr ? row->high_us : kUnknown;
  explanation.base_us = row != nullptr ? row->base_median_us : kUnknown;
  explanation.measured = row != nullptr ? row->shape : "";
  explanation.date = row != nullptr ? row->date : "";
  explanation.launches = static_cast<int32_t>(steps_.size());
}

}  // namespace muse::runtime
