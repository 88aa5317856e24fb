// SPDX-License-Identifier: Apache-2.0
// attention/async_ring: split-KV on f16 tensor cores, keys through a ring in shared memory that
// warps of their own, or bulk copies, keep filled.
#include "variants/attention/async_ring.cuh"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/device/epilogue_contract.h"
#include "variants/registry.h"

namespace muse::attention_async_ring {
namespace {

/// A kernel and the query rows that one of its warps holds.
struct Entry {
  const char* name;
  int64_t rows;
};

/// The smallest one that holds all rows of a kv head in a warp, else the largest.
Entry entry_of(const Problem& problem) {
  const int64_t rows = problem.q_len * problem.group();
  if (rows <= 8) return {"attend_8_rows", 8};
  if (rows <= 16) return {"attend_16_rows", 16};
  return {"attend_32_rows", 32};
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Computing warps that a CTA needs so that each of its query rows has one.
int64_t units(const Problem& problem) {
  const int64_t rows = problem.q_len * problem.group();
  return std::min<int64_t>(kHeads, problem.num_kv_heads) * ceil_div(rows, entry_of(problem).rows);
}
/// The same of the last CTA, which an odd number of kv heads leaves one.
int64_t fewest_units(const Problem& problem) {
  return problem.num_kv_heads > kHeads && problem.num_kv_heads % kHeads != 0
             ? units(problem) / kHeads
             : units(problem);
}

int64_t shared_bytes(const Problem& problem, const Configuration& configuration) {
  const auto tunable = [&](const char* name) {
    return static_cast<int>(value(configuration, name));
  };
  const auto rows = static_cast<int>(device::cta_rows(problem, kHeads));
  return work_bytes(tunable("tile_kv"), tunable("depth"), static_cast<int>(entry_of(problem).rows),
                    tunable("warps")) +
         device::epilogue_bytes(rows, tunable("cluster"), tunable("gate") != 0);
}

/// What the configuration needs of the device and of pages.
Support check_copies(const Problem& problem, const Configuration& configuration,
                     const DeviceClass& device) {
  const bool boxes = value(configuration, "boxes") != 0;
  if ((boxes || value(configuration, "roles") != 0) && device.cc < 90) {
    return Support::no(fmt::format("{}: compute capability {}.{} has no barriers that count copies",
                                   boxes ? "boxes" : "roles", device.cc / 10, device.cc % 10));
  }
  if (boxes && problem.page_size < device::kBoxKeys) {
    return Support::no(fmt::format("page_size {}: a box takes {} tokens of a page",
                                   problem.page_size, device::kBoxKeys));
  }
  return Support::yes();
}

Support supports(const Problem& problem, const Configuration& configuration,
                 const DeviceClass& device) {
  Support support = device::check_attention(problem, device);
  if (support.ok()) support = device::check_epilogue(configuration, device);
  if (support.ok()) support = check_copies(problem, configuration, device);
  if (!support.ok()) return support;
  const int64_t warps = value(configuration, "warps"), needed = units(problem);
  if (needed > warps) {
    return Support::no(fmt::format("{} query rows of a kv head, {} to a warp: needs {} warps",
                                   problem.q_len * problem.group(), entry_of(problem).rows,
                                   needed));
  }
  const int64_t tile_kv = value(configuration, "tile_kv"), step = value(configuration, "step");
  if (warps / fewest_units(problem) * step > tile_kv) {
    return Support::no(fmt::format("{} warps share the rows: too few keys in a tile of {} for each",
                                   warps, tile_kv));
  }
  return device::check_shared_memory(shared_bytes(problem, configuration), device);
}

/// CTAs that an SM holds at once where warps have roles: ctas_per_sm() of async_ring.cuh.
int64_t ctas_per_sm(const Configuration& configuration) {
  constexpr int64_t kComputingWarps = 8;
  return kComputingWarps / value(configuration, "warps");
}

Geometry geometry(const Problem& problem, const Configuration& configuration,
                  const DeviceClass& device) {
  Launch launch = device::epilogue_launch(entry_of(problem).name, problem, configuration, kHeads,
                                          device, ctas_per_sm(configuration));
  launch.block = {.x = block_warps(static_cast<int>(value(configuration, "warps")),
                                   static_cast<int>(value(configuration, "roles"))) *
                       32};
  launch.smem_bytes = shared_bytes(problem, configuration);
  return {.launches = {launch},
          .workspace = device::epilogue_workspace(problem, configuration, kHeads)};
}

/// A cache as [page][kv head][token of the page][dim]: a box has the rows of one head behind one
/// another. How many pages there are is not known here, and no box beyond them is asked for.
void encode_cache(const TensorMapEncoder& encode, const Problem& problem, const uint8_t* cache,
                  device::TensorMap& map) {
  const int64_t row = problem.num_kv_heads * problem.head_dim;
  const auto heads = static_cast<int32_t>(std::min<int64_t>(kHeads, problem.num_kv_heads));
  const TensorMapRequest request{
      .base = cache,
      .element = Element::kE4m3,
      .rank = 4,
      .extent = {problem.head_dim, problem.page_size, problem.num_kv_heads,
                 std::numeric_limits<int32_t>::max()},
      .stride_bytes = {row, problem.head_dim, problem.page_size * row},
      .box = {static_cast<int32_t>(problem.head_dim), device::kBoxKeys, heads, 1},
      .swizzle_bytes = static_cast<int32_t>(problem.head_dim)};
  const Support encoded = encode ? encode(request, &map) : Support::no("there is no encoder");
  if (!encoded.ok()) {
    throw std::runtime_error(fmt::format("attention/async_ring: {}", encoded.reason));
  }
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder& encode, int /*launch*/) {
  Args args{.attention = device::attention_args(problem, buffers), .k_map = {}, .v_map = {}};
  device::set_epilogue_workspace(args.attention, problem, configuration, kHeads, workspace);
  if (value(configuration, "boxes") != 0) {
    encode_cache(encode, problem, buffers.k_cache, args.k_map);
    encode_cache(encode, problem, buffers.v_cache, args.v_map);
  }
  return Arguments::of(args);
}

std::vector<Tunable> tunables() {
  std::vector<Tunable> all = {{.name = "boxes", .values = {0, 1}, .default_value = 0},
                              {.name = "roles", .values = {0, 1}, .default_value = 1},
                              {.name = "ahead", .values = {0, 1}, .default_value = 1},
                              {.name = "step", .values = {16, 32}, .default_value = 32},
                              {.name = "tile_kv", .values = {64, 128}, .default_value = 128},
                              {.name = "depth", .values = {4, 6}, .default_value = 4},
                              {.name = "warps", .values = {4, 8}, .default_value = 8},
                              {.name = "splits", .values = {1, 4, 8, 16, 64}, .default_value = 4},
                              {.name = "fill", .values = {0, 2}, .default_value = 0},
                              {.name = "partial_bf16", .values = {0, 1}, .default_value = 0}};
  for (Tunable& tunable : device::epilogue_tunables({1, 8})) {
    all.push_back(std::move(tunable));
  }
  return all;
}

std::vector<Constraint> constraints() {
  std::vector<Constraint> all = {
      {.expr = "roles <= ahead",
       .reason = "warps that only compute have the registers to work a step ahead"},
      {.expr = "(step == 32) == (ahead == 1 && (roles == 0 || warps == 8))",
       .reason = "long steps where two are at work and a thread has the registers"},
      {.expr = "boxes == 0 || roles == ahead",
       .reason = "boxes leave a warp that copies little to do, so its work is not shared out"},
      {.expr = "(tile_kv == 128) == (depth == 4 && warps == 8)",
       .reason = "128 keys to a tile for eight warps in a ring that leaves room for nothing else"},
      {.expr = "warps == 8 || depth == 4", .reason = "two CTAs of four warps share an SM's memory"},
      {.expr = "splits != 8 || cluster == 8",
       .reason = "a cluster of eight takes all splits; without one there are four or 16"},
      {.expr = "cluster == 1 || splits == 8",
       .reason = "clusters merge what many short walks have, and all of it"},
      {.expr = "gate == 1 || (ticket == 0 && splits != cluster)",
       .reason = "once all is merged the gate costs nothing"},
      {.expr = "fill == 0 || (splits == 64 && roles == 1)",
       .reason = "as many splits as fill the chip, where warps that only compute fill it"},
      {.expr = "partial_bf16 == (splits == 64 && ticket == 0)",
       .reason = "many partials are many bytes, few are not"}};
  for (Constraint& constraint : device::epilogue_constraints()) {
    all.push_back(std::move(constraint));
  }
  return all;
}

Variant make_variant() {
  Variant variant;
  variant.name = "attention/async_ring";
  device::set_attention_contract(variant);
  variant.tunables = tunables();
  variant.constraints = constraints();
  variant.declared = {
      .batch_invariant = true, .batch_invariant_unless = "fill", .precision = Precision::kF16};
  variant.entries = {"attend_8_rows", "attend_16_rows", "attend_32_rows"};
  variant.supports = supports;
  variant.geometry = geometry;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::attention_async_ring

MUSE_REGISTER_VARIANT(attention, async_ring, attention_async_ring::make_variant())
