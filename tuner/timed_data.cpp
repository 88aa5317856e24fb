// SPDX-License-Identifier: Apache-2.0
// Inputs from the host; the caches from one piece that the target copies over and over.
#include "tuner/timed_data.h"

#include <algorithm>
#include <vector>

#include "tuner/inputs.h"

namespace muse::tuner {
namespace {

/// Doubles what stands at the front of the buffer until it is full.
void repeat(Backend& backend, const Arena::Area& area, int64_t filled) {
  auto* first = static_cast<uint8_t*>(area.address);
  for (; filled < area.bytes; filled *= 2) {
    backend.copy(first + filled, first, std::min(filled, area.bytes - filled));
  }
}

}  // namespace

void upload_inputs(Arena& arena, const Inputs& inputs) {
  for (const Arena::Area& area : arena.areas()) {
    if (area.role != BufferRole::kInput) continue;
    const std::span<const uint8_t> bytes = input_bytes(inputs, area.name);
    if (bytes.empty()) continue;
    arena.upload(area.name, bytes.data(), static_cast<int64_t>(bytes.size()));
  }
}

std::unique_ptr<Arena> make_timed_arena_beside(Backend& backend, const Shape& shape, uint64_t seed,
                                               const Arena& first) {
  const Inputs inputs = make_inputs_without_caches(shape, seed, Fill::kNormal);
  auto arena = std::make_unique<Arena>(backend, layout(inputs), &first);
  upload_inputs(*arena, inputs);
  backend.synchronize();
  return arena;
}

std::unique_ptr<Arena> make_timed_arena(Backend& backend, const Shape& shape, uint64_t seed) {
  Inputs inputs = make_inputs_without_caches(shape, seed, Fill::kNormal);
  auto arena = std::make_unique<Arena>(backend, layout(inputs));
  upload_inputs(*arena, inputs);
  const Problem& p = shape.problem;
  const int64_t page_bytes = p.page_size * p.num_kv_heads * p.head_dim;
  inputs.cache_pages =
      std::min(inputs.cache_pages, std::max<int64_t>(kRepeatedBytes / page_bytes, 1));
  const int64_t bytes = inputs.cache_pages * page_bytes;
  std::vector<uint8_t> k(static_cast<size_t>(bytes)), v(k.size());
  fill_caches(inputs, {}, 0, k.data(), v.data());
  arena->upload("k_cache", k.data(), bytes);
  arena->upload("v_cache", v.data(), bytes);
  for (const char* cache : {"k_cache", "v_cache"}) repeat(backend, arena->area(cache), bytes);
  backend.synchronize();
  return arena;
}

}  // namespace muse::tuner
