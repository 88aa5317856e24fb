// SPDX-License-Identifier: Apache-2.0
// Names and sizes of the buffers of one decode step.
#include "variants/buffers.h"

#include <fmt/format.h>

#include <stdexcept>
#include <type_traits>

namespace muse {
namespace {

template <auto Member>
void set_member(Buffers& buffers, void* address) {
  auto& pointer = buffers.*Member;
  pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(address);
}

struct Setter {
  std::string_view name;
  void (*set)(Buffers&, void*);
};

constexpr Setter kSetters[] = {
    {"qkv", set_member<&Buffers::qkv>},
    {"positions", set_member<&Buffers::positions>},
    {"cache_loc", set_member<&Buffers::cache_loc>},
    {"seq_lens", set_member<&Buffers::seq_lens>},
    {"cache_seqlens", set_member<&Buffers::cache_seqlens>},
    {"cu_seqlens_q", set_member<&Buffers::cu_seqlens_q>},
    {"page_table", set_member<&Buffers::page_table>},
    {"k_scale", set_member<&Buffers::k_scale>},
    {"v_scale", set_member<&Buffers::v_scale>},
    {"cos_sin", set_member<&Buffers::cos_sin>},
    {"k_cache", set_member<&Buffers::k_cache>},
    {"v_cache", set_member<&Buffers::v_cache>},
    {"q8", set_member<&Buffers::q8>},
    {"partial_o", set_member<&Buffers::partial_o>},
    {"partial_lse", set_member<&Buffers::partial_lse>},
    {"n_splits", set_member<&Buffers::n_splits>},
    {"o", set_member<&Buffers::o>},
    {"out", set_member<&Buffers::out>},
    {"q8_tap", set_member<&Buffers::q8_tap>},
    {"o_tap", set_member<&Buffers::o_tap>},
};

}  // namespace

std::string_view name(Stage stage) {
  switch (stage) {
    case Stage::kPrepare:
      return "prepare";
    case Stage::kAttention:
      return "attention";
    case Stage::kCombine:
      return "combine";
    case Stage::kGate:
      return "gate";
  }
  return "?";
}

std::string_view name(Span span) {
  static constexpr std::string_view kNames[kStageCount][kStageCount] = {
      {"prepare", "prepare..attention", "prepare..combine", "prepare..gate"},
      {"?", "attention", "attention..combine", "attention..gate"},
      {"?", "?", "combine", "combine..gate"},
      {"?", "?", "?", "gate"},
  };
  return kNames[static_cast<int>(span.first)][static_cast<int>(span.last)];
}

int64_t size_bytes(Element element) {
  switch (element) {
    case Element::kBf16:
      return 2;
    case Element::kE4m3:
    case Element::kByte:
      return 1;
    case Element::kF32:
    case Element::kI32:
      return 4;
    case Element::kI64:
      return 8;
  }
  return 0;
}

std::string_view name(HandoffKind kind) {
  switch (kind) {
    case HandoffKind::kQkv:
      return "qkv";
    case HandoffKind::kQ8:
      return "q8";
    case HandoffKind::kPartials:
      return "partials";
    case HandoffKind::kO:
      return "o";
    case HandoffKind::kOut:
      return "out";
  }
  return "?";
}

std::vector<BufferSpec> buffer_specs(const Problem& problem, int64_t cache_pages,
                                     int64_t rope_positions, const Handoff& partials) {
  const int64_t tokens = problem.tokens();
  const int64_t heads = tokens * problem.num_q_heads;
  const int64_t rows = heads * problem.head_dim;
  const int64_t cache = cache_pages * problem.page_size * problem.num_kv_heads * problem.head_dim;
  std::vector<BufferSpec> specs = {
      {"qkv", Element::kBf16, tokens * problem.qkv_width(), BufferRole::kInput},
      {"positions", Element::kI64, tokens, BufferRole::kInput},
      {"cache_loc", Element::kI64, tokens, BufferRole::kInput},
      {"seq_lens", Element::kI32, problem.batch, BufferRole::kInput},
      {"cache_seqlens", Element::kI32, problem.batch, BufferRole::kInput},
      {"cu_seqlens_q", Element::kI32, problem.batch + 1, BufferRole::kInput},
      {"page_table", Element::kI32, problem.batch * problem.max_pages(), BufferRole::kInput},
      {"k_scale", Element::kF32, 1, BufferRole::kInput},
      {"v_scale", Element::kF32, 1, BufferRole::kInput},
  };
  if (problem.rope()) {
    specs.push_back(
        {"cos_sin", Element::kF32, rope_positions * problem.head_dim, BufferRole::kInput});
  }
  specs.push_back({"k_cache", Element::kE4m3, cache, BufferRole::kInOut});
  specs.push_back({"v_cache", Element::kE4m3, cache, BufferRole::kInOut});
  specs.push_back({"q8", Element::kE4m3, rows, BufferRole::kHandoff});
  if (partials.kind == HandoffKind::kPartials) {
    const int64_t splits = partials.split_capacity;
    const Element element =
        partials.partial_type == PartialType::kF32 ? Element::kF32 : Element::kBf16;
    specs.push_back({"partial_o", element, splits * rows, BufferRole::kHandoff});
    specs.push_back({"partial_lse", Element::kF32, splits * heads, BufferRole::kHandoff});
    specs.push_back({"n_splits", Element::kI32, problem.batch, BufferRole::kHandoff});
  }
  specs.push_back({"o", Element::kBf16, rows, BufferRole::kHandoff});
  specs.push_back({"out", Element::kBf16, rows, BufferRole::kOutput});
  specs.push_back({"q8_tap", Element::kE4m3, rows, BufferRole::kTap});
  specs.push_back({"o_tap", Element::kBf16, rows, BufferRole::kTap});
  return specs;
}

void set_buffer(Buffers& buffers, std::string_view name, void* address) {
  for (const Setter& setter : kSetters) {
    if (setter.name == name) return setter.set(buffers, address);
  }
  throw std::logic_error(fmt::format("no buffer is named '{}'", name));
}

}  // namespace muse
