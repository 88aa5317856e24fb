// SPDX-License-Identifier: Apache-2.0
// How plans for a GPU launch, on a device that only writes down what it is given: what may overlap,
// what is zeroed, where everything lies, what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/fakes/asked.h"
#include "tests/fakes/chain.h"
#include "tuner/dispatch_index.h"
#include "variants/runtime/plan.h"

namespace muse {

const Variant& variant_prepare_fused();
const Variant& variant_prepare_warp();
const Variant& variant_attention_mma();
const Variant& variant_attention_async_ring();
const Variant& variant_combine_gated();
const Variant& variant_fused_one_launch();

namespace runtime {
namespace {

/// What a device was given, in order.
struct Seen {
  std::string entry;
  bool programmatic;
};
std::vector<Seen> loaded;
int launched = 0;
int fails_at = -1;  ///< the launch that the device refuses
size_t zeroed_bytes = 0;
int capability = 90;

class RecordingLaunch final : public ReadyLaunch {
 public:
  LaunchError run(const Arguments& arguments, void*) const override {
    EXPECT_GT(arguments.size(), 0u);
    if (launched++ == fails_at) return {719, "cudaErrorLaunchFailure", "unspecified failure"};
    return {};
  }
};

class RecordingGpu final : public Target {
 public:
  TargetKind kind() const override { return TargetKind::kCuda; }
  Expected<int> ordinal(int asked) const override { return asked < 0 ? 0 : asked; }
  Expected<DeviceClass> device_class(int) const override {
    return DeviceClass{.model = "recording",
                       .host = false,
                       .cc = capability,
                       .sm_count = 132,
                       .memory_bytes = int64_t{64} << 30,
                       .smem_per_block_bytes = 232448,
                       .driver_version = 13000,
                       .isa = cuda_architecture(capability)};
  }
  Expected<std::unique_ptr<ReadyLaunch>> load(int, const LaunchRequest& request,
                                              std::span<const Kernel>) const override {
    loaded.push_back({request.launch.entry, request.programmatic});
    return std::make_unique<RecordingLaunch>();
  }
  TensorMapEncoder encoder() const override {
    return [](const TensorMapRequest& request, void*) {
      EXPECT_EQ(request.rank, 4u);
      return Support::yes();
    };
  }
  LaunchError zero(void*, size_t bytes, void*) const override {
    zeroed_bytes = bytes;
    return {};
  }
  LaunchError elsewhere(int) const override { return {}; }
};

const Target& recording_gpu() {
  static const RecordingGpu gpu;
  return gpu;
}

constexpr const char* kBase = "prepare/fused + attention/mma + combine/gated";
constexpr const char* kTicket =
    "fused/one_launch:cluster=8,depth=1,heads_per_cta=1,splits=64,ticket=1,warps=4,warps_per_sm=12";
constexpr const char* kRing = "prepare/warp + attention/async_ring:boxes=1 + combine/gated";

/// Pipelines by batch: 1 << i; number 2 and 3 are the same, the latter with overlap.
class GpuTable {
 public:
  GpuTable() {
    for (const char* text : {kBase, kTicket, kRing, kRing}) {
      Chain chain = fakes::chain_of(text);
      chain.pdl = keys_.size() == 3;
      keys_.push_back(key(chain));
    }
    std::vector<dispatch::Row> rows;
    for (size_t i = 0; i < keys_.size(); ++i) {
      infos_.push_back({keys_[i].c_str(), 1, &none_});
      dispatch::Row row{};
      row.key = {.batch = int64_t{1} << i, .page_size = 16, .context = 0};
      row.pipeline = static_cast<dispatch::Pipeline>(i);
      row.status = row.shape = row.date = "";
      rows.push_back(row);
    }
    index_ = tuner::index_rows(rows, false);
    captured_ = index_.table();
    linked.contexts = &contexts_;
    linked.captured = &captured_;
    linked.rules = &rules_;
    linked.device = &device_;
    linked.pipelines = infos_.data();
    linked.pipeline_count = static_cast<int>(infos_.size());
    linked.variants = variants_;
    linked.variant_count = static_cast<int>(std::size(variants_));
    linked.target = &recording_gpu;
    linked.compiler_version = 13000;
  }
  LinkedTable linked = {};

 private:
  std::vector<std::string> keys_;
  std::vector<dispatch::PipelineInfo> infos_;
  tuner::DispatchIndex index_;
  dispatch::Table contexts_ = {.contexts = true}, captured_;
  dispatch::Rules rules_ = {{true, 256}, {true, 256}, {true, 256}, dispatch::kDistanceOne};
  dispatch::Device device_ = {"recording", "sm_90a",          false, 90,
                              132,         int64_t{64} << 30, 13000, 13000};
  int none_ = 0;
  const Variant& (*variants_[6])() = {variant_prepare_fused, variant_prepare_warp,
                                      variant_attention_mma, variant_attention_async_ring,
                                      variant_combine_gated, variant_fused_one_launch};
};

muse_attention_problem problem_of(int64_t batch) {
  return fakes::problem_of({.batch = batch, .page_size = 16, .max_context = 4096});
}

std::vector<bool> overlaps(const muse_attention_problem& problem) {
  loaded.clear();
  AttentionPlan plan;
  EXPECT_TRUE(plan.create(problem)) << muse_attention_last_error();
  std::vector<bool> found;
  for (const Seen& it : loaded) found.push_back(it.programmatic);
  return found;
}

using Overlaps = std::vector<bool>;

TEST(RuntimeLaunches, OverlapWithinAStepAndNeverWithWhatTheCallerRanBefore) {
  EXPECT_EQ(overlaps(problem_of(4)), (Overlaps{false, false, false}));
  EXPECT_EQ(overlaps(problem_of(8)), (Overlaps{false, true, true}));
}

TEST(RuntimeLaunches, LoadWhatThePlanLaunchesInItsOrder) {
  loaded.clear();
  AttentionPlan plan;
  ASSERT_TRUE(plan.create(problem_of(1)));
  ASSERT_EQ(loaded.size(), 3u);
  EXPECT_EQ(loaded[0].entry, "prepare");
  EXPECT_EQ(loaded[1].entry, "attend_8_rows");
  EXPECT_EQ(loaded[2].entry, "combine");
}

/// Addresses that nothing is read from.
muse_attention_buffers some_buffers() {
  muse_attention_buffers buffers;
  const uintptr_t address = 0x1000;
  for (size_t at = 0; at < sizeof buffers; at += sizeof address) {
    std::memcpy(reinterpret_cast<std::byte*>(&buffers) + at, &address, sizeof address);
  }
  buffers.struct_bytes = sizeof buffers;
  return buffers;
}

TEST(RuntimeLaunches, ARefusedLaunchIsADeviceErrorThatNamesItAndEndsTheStep) {
  AttentionPlan plan;
  ASSERT_TRUE(plan.create(problem_of(4)));
  const muse_attention_buffers buffers = some_buffers();
  void* const workspace = reinterpret_cast<void*>(uintptr_t{0x10000});
  launched = 0;
  EXPECT_EQ(muse_attention_run(plan.get(), &buffers, workspace, plan.workspace_bytes(), nullptr),
            MUSE_ATTENTION_OK);
  EXPECT_EQ(launched, 3);
  launched = 0;
  fails_at = 1;
  EXPECT_EQ(muse_attention_run(plan.get(), &buffers, workspace, plan.workspace_bytes(), nullptr),
            MUSE_ATTENTION_DEVICE);
  fails_at = -1;
  EXPECT_EQ(launched, 2);
  const std::string error = muse_attention_last_error();
  EXPECT_NE(error.find("launching attend_8_rows of attention/async_ring:"), std::string::npos)
      << error;
  EXPECT_NE(error.find("error 719 (cudaErrorLaunchFailure): unspecified failure"),
            std::string::npos)
      << error;
}

TEST(RuntimeLaunches, InitialiseTheWorkspaceOfTicketsAndNothingElse) {
  AttentionPlan plan;
  ASSERT_TRUE(plan.create(problem_of(2)));
  const Candidate candidate = fakes::chain_of(kTicket).front();
  const Problem problem{.batch = 2, .page_size = 16, .max_context = 4096};
  const Workspace needed =
      candidate.variant
          ->geometry(problem, candidate.configuration, *recording_gpu().device_class(0))
          .workspace;
  ASSERT_TRUE(needed.zeroed_once);
  void* const workspace = reinterpret_cast<void*>(uintptr_t{0x10000});
  zeroed_bytes = 0;
  ASSERT_TRUE(plan.init_workspace(workspace, plan.workspace_bytes(), nullptr));
  EXPECT_GE(zeroed_bytes, static_cast<size_t>(needed.bytes));
  EXPECT_LE(zeroed_bytes, static_cast<size_t>(needed.bytes) + 255);
  EXPECT_LE(zeroed_bytes, plan.workspace_bytes());
  ASSERT_TRUE(plan.create(problem_of(1)));
  zeroed_bytes = 0;
  ASSERT_TRUE(plan.init_workspace(workspace, plan.workspace_bytes(), nullptr));
  EXPECT_EQ(zeroed_bytes, 0u);
}

TEST(RuntimeLaunches, PiecesOfAWorkspaceAreAlignedAndApart) {
  const Problem problem{.batch = 3, .q_len = 3, .page_size = 16, .max_context = 4096};
  const Chain chain = fakes::chain_of(kBase);
  const DeviceClass device = *recording_gpu().device_class(0);
  std::vector<Geometry> geometries;
  for (const Candidate& it : chain) {
    geometries.push_back(it.variant->geometry(problem, it.configuration, device));
  }
  // As if two of them had workspaces, the later one zeroed.
  geometries[0].workspace = {.bytes = 300};
  geometries[1].workspace = {.bytes = 100, .zeroed_once = true};
  const WorkspaceLayout layout = workspace_layout(problem, chain, geometries).value();
  EXPECT_EQ(layout.candidates, (std::vector<int64_t>{256, 0, -1}));
  EXPECT_EQ(layout.zeroed_bytes, 256);
  EXPECT_EQ(layout.o, -1);
  const int64_t rows = 3 * 3 * 16, splits = layout.partials.split_capacity;
  ASSERT_GT(splits, 1);
  std::vector<std::pair<int64_t, int64_t>> pieces = {{0, 100},
                                                     {256, 300},
                                                     {layout.q8, rows * 64},
                                                     {layout.partial_o, splits * rows * 64 * 4},
                                                     {layout.partial_lse, splits * rows * 4},
                                                     {layout.n_splits, 3 * 4}};
  std::sort(pieces.begin(), pieces.end());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [offset, bytes] = pieces[i];
    EXPECT_EQ(offset % kWorkspaceAlignment, 0);
    EXPECT_LE(offset + bytes, i + 1 < pieces.size() ? pieces[i + 1].first : layout.bytes);
  }
}

TEST(RuntimeLaunches, AWorkspaceBeyondAllNumbersIsRefused) {
  const Problem problem{.page_size = 16, .max_context = 4096};
  const Chain chain = fakes::chain_of(kBase);
  for (const int64_t bytes : {INT64_MAX, INT64_MAX - 100, int64_t{-1}}) {
    std::vector<Geometry> geometries(chain.size());
    geometries[1].workspace.bytes = bytes;
    const auto layout = workspace_layout(problem, chain, geometries);
    ASSERT_FALSE(layout) << bytes;
    EXPECT_EQ(layout.error().status, MUSE_ATTENTION_INVALID);
  }
}

/// The base's attention, but for a workspace of which it wants two.
const char* in_turns() {
  static const std::string name = [] {
    Variant variant = *Registry::global().find("attention/mma");
    variant.name = "attention/in_turns";
    variant.geometry = [](const Problem&, const Configuration&, const DeviceClass&) {
      return Geometry{.launches = {{.entry = "attend_8_rows"}},
                      .workspace = {.bytes = 256, .double_buffered = true}};
    };
    Registry::global().add(std::move(variant));
    return key(fakes::chain_of("prepare/fused + attention/in_turns + combine/gated"));
  }();
  return name.c_str();
}

TEST(RuntimeLaunches, AWorkspaceThatIsUsedInTurnsIsRefusedWithItsReason) {
  GpuTable table;
  const int none = 0;
  const std::vector<dispatch::PipelineInfo> pipelines(4, {in_turns(), 1, &none});
  table.linked.pipelines = pipelines.data();
  Catalogue catalogue(table.linked);
  const auto plan = Plan::make(catalogue, problem_of(1), MUSE_ATTENTION_ANY_CONTEXT, 0);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().status, MUSE_ATTENTION_UNSUPPORTED);
  EXPECT_NE(plan.error().what.find("uses two workspaces in turns"), std::string::npos)
      << plan.error().what;
}

TEST(RuntimeLaunches, OlderDevicesGetTheBaseOrAReason) {
  GpuTable table;
  for (const auto& [cc, status] :
       {std::tuple(80, MUSE_ATTENTION_OK), std::tuple(75, MUSE_ATTENTION_UNSUPPORTED)}) {
    capability = cc;
    Catalogue catalogue(table.linked);
    const auto plan = Plan::make(catalogue, problem_of(8), MUSE_ATTENTION_ANY_CONTEXT, 0);
    capability = 90;
    ASSERT_EQ(plan.has_value() ? MUSE_ATTENTION_OK : plan.error().status, status);
    if (plan) continue;
    EXPECT_NE(plan.error().what.find("needs compute capability 8.0 or more, the device has 7.5"),
              std::string::npos)
        << plan.error().what;
  }
}

TEST(RuntimeLaunches, AnyNumbersGiveAStatus) {
  std::mt19937_64 random(1);
  const auto number = [&](int most_bits) {
    if (random() % 24 == 0) return static_cast<int64_t>(random() >> (random() % 64));
    return int64_t{1} << (random() % static_cast<uint64_t>(most_bits + 1));
  };
  int made = 0, unsupported = 0;
  for (int i = 0; i < 20000; ++i) {
    muse_attention_problem problem = problem_of(number(16));
    problem.q_len = number(6);
    problem.num_q_heads = number(10);
    problem.num_kv_heads = number(10);
    problem.head_dim = random() % 4 == 0 ? number(10) : 64;
    problem.page_size = number(10);
    problem.max_pages = number(17);
    problem.window = random() % 2 == 0 ? 0 : number(20);
    AttentionPlan plan;
    const Status status = plan.create(problem);
    made += status.code == MUSE_ATTENTION_OK ? 1 : 0;
    unsupported += status.code == MUSE_ATTENTION_UNSUPPORTED ? 1 : 0;
    ASSERT_TRUE(status || status.code == MUSE_ATTENTION_INVALID ||
                status.code == MUSE_ATTENTION_UNSUPPORTED)
        << muse_attention_last_error();
  }
  EXPECT_GT(made, 1000);
  EXPECT_GT(unsupported, 1000);
}

}  // namespace

const LinkedTable& linked_table() {
  static const GpuTable table;
  return table.linked;
}

}  // namespace runtime
}  // namespace muse
