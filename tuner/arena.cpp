// SPDX-License-Identifier: Apache-2.0
// Target memory of one shape: every buffer lies in its own block, guard | payload | guard, and is
// touched through the backend only.
#include "tuner/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <stdexcept>

namespace muse::tuner {
namespace {

using GuardBand = std::array<uint8_t, kGuardBytes>;

/// The host bytes of an input; a null address where `name` is none.
struct HostBytes {
  const void* address = nullptr;
  int64_t bytes = 0;
};

template <class T>
HostBytes bytes_of(const std::vector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size() * sizeof(T))};
}

HostBytes input_bytes(const Inputs& inputs, std::string_view name) {
  if (name == "qkv") return bytes_of(inputs.qkv);
  if (name == "positions") return bytes_of(inputs.positions);
  if (name == "cache_loc") return bytes_of(inputs.cache_loc);
  if (name == "seq_lens") return bytes_of(inputs.seq_lens);
  if (name == "cache_seqlens") return bytes_of(inputs.cache_seqlens);
  if (name == "cu_seqlens_q") return bytes_of(inputs.cu_seqlens_q);
  if (name == "page_table") return bytes_of(inputs.page_table);
  if (name == "k_scale") return bytes_of(inputs.k_scale);
  if (name == "v_scale") return bytes_of(inputs.v_scale);
  if (name == "cos_sin") return bytes_of(inputs.cos_sin);
  if (name == "k_cache") return bytes_of(inputs.k_cache);
  if (name == "v_cache") return bytes_of(inputs.v_cache);
  return {};
}

uint8_t* at(void* address, int64_t offset) { return static_cast<uint8_t*>(address) + offset; }

bool is_input(BufferRole role) { return role == BufferRole::kInput || role == BufferRole::kInOut; }

bool is_partial(std::string_view name) {
  return name == "partial_o" || name == "partial_lse" || name == "n_splits";
}

std::string partial_name(std::string_view name, const Handoff& partials) {
  return fmt::format("{}@{}_{}", name, partials.split_capacity,
                     partials.partial_type == PartialType::kF32 ? "f32" : "bf16");
}

}  // namespace

struct Arena::Impl {
  Backend& backend;
  Problem problem;
  int64_t cache_pages, rope_positions;
  std::deque<Area> areas;  // a deque: area() hands out references
  uint8_t guard_byte = kGuardByte;

  ~Impl() {
    for (const Area& area : areas) backend.release(at(area.address, -kGuardBytes));
  }

  const Area* find(std::string_view name) const {
    const auto found = std::find_if(areas.begin(), areas.end(),
                                    [name](const Area& area) { return area.name == name; });
    return found == areas.end() ? nullptr : &*found;
  }

  void guard(const Area& area) {
    backend.fill(at(area.address, -kGuardBytes), guard_byte, kGuardBytes);
    backend.fill(at(area.address, area.bytes), guard_byte, kGuardBytes);
  }

  /// The guard behind starts at the very next byte, so that one element too far is seen.
  const Area& add(std::string name, Element element, BufferRole role, int64_t bytes) {
    void* block = backend.allocate(bytes + 2 * kGuardBytes);
    areas.push_back({std::move(name), element, role, bytes, at(block, kGuardBytes)});
    guard(areas.back());
    return areas.back();
  }

  const Area& add_poisoned(std::string name, Element element, BufferRole role, int64_t bytes) {
    const Area& area = add(std::move(name), element, role, bytes);
    backend.fill(area.address, kPoisonByte, bytes);
    return area;
  }

  void add_input(const BufferSpec& spec, const Inputs& inputs) {
    const HostBytes source = input_bytes(inputs, spec.name);
    if (source.bytes != spec.bytes()) {
      throw std::logic_error(fmt::format("input {} has {} bytes, the problem asks for {}",
                                         spec.name, source.bytes, spec.bytes()));
    }
    const Area& area = add(std::string(spec.name), spec.element, spec.role, spec.bytes());
    backend.upload(area.address, source.address, source.bytes);
  }

  std::vector<BufferSpec> specs(const Handoff& partials) const {
    return buffer_specs(problem, cache_pages, rope_positions, partials);
  }
};

Arena::Arena(Backend& backend, const Inputs& inputs)
    : impl_(
          new Impl{backend, inputs.shape.problem, inputs.cache_pages, inputs.rope_positions, {}}) {
  for (const BufferSpec& spec : impl_->specs({.kind = HandoffKind::kO})) {
    if (spec.count == 0) continue;
    if (is_input(spec.role)) {
      impl_->add_input(spec, inputs);
    } else {
      impl_->add_poisoned(std::string(spec.name), spec.element, spec.role, spec.bytes());
    }
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
  GuardBand intact;
  intact.fill(impl_->guard_byte);
  GuardBand band;
  for (const Area& area : impl_->areas) {
    for (const int64_t start : {-kGuardBytes, area.bytes}) {
      impl_->backend.download(band.data(), at(area.address, start), kGuardBytes);
      if (std::memcmp(band.data(), intact.data(), band.size()) == 0) continue;
      const auto bad = std::mismatch(band.begin(), band.end(), intact.begin()).first;
      return BrokenGuard{area.name, start + (bad - band.begin()), *bad, impl_->guard_byte};
    }
  }
  return std::nullopt;
}

void Arena::repair_guards(uint8_t byte) {
  impl_->guard_byte = byte;
  for (const Area& area : impl_->areas) impl_->guard(area);
}

}  // namespace muse::tuner
