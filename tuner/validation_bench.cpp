// SPDX-License-Identifier: Apache-2.0
// One shape's memory for validation. What a sweep of a hundred candidates would make a hundred
// times is made once here: data, its copies on the target, references.
#include "tuner/validation_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tuner/pairs.h"

namespace muse::tuner {
namespace {

std::string feed_key(Stage first, const Handoff& partials) {
  if (first != Stage::kCombine) return std::string(name(first));
  return fmt::format("{} {} {}", name(first), partials.split_capacity,
                     static_cast<int>(partials.partial_type));
}

std::shared_ptr<FeedOnTarget> on_target(Backend& backend, Feed host) {
  auto feed = std::make_shared<FeedOnTarget>();
  feed->host = std::move(host);
  const auto add = [&](const char* name, std::span<const uint8_t> bytes) {
    if (!bytes.empty()) feed->buffers.emplace(name, TargetCopy(backend, bytes));
  };
  add("q8", byte_view(feed->host.q8));
  add("partial_o", byte_view(feed->host.partial_o));
  add("partial_lse", byte_view(feed->host.partial_lse));
  add("n_splits", byte_view(feed->host.n_splits));
  add("o", byte_view(feed->host.o));
  return feed;
}

std::shared_ptr<Stand> on_target(Backend& backend, std::shared_ptr<const Case> data,
                                 std::shared_ptr<const CachesOnTarget> caches) {
  auto stand = std::make_shared<Stand>();
  const Inputs& in = data->inputs;
  for (const BufferSpec& spec :
       buffer_specs(in.shape.problem, in.cache_pages, in.rope_positions, {})) {
    if (spec.role != BufferRole::kInput || spec.count == 0) continue;
    stand->inputs.emplace(spec.name, TargetCopy(backend, input_bytes(in, spec.name)));
  }
  stand->redirected = TargetCopy(backend, byte_view(data->redirected));
  stand->q8 = TargetCopy(backend, byte_view(data->prepared.q8));
  stand->data = std::move(data);
  stand->caches = std::move(caches);
  return stand;
}

}  // namespace

ValidationBench::ValidationBench(Backend& backend, const Shape& shape, uint64_t seed)
    : backend_(backend), asked_(shape), shape_(validation_shape(shape)), seed_(seed) {}

bool ValidationBench::serves(const Shape& shape, uint64_t seed) const {
  return asked_ == shape && seed_ == seed;
}

void ValidationBench::forget() {
  alone_ = {};
  alone_of_ = nullptr;
  stands_.clear();
  caches_.clear();
}

std::shared_ptr<Stand> ValidationBench::stand(Fill fill, CaseKind kind) {
  const bool independent = kind == CaseKind::kIndependent;
  const auto known = stands_.find({fill, independent});
  if (known != stands_.end()) return known->second;
  if (backend_.target() == TargetKind::kHost && !caches_.contains(fill)) forget();
  try {
    return make_stand(fill, independent);
  } catch (const TrialError& error) {
    if (error.outcome != Outcome::kOom || stands_.empty()) throw;
    forget();
    return make_stand(fill, independent);
  }
}

std::shared_ptr<Stand> ValidationBench::make_stand(Fill fill, bool independent) {
  auto data =
      make_case(shape_, seed_, fill, independent ? CaseKind::kIndependent : CaseKind::kStored);
  auto stand = on_target(backend_, std::move(data), caches(fill));
  stands_[{fill, independent}] = stand;
  return stand;
}

std::shared_ptr<const CachesOnTarget> ValidationBench::caches(Fill fill) {
  std::shared_ptr<const CachesOnTarget>& kept = caches_[fill];
  if (kept) return kept;
  auto image = make_caches(shape_, seed_, fill);
  const auto bytes = static_cast<size_t>(image->bytes);
  auto caches = std::make_shared<CachesOnTarget>();
  caches->k = TargetCopy(backend_, {image->k.get(), bytes});
  caches->v = TargetCopy(backend_, {image->v.get(), bytes});
  if (backend_.target() == TargetKind::kHost) caches->host = std::move(image);
  return kept = std::move(caches);
}

Arena& ValidationBench::arena() {
  if (!arena_) {
    // Any case will do: all have the same layout.
    const auto data = make_case(shape_, seed_, Fill::kNormal, CaseKind::kStored);
    arena_ = std::make_unique<Arena>(backend_, layout(data->inputs));
  }
  return *arena_;
}

AloneStand& ValidationBench::last_alone(const std::shared_ptr<Stand>& stand) {
  if (alone_of_ == stand) return alone_;
  alone_ = {};
  alone_of_ = nullptr;
  auto data = std::make_shared<Case>(slice(*stand->data, shape_.problem.batch - 1));
  const Layout layout = muse::tuner::layout(data->inputs);
  alone_.stand = on_target(backend_, std::move(data), stand->caches);
  alone_.arena = std::make_unique<Arena>(backend_, layout, &arena());
  alone_of_ = stand;
  return alone_;
}

std::shared_ptr<const FeedOnTarget> ValidationBench::feed(Stand& stand, Stage first,
                                                          const Handoff& partials) {
  std::shared_ptr<const FeedOnTarget>& kept = stand.feeds[feed_key(first, partials)];
  if (kept) return kept;
  const Problem& problem = stand.problem();
  auto feed = on_target(backend_, make_feed(*stand.data, first, partials));
  Buffers in = stand.data->inputs.view();
  if (first == Stage::kCombine) {
    in.partial_o = feed->host.partial_o.data();
    in.partial_lse = feed->host.partial_lse.data();
    in.n_splits = feed->host.n_splits.data();
    in.split_capacity = partials.split_capacity;
    in.partial_type = partials.partial_type;
    feed->combined = reference::combine(problem, in);
  }
  if (first == Stage::kGate) feed->gated = reference::gate(problem, in, feed->host.o.data());
  return kept = std::move(feed);
}

std::shared_ptr<const FeedOnTarget> ValidationBench::last_alone(const FeedOnTarget& feed,
                                                                const Problem& problem) {
  return on_target(backend_, slice(feed.host, problem, problem.batch - 1));
}

std::shared_ptr<const AttentionTruth> ValidationBench::truth(const Stand& stand,
                                                             const StepBytes& step,
                                                             const Buffers& in, int64_t budget) {
  const std::string how = fmt::format("{} under {}", name(backend_.target()), budget);
  return kept_truth(*stand.data, step, how, [&] {
    if (auto truth = backend_.attention_truth(stand.problem(), in)) {
      return AttentionTruth{all_pairs(stand.problem()), std::move(truth->exact),
                            std::move(truth->emulated)};
    }
    if (backend_.target() == TargetKind::kHost) {
      return sampled_truth(*stand.data, in, in.q8, budget);
    }
    std::vector<uint8_t> k(static_cast<size_t>(stand.caches->k.bytes())), v(k.size());
    backend_.download(k.data(), in.k_cache, stand.caches->k.bytes());
    backend_.download(v.data(), in.v_cache, stand.caches->v.bytes());
    Buffers host = stand.data->inputs.view();
    host.k_cache = k.data();
    host.v_cache = v.data();
    return sampled_truth(*stand.data, host, step.q8.data(), budget);
  });
}

Buffers ValidationBench::reference_buffers(const Stand& stand) const {
  Buffers in;
  const auto set = [&](std::string_view name, const TargetCopy& bytes) {
    set_buffer(in, name, const_cast<void*>(bytes.address()));
  };
  for (const auto& [name, bytes] : stand.inputs) set(name, bytes);
  set("q8", stand.q8);
  set("k_cache", stand.caches->k);
  set("v_cache", stand.caches->v);
  return in;
}

void* ValidationBench::staging(int64_t bytes) {
  if (staging_.bytes() < bytes) {
    staging_ = {};
    staging_ = TargetBlock(backend_, bytes);
  }
  return staging_.address();
}

void ValidationBench::release_extras() {
  if (alone_.arena) alone_.arena->release_extras();
  if (arena_) arena_->release_extras();
}

}  // namespace muse::tuner
