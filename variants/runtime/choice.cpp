// SPDX-License-Identifier: Apache-2.0
// Asking a table: the key of a problem, the guard of a device, which pipelines run there.
#include "variants/runtime/choice.h"

#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <string_view>
#include <utility>

#include "variants/registry.h"

namespace muse::runtime {
namespace {

using dispatch::Guard;
using dispatch::Match;
using dispatch::Pipeline;
using dispatch::Why;

dispatch::Key key_of(const Problem& problem, int64_t context) {
  return {problem.batch,       problem.q_len,
          problem.num_q_heads, problem.num_kv_heads,
          problem.head_dim,    problem.page_size,
          problem.window,      problem.rope(),
          problem.scaled(),    context};
}

/// As emit writes the device that a table was measured on.
dispatch::Device dispatch_device(const DeviceClass& device, int compiler_version) {
  return {device.model.c_str(), device.isa.c_str(),  device.host,           device.cc,
          device.sm_count,      device.memory_bytes, device.driver_version, compiler_version};
}

/// `distance`: as in a Choice that is too far.
std::string too_far_text(double distance, const dispatch::Rules& rules) {
  if (distance > 0) {
    return fmt::format(
        "the nearest measured shape of this structure is {:.2f} doublings away, the table's limit "
        "is {:.2f}",
        std::ceil(100 * distance) / 100,
        static_cast<double>(rules.limit) / static_cast<double>(dispatch::kDistanceOne));
  }
  std::string axes;
  for (const auto& [name, axis] : {std::pair("q_len", rules.q_len), std::pair("batch", rules.batch),
                                   std::pair("context", rules.context)}) {
    if (axis.exact) axes += (axes.empty() ? "" : " and ") + std::string(name);
  }
  return fmt::format(
      "no measured shape of this structure has the {} asked for, which the table's "
      "rules want exactly",
      axes);
}

/// Why a candidate does not run in a plan; empty where it does.
std::string refusal(const Candidate& candidate, TargetKind kind, const Problem& problem,
                    const DeviceClass& device) {
  const Variant& variant = *candidate.variant;
  if (variant.target.kind != kind) {
    return fmt::format("runs on target {}, and the table is for {}", name(variant.target.kind),
                       name(kind));
  }
  if (device.cc < variant.target.minimum_cc ||
      (variant.target.exact_cc != 0 && device.cc != variant.target.exact_cc)) {
    const int needed =
        variant.target.exact_cc != 0 ? variant.target.exact_cc : variant.target.minimum_cc;
    return fmt::format("needs compute capability {}.{}{}, the device has {}.{}", needed / 10,
                       needed % 10, variant.target.exact_cc != 0 ? " exactly" : " or more",
                       device.cc / 10, device.cc % 10);
  }
  const Support supported = variant.supports(problem, candidate.configuration, device);
  if (!supported.ok()) return supported.reason;
  // A captured graph would take the same one of the two in every replay.
  if (variant.geometry(problem, candidate.configuration, device).workspace.double_buffered) {
    return "uses two workspaces in turns, which a captured graph cannot";
  }
  return {};
}

/// Of a row whose own pipeline was refused.
std::string second_text(const dispatch::Choice& choice) {
  constexpr const char* kRefused = "this shape was measured; what won there does not run here";
  if (choice.expected_loss_pct < 0) return kRefused;
  return fmt::format(
      "{}, and this pipeline is expected to lose about {:.1f} % against the best measured there",
      kRefused, choice.expected_loss_pct);
}

std::string near_text(const dispatch::Choice& choice) {
  if (choice.expected_loss_pct < 0) {
    return fmt::format(
        "the nearest measured shape whose pipeline runs here is {:.2f} doublings away",
        choice.distance);
  }
  return fmt::format(
      "the nearest measured shape is {:.2f} doublings away; by the measured shapes around, this "
      "pipeline is expected to lose about {:.1f} % against the best",
      choice.distance, choice.expected_loss_pct);
}

std::string neighbour_text(const dispatch::Choice& choice, const dispatch::Device& measured) {
  std::string text =
      fmt::format("measured on a neighbouring device, {} ({})", measured.model, measured.isa);
  if (choice.distance > 0) return text + "; " + near_text(choice);
  return choice.pipeline == choice.row->pipeline ? text : text + "; " + second_text(choice);
}

}  // namespace

Catalogue::Catalogue(const LinkedTable& table) : table_(table) {
  for (int i = 0; i < table.pipeline_count; ++i) {
    pipelines_.push_back(Registry::global().parse_chain(table.pipelines[i].key));
  }
}

Expected<const Here*> Catalogue::here(int asked) {
  const auto ordinal = target().ordinal(asked);
  if (!ordinal) return tl::unexpected(ordinal.error());
  const std::lock_guard lock(mutex_);
  const auto known = here_.find(*ordinal);
  if (known != here_.end()) return &known->second;
  auto device = target().device_class(*ordinal);
  if (!device) return tl::unexpected(std::move(device.error()));
  const Guard guard =
      dispatch::guard(*table_.device, dispatch_device(*device, table_.compiler_version));
  return &here_.emplace(*ordinal, Here{*ordinal, *std::move(device), guard}).first->second;
}

Expected<Chosen> Catalogue::choose(const Problem& problem, int64_t context,
                                   const Here& here) const {
  std::exception_ptr thrown;  // by a variant; the lookup itself lets nothing through
  const auto runs = [&](Pipeline pipeline) noexcept {
    try {
      return refusal(pipeline, problem, here.device_class).empty();
    } catch (...) {
      thrown = std::current_exception();
      return false;
    }
  };
  const bool any = context == MUSE_ATTENTION_ANY_CONTEXT;
  const dispatch::Choice choice =
      dispatch::find(any ? *table_.captured : *table_.contexts, *table_.rules,
                     key_of(problem, context), here.guard, runs);
  if (thrown) std::rethrow_exception(thrown);
  if (choice.match == Match::kInvalid) {
    return tl::unexpected(
        Failure{MUSE_ATTENTION_INVALID,
                fmt::format("context is {}; allowed: {} (q_len) to {} (max_pages * page_size), or "
                            "MUSE_ATTENTION_ANY_CONTEXT",
                            context, problem.q_len, problem.max_context)});
  }
  if (choice.match == Match::kBase) {
    const std::string reason = refusal(choice.pipeline, problem, here.device_class);
    if (!reason.empty()) {
      return tl::unexpected(
          Failure{MUSE_ATTENTION_UNSUPPORTED,
                  fmt::format("{}, and the base does not run here: {}", why_text(choice), reason)});
    }
  }
  return Chosen{choice, &*pipelines_[static_cast<size_t>(choice.pipeline)]};
}

std::string Catalogue::refusal(Pipeline pipeline, const Problem& problem,
                               const DeviceClass& device) const {
  const auto index = static_cast<size_t>(pipeline);
  if (index >= pipelines_.size()) {
    return fmt::format("the table has {} pipelines, and a row names number {}", pipelines_.size(),
                       index);
  }
  const Parsed& parsed = pipelines_[index];
  if (!parsed) {
    return fmt::format("{}: not in this build: {}", table_.pipelines[index].key, parsed.error());
  }
  for (const Candidate& candidate : *parsed) {
    const std::string reason = runtime::refusal(candidate, target().kind(), problem, device);
    if (!reason.empty()) return fmt::format("{}: {}", key(candidate), reason);
  }
  if (span(*parsed) != kWholeStep) {
    return fmt::format("{}: covers {} alone", key(*parsed), name(span(*parsed)));
  }
  return joins(problem, *parsed).reason;
}

const char* Catalogue::match_text(Match match) {
  switch (match) {
    case Match::kExact:
      return "exact";
    case Match::kNear:
      return "near";
    case Match::kOtherDevice:
      return "other device";
    case Match::kBase:
      return "base";
    case Match::kInvalid:
      return "invalid";
  }
  return "?";
}

const char* Catalogue::guard_text(Guard guard) {
  switch (guard) {
    case Guard::kTuned:
      return "tuned";
    case Guard::kOtherDriver:
      return "other driver";
    case Guard::kOtherCompiler:
      return "other compiler";
    case Guard::kNearDevice:
      return "near device";
    case Guard::kForeign:
      return "foreign";
  }
  return "?";
}

std::string Catalogue::why_text(const dispatch::Choice& choice) const {
  const dispatch::Device& measured = *table_.device;
  switch (choice.why) {
    case Why::kMeasured:
      if (choice.match == Match::kExact) {
        if (choice.pipeline != choice.row->pipeline) return second_text(choice);
        return choice.row->key.context == 0
                   ? "the choice for every context of these sizes; the time "
                     "is that of the one where most is lost"
                   : "this shape was measured";
      }
      if (choice.match == Match::kNear) return near_text(choice);
      return neighbour_text(choice, measured);
    case Why::kInvalidKey:
      return "the sizes are none";
    case Why::kForeignDevice:
      return fmt::format("the table was measured on {} ({}, {} {}), which this device is not near",
                         measured.model, measured.isa, measured.sm_count,
                         measured.host ? "CPUs" : "SMs");
    case Why::kOtherStructure:
      return "no shape with these heads, head_dim, page size, window or none, RoPE or none, scales "
             "or none was measured";
    case Why::kTooFar:
      return too_far_text(choice.distance, *table_.rules);
    case Why::kInfeasible:
      return "no pipeline of the shapes within the table's limit runs here";
  }
  return "?";
}

}  // namespace muse::runtime
