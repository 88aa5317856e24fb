// SPDX-License-Identifier: Apache-2.0
// One chain on one case's buffers. Everything the chain shall write is NaN before each run, so that
// a stale or missing element cannot pass for a result.
#include "tuner/chain_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <span>

namespace muse::tuner {
namespace {

/// The buffer's name in BufferSpec: that of the area without the part behind '@'.
std::string_view plain_name(const Arena::Area& area) {
  return std::string_view(area.name).substr(0, area.name.find('@'));
}

template <class T>
std::span<const uint8_t> raw(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

std::span<const uint8_t> fed_bytes(const Feed& feed, std::string_view name) {
  if (name == "q8") return raw(feed.q8);
  if (name == "partial_o") return raw(feed.partial_o);
  if (name == "partial_lse") return raw(feed.partial_lse);
  if (name == "n_splits") return raw(feed.n_splits);
  if (name == "o") return raw(feed.o);
  return {};
}

/// Whatever a candidate throws becomes an outcome.
template <class Work>
void contained(const Candidate& candidate, const char* action, const Work& work) {
  const auto text = [&](const char* what) {
    return fmt::format("{} of {} threw: {}", action, key(candidate), what);
  };
  try {
    work();
  } catch (const TrialError&) {
    throw;
  } catch (const DeviceFault&) {
    throw;
  } catch (const std::bad_alloc& error) {
    throw TrialError(Outcome::kOom, text(error.what()));
  } catch (const std::exception& error) {
    throw TrialError(Outcome::kLaunchFailed, text(error.what()));
  } catch (...) {
    throw TrialError(Outcome::kLaunchFailed, text("something that is no std::exception"));
  }
}

}  // namespace

Sight sight(const Chain& chain) {
  Sight seen;
  for (const Candidate& candidate : chain) {
    const Span span = candidate.span();
    if (span.covers(Stage::kPrepare)) seen.q8 = span.last == Stage::kPrepare ? "q8" : "q8_tap";
    if (span.covers(Stage::kCombine)) seen.o = span.last == Stage::kCombine ? "o" : "o_tap";
    if (span.last == Stage::kAttention) seen.partials = true;
    if (span.last == Stage::kGate) seen.out = true;
  }
  seen.taps = seen.q8 == "q8_tap" || seen.o == "o_tap";
  return seen;
}

ChainRun::ChainRun(Backend& backend, const Chain& chain, const Case& data, const Feed& feed)
    : backend_(backend),
      chain_(chain),
      case_(data),
      feed_(feed),
      sight_(sight(chain)),
      arena_(backend, data.inputs) {
  const Problem& problem = data.inputs.shape.problem;
  arena_.buffers(feed.partials, true);  // so that the partials exist
  for (const Candidate& candidate : chain) {
    contained(candidate, "geometry", [&] {
      const Geometry geometry =
          candidate.variant->geometry(problem, candidate.configuration, backend.device_class());
      arena_.workspace(key(candidate), geometry.workspace);
    });
  }
  areas_ = arena_.areas();
  for (const Arena::Area& area : areas_) {
    const bool input = area.role == BufferRole::kInput;
    sources_.push_back(input ? arena_.download(area.name) : std::vector<uint8_t>());
  }
}

const Arena::Area& ChainRun::area(std::string_view name) const {
  const auto found = std::find_if(areas_.begin(), areas_.end(), [name](const Arena::Area& area) {
    return plain_name(area) == name;
  });
  if (found == areas_.end()) throw std::logic_error(fmt::format("no buffer {} in this run", name));
  return *found;
}

void ChainRun::restore(const std::vector<int32_t>& page_table) {
  for (size_t i = 0; i < areas_.size(); ++i) {
    const Arena::Area& area = areas_[i];
    std::span<const uint8_t> source = sources_[i];
    switch (area.role) {
      case BufferRole::kInput:
        if (area.name == "page_table") {
          const auto table = raw(page_table);
          sources_[i].assign(table.begin(), table.end());
          source = sources_[i];
        }
        break;
      case BufferRole::kInOut:
        source = raw(area.name == "k_cache" ? case_.inputs.k_cache : case_.inputs.v_cache);
        break;
      case BufferRole::kHandoff:
        source = fed_bytes(feed_, plain_name(area));
        break;
      case BufferRole::kOutput:
      case BufferRole::kTap:
      case BufferRole::kWorkspace:
        break;
    }
    if (!source.empty()) {
      arena_.upload(area.name, source.data(), static_cast<int64_t>(source.size()));
    } else if (area.role != BufferRole::kWorkspace) {
      arena_.poison(area.name);
    }
  }
  arena_.repair_guards(runs_++ % 2 == 0 ? kGuardByte : kOtherGuardByte);
}

void ChainRun::run(const std::vector<int32_t>& page_table, bool taps, const Announce& announce) {
  const Problem& problem = case_.inputs.shape.problem;
  restore(page_table);
  const Buffers buffers = arena_.buffers(feed_.partials, taps);
  for (size_t c = 0; c < chain_.size(); ++c) {
    const Candidate& candidate = chain_[c];
    std::unique_ptr<Program> program;
    contained(candidate, "binding", [&] {
      const Workspace workspace =
          candidate.variant->geometry(problem, candidate.configuration, backend_.device_class())
              .workspace;
      const std::string owner = key(candidate);
      void* address = arena_.workspace(owner, workspace);
      if (address && !workspace.zeroed_once) arena_.poison("workspace@" + owner);
      program = backend_.bind(candidate, problem, buffers, address);
    });
    for (int launch = 0; launch < program->launches(); ++launch) {
      announce(static_cast<int>(c), launch);
      contained(candidate, "launch", [&] { program->launch(launch); });
    }
    contained(candidate, "completion", [&] { backend_.synchronize(); });
  }
}

std::optional<GateFailure> ChainRun::disturbed() {
  if (const std::optional<Arena::BrokenGuard> broken = arena_.broken_guard()) {
    return GateFailure{.buffer = broken->buffer,
                       .index = broken->offset,
                       .got = static_cast<double>(broken->got),
                       .expected = static_cast<double>(broken->expected),
                       .what = "guard band broken; the index counts bytes from the buffer's start"};
  }
  for (size_t i = 0; i < areas_.size(); ++i) {
    if (sources_[i].empty()) continue;
    const std::vector<uint8_t> now = arena_.download(areas_[i].name);
    if (auto failure =
            judge_equal(areas_[i].name, areas_[i].element, sources_[i], now, "input modified")) {
      return failure;
    }
  }
  k_cache_ = arena_.download("k_cache");
  v_cache_ = arena_.download("v_cache");
  if (auto failure = changed_cache("k_cache", case_.inputs.k_cache, k_cache_)) return failure;
  return changed_cache("v_cache", case_.inputs.v_cache, v_cache_);
}

std::optional<GateFailure> ChainRun::changed_cache(std::string_view name,
                                                   const std::vector<uint8_t>& before,
                                                   const std::vector<uint8_t>& after) const {
  const Problem& problem = case_.inputs.shape.problem;
  const auto width = static_cast<size_t>(problem.num_kv_heads * problem.head_dim);
  std::vector<int64_t> written;
  if (!sight_.q8.empty()) written = case_.inputs.cache_loc;
  std::sort(written.begin(), written.end());
  written.push_back(static_cast<int64_t>(before.size() / width));  // ends the last gap
  size_t begin = 0;
  for (const int64_t row : written) {
    const size_t end = static_cast<size_t>(row) * width;
    const std::span<const uint8_t> old(before.data() + begin, end - begin);
    const std::span<const uint8_t> now(after.data() + begin, end - begin);
    if (auto failure =
            judge_equal(name, Element::kE4m3, old, now, "cache row outside cache_loc changed")) {
      failure->index += static_cast<int64_t>(begin);
      return failure;
    }
    begin = end + width;
  }
  return std::nullopt;
}

std::vector<uint8_t> ChainRun::step_rows(const std::vector<uint8_t>& cache) const {
  const Problem& problem = case_.inputs.shape.problem;
  const int64_t width = problem.num_kv_heads * problem.head_dim;
  std::vector<uint8_t> rows;
  for (const int64_t row : case_.inputs.cache_loc) {
    rows.insert(rows.end(), cache.begin() + row * width, cache.begin() + (row + 1) * width);
  }
  return rows;
}

std::string ChainRun::silent_tap() const {
  for (const std::string& name : {sight_.q8, sight_.o}) {
    if (name != "q8_tap" && name != "o_tap") continue;
    const std::vector<uint8_t> bytes = read<uint8_t>(name);
    const auto poisoned = [](uint8_t byte) { return byte == kPoisonByte; };
    if (std::all_of(bytes.begin(), bytes.end(), poisoned)) return name;
  }
  return {};
}

std::optional<GateFailure> ChainRun::unwritten(bool taps) const {
  const auto written = [&](std::string_view name) {
    return judge_written(name, area(name).element, read<uint8_t>(name));
  };
  if (!sight_.q8.empty()) {
    for (const auto& [name, cache] : {std::pair{"k_cache", &k_cache_}, {"v_cache", &v_cache_}}) {
      auto failure = judge_written(name, Element::kE4m3, step_rows(*cache));
      if (!failure) continue;
      const Problem& problem = case_.inputs.shape.problem;
      const int64_t width = problem.num_kv_heads * problem.head_dim;
      failure->index = case_.inputs.cache_loc[static_cast<size_t>(failure->index / width)] * width +
                       failure->index % width;
      return failure;
    }
    if (sight_.q8 == "q8" || taps) {
      if (auto failure = written(sight_.q8)) return failure;
    }
  }
  if (sight_.partials) {
    if (auto failure = unwritten_partials()) return failure;
  }
  if (!sight_.o.empty() && (sight_.o == "o" || taps)) {
    if (auto failure = written(sight_.o)) return failure;
  }
  return sight_.out ? written("out") : std::nullopt;
}

std::optional<GateFailure> ChainRun::unwritten_partials() const {
  const auto n_splits = read<int32_t>("n_splits");
  const int64_t capacity = feed_.partials.split_capacity;
  for (size_t b = 0; b < n_splits.size(); ++b) {
    if (n_splits[b] >= 1 && n_splits[b] <= capacity) continue;
    return GateFailure{.buffer = "n_splits",
                       .index = static_cast<int64_t>(b),
                       .got = static_cast<double>(n_splits[b]),
                       .expected = 1,
                       .limit = static_cast<double>(capacity),
                       .what = "split count outside 1..capacity, or never written"};
  }
  const PartialsView view = partials();
  if (auto failure = judge_written("partial_lse", Element::kF32, raw(view.lse))) return failure;
  const float infinity = std::numeric_limits<float>::infinity();
  const auto too_large = std::find(view.lse.begin(), view.lse.end(), infinity);
  if (too_large != view.lse.end()) {
    return GateFailure{.buffer = "partial_lse",
                       .index = too_large - view.lse.begin(),
                       .got = infinity,
                       .what = "infinite log-sum-exp"};
  }
  const Element element =
      feed_.partials.partial_type == PartialType::kF32 ? Element::kF32 : Element::kBf16;
  return judge_written("partial_o", element, view.o);
}

PartialsView ChainRun::partials() const {
  const Problem& problem = case_.inputs.shape.problem;
  PartialsView view{read<uint8_t>("partial_o"), read<float>("partial_lse"),
                    read<int32_t>("n_splits")};
  const int64_t heads = problem.tokens() * problem.num_q_heads;
  const auto slots = static_cast<int64_t>(view.lse.size());
  const int64_t slot_bytes = static_cast<int64_t>(view.o.size()) / slots;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t request = slot % heads / problem.num_q_heads / problem.q_len;
    float& lse = view.lse[static_cast<size_t>(slot)];
    const bool counted = slot / heads < view.n_splits[static_cast<size_t>(request)];
    const bool empty = lse == -std::numeric_limits<float>::infinity();
    if (!counted) lse = 0;
    if (!counted || empty) std::fill_n(view.o.begin() + slot * slot_bytes, slot_bytes, uint8_t{0});
  }
  return view;
}

}  // namespace muse::tuner
