// SPDX-License-Identifier: Apache-2.0
// One chain on one case's buffers. Everything the chain shall write is NaN before each run, so that
// a stale or missing element cannot pass for a result.
#include "tuner/chain_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <stdexcept>
#include <tuple>

#include "tuner/partials_view.h"

namespace muse::tuner {
namespace {

/// The buffer's name in BufferSpec: that of the area without the part behind '@'.
std::string_view plain_name(const Arena::Area& area) {
  return std::string_view(area.name).substr(0, area.name.find('@'));
}

uint8_t* at(void* address, int64_t offset) { return static_cast<uint8_t*>(address) + offset; }
const uint8_t* at(const void* address, int64_t offset) {
  return static_cast<const uint8_t*>(address) + offset;
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

ChainRun::ChainRun(ValidationBench& bench, Arena& arena, const Chain& chain, const Stand& stand,
                   CaseKind kind, const FeedOnTarget& feed, const Handoff& partials)
    : bench_(bench),
      backend_(bench.backend()),
      arena_(arena),
      chain_(chain),
      stand_(stand),
      kind_(kind),
      feed_(feed),
      partials_(partials),
      sight_(sight(chain)),
      row_bytes_(stand.problem().num_kv_heads * stand.problem().head_dim) {
  arena_.buffers(partials_, true);  // so that the partials exist
  for (const Candidate& candidate : chain) {
    contained(candidate, "geometry", [&] {
      const Geometry geometry = candidate.variant->geometry(
          stand.problem(), candidate.configuration, backend_.device_class());
      arena_.workspace(key(candidate), geometry.workspace);
    });
  }
  areas_ = arena_.areas();
}

const Arena::Area& ChainRun::area(std::string_view name) const {
  const auto found = std::find_if(areas_.begin(), areas_.end(), [&](const Arena::Area& area) {
    return plain_name(area) == name;
  });
  if (found == areas_.end()) throw std::logic_error(fmt::format("no buffer {} in this run", name));
  return *found;
}

const std::vector<uint8_t>& ChainRun::bytes_of(std::string_view name) {
  const auto known = read_.find(name);
  if (known != read_.end()) return known->second;
  return read_.emplace(name, arena_.download(area(name).name)).first->second;
}

void ChainRun::restore(bool redirected) {
  redirected_ = redirected;
  std::vector<Put> puts;
  const auto poison = [&](const Arena::Area& area) {
    puts.push_back({.target = area.address, .bytes = area.bytes, .byte = kPoisonByte});
  };
  const auto bring = [&](const Arena::Area& area, const TargetCopy& source) {
    puts.push_back({.target = area.address, .source = source.address(), .bytes = source.bytes()});
  };
  for (const Arena::Area& area : areas_) {
    switch (area.role) {
      case BufferRole::kInput:
        bring(area, input(area.name));
        break;
      case BufferRole::kInOut:
        bring(area, image(area.name));
        break;
      case BufferRole::kHandoff: {
        const auto fed = feed_.buffers.find(plain_name(area));
        if (fed == feed_.buffers.end()) {
          poison(area);
        } else {
          bring(area, fed->second);
        }
        break;
      }
      case BufferRole::kOutput:
      case BufferRole::kTap:
        poison(area);
        break;
      case BufferRole::kWorkspace:
        break;
    }
  }
  backend_.put(puts);
  poison_step_rows();
  arena_.repair_guards(runs_++ % 2 == 0 ? kGuardByte : kOtherGuardByte);
  read_.clear();
  partials_read_ = false;
}

const TargetCopy& ChainRun::input(std::string_view name) const {
  if (name == "page_table" && redirected_) return stand_.redirected;
  return stand_.inputs.find(name)->second;
}

const TargetCopy& ChainRun::image(std::string_view name) const {
  return name == "k_cache" ? stand_.caches->k : stand_.caches->v;
}

void ChainRun::poison_step_rows() {
  std::vector<Put> puts;
  for (const char* name : {"k_cache", "v_cache"}) {
    for (const int64_t row : poisoned_rows(*stand_.data, kind_)) {
      puts.push_back({.target = at(area(name).address, row * row_bytes_),
                      .bytes = row_bytes_,
                      .byte = kPoisonByte});
    }
  }
  backend_.put(puts);
}

Put ChainRun::nan_at(const NanValues& values) const {
  const Problem& p = stand_.problem();
  const Inputs& in = stand_.data->inputs;
  const int64_t column = values.kv_head * p.head_dim, b = values.request;
  const int64_t of_step =
      values.key - (in.cache_seqlens[static_cast<size_t>(b)] - p.q_len);  // negative: cached before
  if (of_step >= 0 && !sight_.q8.empty()) {
    const int64_t before_values = (p.num_q_heads + p.num_kv_heads) * p.head_dim;
    const int64_t element = (b * p.q_len + of_step) * p.qkv_width() + before_values + column;
    return {.target = at(area("qkv").address, element * 2),
            .bytes = nan_dims(p) * 2,
            .byte = kPoisonByte};
  }
  // Of either sign.
  return {.target = at(area("v_cache").address, in.row(b, values.key) * row_bytes_ + column),
          .bytes = nan_dims(p),
          .byte = of_step >= 0 ? kPoisonByte : kForeignRowByte};
}

void ChainRun::run(bool redirected, bool taps, const Announce& announce) {
  restore(redirected);
  launch_all(taps, announce);
}

void ChainRun::run_with_nan(const std::vector<NanValues>& values, const Announce& announce) {
  restore(false);
  std::vector<Put> puts;
  for (const NanValues& each : values) puts.push_back(nan_at(each));
  backend_.put(puts);
  launch_all(false, announce);
}

void ChainRun::launch_all(bool taps, const Announce& announce) {
  const Problem& problem = stand_.problem();
  const Buffers buffers = arena_.buffers(partials_, taps);
  std::vector<std::unique_ptr<Program>> programs;
  for (size_t c = 0; c < chain_.size(); ++c) {
    const Candidate& candidate = chain_[c];
    std::unique_ptr<Program>& program = programs.emplace_back();
    contained(candidate, "binding", [&] {
      const Workspace workspace =
          candidate.variant->geometry(problem, candidate.configuration, backend_.device_class())
              .workspace;
      const std::string owner = key(candidate);
      void* address = arena_.workspace(owner, workspace);
      if (address && !workspace.zeroed_once) arena_.poison("workspace@" + owner);
      program = backend_.bind(candidate, problem, buffers, address);
    });
    if (chain_.pdl) continue;  // to be launched with the others, as it will be timed
    for (int launch = 0; launch < program->launches(); ++launch) {
      announce(static_cast<int>(c), launch);
      contained(candidate, "launch", [&] { program->launch(launch); });
    }
    contained(candidate, "completion", [&] { backend_.synchronize(); });
  }
  if (chain_.pdl) run_overlapping(programs, announce);
}

void ChainRun::run_overlapping(const std::vector<std::unique_ptr<Program>>& programs,
                               const Announce& announce) {
  std::vector<Program*> parts;
  for (const auto& program : programs) parts.push_back(program.get());
  const std::unique_ptr<Program> graph = backend_.capture(parts, true, parts.size());
  if (graph) parts = {graph.get()};
  for (size_t i = 0; i < parts.size(); ++i) {
    for (int launch = 0; launch < parts[i]->launches(); ++launch) {
      announce(static_cast<int>(i), launch);
      parts[i]->launch(launch);
    }
  }
  backend_.synchronize();
}

int64_t ChainRun::first_difference(const void* got, const void* expected, int64_t bytes) const {
  const Compared one{got, expected, bytes};
  const auto found = backend_.first_difference({&one, 1});
  return found ? found->offset : -1;
}

GateFailure ChainRun::difference(const Arena::Area& area, int64_t offset, const void* expected,
                                 std::string_view what) const {
  const int64_t size = size_bytes(area.element), index = offset / size;
  std::array<uint8_t, 8> got{}, wanted{};
  backend_.download(got.data(), at(area.address, index * size), size);
  backend_.download(wanted.data(), at(expected, index * size), size);
  return {.buffer = area.name,
          .index = index,
          .got = element_value(area.element, got, 0),
          .expected = element_value(area.element, wanted, 0),
          .what = std::string(what)};
}

std::optional<GateFailure> ChainRun::disturbed() {
  if (const std::optional<Arena::BrokenGuard> broken = arena_.broken_guard()) {
    return GateFailure{.buffer = broken->buffer,
                       .index = broken->offset,
                       .got = static_cast<double>(broken->got),
                       .expected = static_cast<double>(broken->expected),
                       .what = "guard band broken; the index counts bytes from the buffer's start"};
  }
  std::vector<const Arena::Area*> inputs;
  std::vector<Compared> all;
  for (const Arena::Area& area : areas_) {
    if (area.role != BufferRole::kInput) continue;
    inputs.push_back(&area);
    all.push_back({area.address, input(area.name).address(), area.bytes});
  }
  if (const auto bad = backend_.first_difference(all)) {
    return difference(*inputs[bad->index], bad->offset, all[bad->index].expected, "input modified");
  }
  const reference::Prepared& prepared = stand_.data->prepared;
  if (auto failure = changed_cache("k_cache", prepared.k8, step_k_)) return failure;
  return changed_cache("v_cache", prepared.v8, step_v_);
}

// The image holds the step's rows as the reference writes them: a chain whose bytes are the
// reference's, as nearly all are, is done with one comparison. Else its rows step aside for those
// of the image while the rest is compared.
std::optional<GateFailure> ChainRun::changed_cache(std::string_view name,
                                                   const std::vector<uint8_t>& prepared,
                                                   std::vector<uint8_t>& step) {
  constexpr std::string_view kChanged = "cache row outside cache_loc changed";
  const Arena::Area& cache = area(name);
  const void* expected = image(name).address();
  const auto compare = [&] { return first_difference(cache.address, expected, cache.bytes); };
  const bool writes = !sight_.q8.empty();
  if (kind_ != CaseKind::kIndependent || !writes) {
    const int64_t bad = compare();
    if (bad < 0) step = prepared;
    if (bad < 0) return std::nullopt;
    if (!writes) return difference(cache, bad, expected, kChanged);
  }
  const std::vector<int64_t>& rows = stand_.data->inputs.cache_loc;
  const int64_t bytes = static_cast<int64_t>(rows.size()) * row_bytes_;
  void* aside = bench_.staging(bytes);
  const auto each_row = [&](const auto& put) {
    std::vector<Put> puts;
    for (size_t n = 0; n < rows.size(); ++n) {
      puts.push_back(put(at(aside, static_cast<int64_t>(n) * row_bytes_), rows[n] * row_bytes_));
    }
    backend_.put(puts);
  };
  each_row([&](void* kept, int64_t row) {
    return Put{.target = kept, .source = at(cache.address, row), .bytes = row_bytes_};
  });
  each_row([&](void*, int64_t row) {
    return Put{.target = at(cache.address, row), .source = at(expected, row), .bytes = row_bytes_};
  });
  const int64_t bad = compare();
  if (bad >= 0) return difference(cache, bad, expected, kChanged);
  each_row([&](void* kept, int64_t row) {
    return Put{.target = at(cache.address, row), .source = kept, .bytes = row_bytes_};
  });
  step.resize(static_cast<size_t>(bytes));
  backend_.download(step.data(), aside, bytes);
  return std::nullopt;
}

std::string ChainRun::silent_tap() {
  for (const std::string& name : {sight_.q8, sight_.o}) {
    if (name != "q8_tap" && name != "o_tap") continue;
    const std::vector<uint8_t>& bytes = bytes_of(name);
    const auto poisoned = [](uint8_t byte) { return byte == kPoisonByte; };
    if (std::all_of(bytes.begin(), bytes.end(), poisoned)) return name;
  }
  return {};
}

std::optional<GateFailure> ChainRun::unwritten_rows(std::string_view name,
                                                    const std::vector<uint8_t>& rows) const {
  auto failure = judge_written(name, Element::kE4m3, rows);
  if (failure) failure->index = cache_index(*stand_.data, failure->index);
  return failure;
}

std::optional<GateFailure> ChainRun::unwritten(bool taps) {
  const auto written = [&](std::string_view name) {
    return judge_written(name, area(name).element, bytes_of(name));
  };
  if (!sight_.q8.empty()) {
    if (auto failure = unwritten_rows("k_cache", step_k_)) return failure;
    if (auto failure = unwritten_rows("v_cache", step_v_)) return failure;
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

std::optional<GateFailure> ChainRun::unwritten_partials() {
  if (const auto seen = backend_.combined_partials(stand_.problem(), buffers(), false)) {
    return unwritten_there(*seen);
  }
  const PartialsView& view = partials();
  for (size_t b = 0; b < view.n_splits.size(); ++b) {
    if (view.n_splits[b] >= 1 && view.n_splits[b] <= partials_.split_capacity) continue;
    return illegal_splits(static_cast<int64_t>(b), view.n_splits[b]);
  }
  if (auto failure = judge_written("partial_lse", Element::kF32, byte_view(view.lse))) {
    return failure;
  }
  const float infinity = std::numeric_limits<float>::infinity();
  const auto too_large = std::find(view.lse.begin(), view.lse.end(), infinity);
  if (too_large != view.lse.end()) return infinite_lse(too_large - view.lse.begin());
  return judge_written("partial_o", area("partial_o").element, view.o);
}

// The same by what the target has found.
std::optional<GateFailure> ChainRun::unwritten_there(const Backend::CombinedPartials& seen) {
  const auto element = [&](std::string_view buffer, int64_t index) {
    const Arena::Area& from = area(buffer);
    std::vector<uint8_t> bytes(static_cast<size_t>(size_bytes(from.element)));
    backend_.download(bytes.data(), at(from.address, index * size_bytes(from.element)),
                      size_bytes(from.element));
    return bytes;
  };
  const auto nan_at = [&](std::string_view buffer, int64_t index) {
    auto failure = judge_written(buffer, area(buffer).element, element(buffer, index));
    if (failure) failure->index = index;
    return failure;
  };
  if (seen.bad_n_splits >= 0) {
    const std::vector<uint8_t> got = element("n_splits", seen.bad_n_splits);
    return illegal_splits(seen.bad_n_splits, element_value(Element::kI32, got, 0));
  }
  if (seen.nan_lse >= 0) return nan_at("partial_lse", seen.nan_lse);
  if (seen.inf_lse >= 0) return infinite_lse(seen.inf_lse);
  return seen.nan_o >= 0 ? nan_at("partial_o", seen.nan_o) : std::nullopt;
}

GateFailure ChainRun::illegal_splits(int64_t request, double got) const {
  return {.buffer = "n_splits",
          .index = request,
          .got = got,
          .expected = 1,
          .limit = static_cast<double>(partials_.split_capacity),
          .what = "split count outside 1..capacity, or never written"};
}

GateFailure ChainRun::infinite_lse(int64_t index) {
  return {.buffer = "partial_lse",
          .index = index,
          .got = std::numeric_limits<double>::infinity(),
          .what = "infinite log-sum-exp"};
}

Backend::CombinedPartials ChainRun::combined() {
  const Problem& problem = stand_.problem();
  if (auto there = backend_.combined_partials(problem, buffers(), true)) return *std::move(there);
  return combine(partials(), problem, partials_, stand_.data->inputs.view());
}

const PartialsView& ChainRun::partials() {
  if (!partials_read_) {
    read_partials(
        backend_, stand_.problem(), partials_,
        {area("partial_o").address, area("partial_lse").address, area("n_splits").address},
        bench_.scratch());
    partials_read_ = true;
  }
  return bench_.scratch();
}

Products ChainRun::products() const {
  Products made;
  const auto add = [&](std::string_view name) {
    const Arena::Area& from = area(name);
    TargetBlock copy(backend_, from.bytes);
    backend_.copy(copy.address(), from.address, from.bytes);
    made.buffers.push_back({std::string(name), from.element, std::move(copy)});
  };
  if (sight_.q8 == "q8") add("q8");
  if (!sight_.q8.empty()) made.k = step_k_;
  if (!sight_.q8.empty()) made.v = step_v_;
  if (sight_.partials) {
    for (const char* name : {"n_splits", "partial_lse", "partial_o"}) add(name);
  }
  if (sight_.o == "o") add("o");
  if (sight_.out) add("out");
  return made;
}

std::optional<GateFailure> ChainRun::differs(const Products& other, std::string_view what) {
  for (const auto& [name, mine, theirs] :
       {std::tuple("k_cache", &step_k_, &other.k), std::tuple("v_cache", &step_v_, &other.v)}) {
    auto failure = judge_equal(name, Element::kE4m3, *theirs, *mine, what);
    if (!failure) continue;
    failure->index = cache_index(*stand_.data, failure->index);
    return failure;
  }
  for (const Product& product : other.buffers) {
    const Arena::Area& mine = area(product.buffer);
    const void* theirs = product.bytes.address();
    const int64_t bad = first_difference(mine.address, theirs, mine.bytes);
    if (bad < 0) continue;
    const bool partial = product.buffer == "partial_o" || product.buffer == "partial_lse";
    if (!partial) return difference(mine, bad, theirs, what);
    if (auto failure = differing_partials(other, what)) return failure;
  }
  return std::nullopt;
}

std::optional<GateFailure> ChainRun::differing_partials(const Products& other,
                                                        std::string_view what) {
  const auto address = [&](std::string_view name) {
    const auto found = std::find_if(other.buffers.begin(), other.buffers.end(),
                                    [name](const Product& p) { return p.buffer == name; });
    return found->bytes.address();
  };
  PartialsView theirs;
  read_partials(backend_, stand_.problem(), partials_,
                {address("partial_o"), address("partial_lse"), address("n_splits")}, theirs);
  const PartialsView& mine = partials();
  if (auto failure = judge_equal("partial_lse", Element::kF32, byte_view(theirs.lse),
                                 byte_view(mine.lse), what)) {
    return failure;
  }
  return judge_equal("partial_o", area("partial_o").element, theirs.o, mine.o, what);
}

}  // namespace muse::tuner
