// SPDX-License-Identifier: Apache-2.0
// Target memory of one shape: every buffer lies in its own block, guard | payload | guard, and is
// touched through the backend only.
#include "tuner/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <stdexcept>

#include "tuner/target_memory.h"

namespace muse::tuner {
namespace {

uint8_t* at(void* address, int64_t offset) { return static_cast<uint8_t*>(address) + offset; }

bool is_cache(std::string_view name) { return name == "k_cache" || name == "v_cache"; }

bool is_input(BufferRole role) { return role == BufferRole::kInput || role == BufferRole::kInOut; }

bool is_partial(std::string_view name) {
  return name == "partial_o" || name == "partial_lse" || name == "n_splits";
}

std::string partial_name(std::string_view name, const Handoff& partials) {
  return fmt::format("{}@{}_{}", name, partials.split_capacity,
                     partials.partial_type == PartialType::kF32 ? "f32" : "bf16");
}

}  // namespace

// Each area's block is guard | payload | guard; that of a lent cache is the lender's.
struct Arena::Impl {
  Backend& backend;
  Layout layout;
  std::deque<Area> areas;  // a deque: area() hands out references
  std::deque<TargetBlock> blocks = {};
  size_t lent = 0, fixed = 0;  // areas: the lender's, and all that the arena was made with
  uint8_t guard_byte = kGuardByte;

  const Area* find(std::string_view name) const {
    const auto found = std::find_if(areas.begin(), areas.end(),
                                    [name](const Area& area) { return area.name == name; });
    return found == areas.end() ? nullptr : &*found;
  }

  struct Band {
    size_t area;
    int64_t start;  ///< bytes from the area's
  };
  /// The guard bands of the areas from `first` on.
  std::vector<Band> bands(size_t first) const {
    std::vector<Band> all;
    for (size_t i = first; i < areas.size(); ++i) {
      all.push_back({i, -kGuardBytes});
      all.push_back({i, areas[i].bytes});
    }
    return all;
  }
  void guard(size_t first) {
    std::vector<Put> puts;
    for (const Band& band : bands(first)) {
      puts.push_back({.target = at(areas[band.area].address, band.start),
                      .bytes = kGuardBytes,
                      .byte = guard_byte});
    }
    backend.put(puts);
  }

  /// The guard behind starts at the very next byte, so that one element too far is seen.
  const Area& add(std::string name, Element element, BufferRole role, int64_t bytes) {
    TargetBlock block(backend, bytes + 2 * kGuardBytes);
    areas.push_back({std::move(name), element, role, bytes, at(block.address(), kGuardBytes)});
    blocks.push_back(std::move(block));
    guard(areas.size() - 1);
    return areas.back();
  }

  const Area& add_poisoned(std::string name, Element element, BufferRole role, int64_t bytes) {
    const Area& area = add(std::move(name), element, role, bytes);
    backend.fill(area.address, kPoisonByte, bytes);
    return area;
  }

  std::vector<BufferSpec> specs(const Handoff& partials) const {
    return buffer_specs(layout.problem, layout.cache_pages, layout.rope_positions, partials);
  }
};

Layout layout(const Inputs& inputs) {
  return {inputs.shape.problem, inputs.cache_pages, inputs.rope_positions};
}

Arena::Arena(Backend& backend, const Layout& layout, const Arena* lender)
    : impl_(new Impl{backend, layout, {}}) {
  for (const char* name : {"k_cache", "v_cache"}) {
    if (lender) impl_->areas.push_back(lender->area(name));
  }
  impl_->lent = impl_->areas.size();
  for (const BufferSpec& spec : impl_->specs({.kind = HandoffKind::kO})) {
    if (spec.count == 0 || (lender && is_cache(spec.name))) continue;
    if (is_input(spec.role)) {
      impl_->add(std::string(spec.name), spec.element, spec.role, spec.bytes());
    } else {
      impl_->add_poisoned(std::string(spec.name), spec.element, spec.role, spec.bytes());
    }
  }
  impl_->fixed = impl_->areas.size();
}

Arena::Arena(Backend& backend, const Inputs& inputs) : Arena(backend, muse::tuner::layout(inputs)) {
  for (const Area& area : impl_->areas) {
    if (!is_input(area.role)) continue;
    const std::span<const uint8_t> source = input_bytes(inputs, area.name);
    if (static_cast<int64_t>(source.size()) != area.bytes) {
      throw std::logic_error(fmt::format("input {} has {} bytes, the problem asks for {}",
                                         area.name, source.size(), area.bytes));
    }
    backend.upload(area.address, source.data(), area.bytes);
  }
}

Arena::~Arena() = default;

Buffers Arena::buffers(const Handoff& partials, bool taps) {
  Buffers buffers;
  for (const BufferSpec& spec : impl_->specs(partials)) {
    if (spec.count == 0 || (spec.role == BufferRole::kTap && !taps)) continue;
    if (!is_partial(spec.name)) {
      set_buffer(buffers, spec.name, area(spec.name).address);
      continue;
    }
    const std::string name = partial_name(spec.name, partials);
    const Area* area = impl_->find(name);
    if (!area) area = &impl_->add_poisoned(name, spec.element, spec.role, spec.bytes());
    set_buffer(buffers, spec.name, area->address);
  }
  if (partials.kind == HandoffKind::kPartials) {
    buffers.split_capacity = partials.split_capacity;
    buffers.partial_type = partials.partial_type;
  }
  return buffers;
}

void* Arena::workspace(const std::string& owner, const Workspace& workspace) {
  const int64_t bytes = workspace.bytes * (workspace.double_buffered ? 2 : 1);
  if (bytes == 0) return nullptr;
  const std::string name = "workspace@" + owner;
  if (const Area* known = impl_->find(name)) {
    if (known->bytes != bytes) {
      throw std::logic_error(
          fmt::format("{} asked for {} bytes, before for {}", name, bytes, known->bytes));
    }
    return known->address;
  }
  const Area& area = impl_->add(name, Element::kByte, BufferRole::kWorkspace, bytes);
  impl_->backend.fill(area.address, workspace.zeroed_once ? uint8_t{0} : kPoisonByte, bytes);
  return area.address;
}

std::vector<Arena::Area> Arena::areas() const { return {impl_->areas.begin(), impl_->areas.end()}; }

const Arena::Area& Arena::area(std::string_view name) const {
  const Area* found = impl_->find(name);
  if (!found) throw std::logic_error(fmt::format("the arena has no buffer {}", name));
  return *found;
}

void Arena::release_extras() {
  while (impl_->areas.size() > impl_->fixed) {
    impl_->areas.pop_back();
    impl_->blocks.pop_back();
  }
}

void Arena::poison(std::string_view name) {
  const Area& target = area(name);
  impl_->backend.fill(target.address, kPoisonByte, target.bytes);
}

void Arena::upload(std::string_view name, const void* host, int64_t bytes) {
  const Area& target = area(name);
  if (bytes > target.bytes) {
    throw std::logic_error(
        fmt::format("upload of {} bytes into {}, which has {}", bytes, name, target.bytes));
  }
  impl_->backend.upload(target.address, host, bytes);
}

std::vector<uint8_t> Arena::download(std::string_view name) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(area(name).bytes));
  download(name, 0, bytes.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

void Arena::download(std::string_view name, int64_t offset, void* host, int64_t bytes) const {
  const Area& source = area(name);
  if (offset < 0 || bytes < 0 || offset > source.bytes - bytes) {
    throw std::logic_error(fmt::format("download of {} bytes at {} from {}, which has {}", bytes,
                                       offset, name, source.bytes));
  }
  impl_->backend.download(host, at(source.address, offset), bytes);
}

std::optional<Arena::BrokenGuard> Arena::broken_guard() const {
  const std::vector<Impl::Band> bands = impl_->bands(impl_->lent);
  std::vector<Compared> all;
  for (const Impl::Band& band : bands) {
    all.push_back({.got = at(impl_->areas[band.area].address, band.start),
                   .bytes = kGuardBytes,
                   .byte = impl_->guard_byte});
  }
  const auto bad = impl_->backend.first_difference(all);
  if (!bad) return std::nullopt;
  const Impl::Band& band = bands[bad->index];
  uint8_t got = 0;
  impl_->backend.download(&got, static_cast<const uint8_t*>(all[bad->index].got) + bad->offset, 1);
  return BrokenGuard{impl_->areas[band.area].name, band.start + bad->offset, got,
                     impl_->guard_byte};
}

void Arena::repair_guards(uint8_t byte) {
  impl_->guard_byte = byte;
  impl_->guard(impl_->lent);
}

}  // namespace muse::tuner
