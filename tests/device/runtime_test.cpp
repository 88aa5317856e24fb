// SPDX-License-Identifier: Apache-2.0
// Plans of kernels compiled ahead of time, on a GPU: right, captured at one length and replayed at
// others, on two streams at once, ten thousand times.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/device/aot/gpu_table.h"
#include "tests/fakes/asked.h"

namespace muse {
namespace aot {
namespace {

const GpuTable& table() { return GpuTable::shared(); }

/// Window, RoPE and scales for odd pipelines.
std::string shape_of(size_t pipeline, int64_t context) {
  return fakes::uniform_shape(int64_t{1} << pipeline, context, "l1", "h16x2_d64_ps16",
                              pipeline % 2 == 1 ? "w128_rope500000_kv1.3" : "w0_rope0_kv1");
}

reference::Step step_of(const std::string& shape, uint64_t seed) {
  std::string reason;
  auto step = reference::make_step(shape, int64_t{1} << 30, seed, reason);
  if (!step) throw std::runtime_error(shape + ": " + reason);
  return *std::move(step);
}

struct PlanOnGpu {
  AttentionPlan plan;
  Block workspace;

  PlanOnGpu(const Problem& problem, int64_t context) {
    require(plan.create(fakes::problem_of(problem), context));
    workspace = make_workspace(nullptr);
  }
  Block make_workspace(cudaStream_t stream) const {
    Block made(plan.workspace_bytes());
    require(cudaMemset(made.as<void>(), 0xFF, plan.workspace_bytes()));
    require(cudaDeviceSynchronize());
    require(plan.init_workspace(made.as<void>(), plan.workspace_bytes(), stream));
    return made;
  }
  void run(const GpuStep& step, const Block& memory, cudaStream_t stream) const {
    require(attention_decode({.plan = &plan,
                              .buffers = step.buffers(),
                              .workspace = memory.as<void>(),
                              .workspace_bytes = plan.workspace_bytes()},
                             stream));
  }
  muse_attention_explanation how() const {
    muse_attention_explanation explanation;
    require(plan.explain(explanation));
    return explanation;
  }
  std::string pipeline() const { return how().pipeline; }
};

class RuntimeOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = cuda_device_class(0);
    if (!device) GTEST_SKIP() << "no GPU: CUDA error " << device.error();
    if (device->cc != 90) GTEST_SKIP() << "kernels are compiled for Hopper, not " << device->isa;
  }
};

TEST_F(RuntimeOnGpu, EveryPipelineRunsTheStepAsTheReferenceHasIt) {
  for (size_t i = 0; i < table().keys().size(); ++i) {
    for (const int64_t context : {1, 37, 2048}) {
      reference::Step step = step_of(shape_of(i, context), 1);
      const GpuStep data(step);
      const PlanOnGpu planned(step.problem, context);
      EXPECT_EQ(planned.pipeline(), table().keys()[i]);
      EXPECT_STREQ(planned.how().guard, "tuned");
      planned.run(data, planned.workspace, nullptr);
      require(cudaDeviceSynchronize());
      const reference::ExpectedStep expected = reference::expected_step(step);
      EXPECT_EQ(reference::judge_step(step, expected, data.out().data(),
                                      data.rows(step, false).data(), data.rows(step, true).data())
                    .failure,
                "")
          << planned.pipeline() << ", context " << context;
    }
  }
}

/// A step enqueued by `enqueue`, captured in the mode that forbids most.
class Graph {
 public:
  template <class Enqueue>
  Graph(cudaStream_t stream, const Enqueue& enqueue) {
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    enqueue();
    require(cudaStreamEndCapture(stream, &graph_));
    require(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  ~Graph() {
    cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { require(cudaGraphLaunch(exec_, stream)); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

TEST_F(RuntimeOnGpu, ACapturedStepGivesAtEveryLengthWhatASingleRunGives) {
  constexpr int64_t kCapacity = 4096;
  const Stream stream;
  for (size_t i = 0; i < table().keys().size(); ++i) {
    const reference::Step longest = step_of(shape_of(i, kCapacity), 1);
    GpuStep data(longest);
    auto planned = std::make_unique<PlanOnGpu>(longest.problem, MUSE_ATTENTION_ANY_CONTEXT);
    EXPECT_EQ(planned->pipeline(), table().keys()[i]);
    const Graph graph(stream.get(), [&] { planned->run(data, planned->workspace, stream.get()); });
    for (const int64_t context : {4096, 1, 700, 16, 17, 4000}) {
      const reference::Step step = step_of(shape_of(i, context), static_cast<uint64_t>(context));
      data.replace(step);
      graph.launch(stream.get());
      require(cudaStreamSynchronize(stream.get()));
      const std::vector<uint16_t> replayed = data.out();
      data.replace(step);
      const Block other = planned->make_workspace(stream.get());
      planned->run(data, other, stream.get());
      require(cudaStreamSynchronize(stream.get()));
      EXPECT_EQ(replayed, data.out()) << table().keys()[i] << ", context " << context;
    }
    planned.reset();  // kernels have their arguments in the graph: it stays valid, its plan gone
  }
}

/// A plan by functions of muse_attention.h alone.
class PlanByC {
 public:
  PlanByC(const Problem& of, int64_t context) {
    const muse_attention_problem problem = fakes::problem_of(of);
    require({muse_attention_plan_create(&problem, context, MUSE_ATTENTION_CURRENT_DEVICE, &plan_)});
    workspace_ = Block(bytes());
    require({muse_attention_workspace_init(plan_, workspace_.as<void>(), bytes(), nullptr)});
    require(cudaDeviceSynchronize());
  }
  ~PlanByC() { muse_attention_plan_destroy(plan_); }
  PlanByC(const PlanByC&) = delete;
  PlanByC& operator=(const PlanByC&) = delete;
  void run(const GpuStep& step, cudaStream_t stream) const {
    const muse_attention_buffers buffers = step.buffers();
    require({muse_attention_run(plan_, &buffers, workspace_.as<void>(), bytes(), stream)});
  }

 private:
  size_t bytes() const { return muse_attention_workspace_bytes(plan_); }

  muse_attention_plan* plan_ = nullptr;
  Block workspace_;
};

/// All that a step writes.
struct Written {
  std::vector<uint16_t> out;
  std::vector<uint8_t> k, v;
  bool operator==(const Written&) const = default;
};

TEST_F(RuntimeOnGpu, CAndCppGiveTheSameBytesAtEveryLengthUnderCapture) {
  constexpr int64_t kCapacity = 4096;
  const Stream stream;
  for (size_t i = 0; i < table().keys().size(); ++i) {
    const reference::Step longest = step_of(shape_of(i, kCapacity), 1);
    GpuStep data(longest);
    const PlanOnGpu by_cpp(longest.problem, MUSE_ATTENTION_ANY_CONTEXT);
    const PlanByC by_c(longest.problem, MUSE_ATTENTION_ANY_CONTEXT);
    const Graph cpp_graph(stream.get(), [&] { by_cpp.run(data, by_cpp.workspace, stream.get()); });
    const Graph c_graph(stream.get(), [&] { by_c.run(data, stream.get()); });
    for (const int64_t context : {4096, 1, 700, 16, 17, 4000}) {
      const reference::Step step = step_of(shape_of(i, context), static_cast<uint64_t>(context));
      const auto written = [&](const auto& enqueue) {
        data.replace(step);
        enqueue();
        require(cudaStreamSynchronize(stream.get()));
        return Written{data.out(), data.rows(step, false), data.rows(step, true)};
      };
      const Written alone = written([&] { by_c.run(data, stream.get()); });
      EXPECT_TRUE(alone == written([&] { c_graph.launch(stream.get()); }))
          << "C, captured: " << table().keys()[i] << ", context " << context;
      EXPECT_TRUE(alone == written([&] { cpp_graph.launch(stream.get()); }))
          << "C++, captured: " << table().keys()[i] << ", context " << context;
    }
  }
}

TEST_F(RuntimeOnGpu, APlanMayBeMadeWhileAStreamIsCaptured) {
  const Stream stream;
  const reference::Step step = step_of(shape_of(3, 200), 1);
  GpuStep data(step);
  AttentionPlan plan;
  Block workspace(1 << 26);
  const Graph graph(stream.get(), [&] {
    require(plan.create(fakes::problem_of(step.problem)));
    ASSERT_LE(plan.workspace_bytes(), size_t{1} << 26);
    require(plan.init_workspace(workspace.as<void>(), plan.workspace_bytes(), stream.get()));
    require(attention_decode({.plan = &plan,
                              .buffers = data.buffers(),
                              .workspace = workspace.as<void>(),
                              .workspace_bytes = plan.workspace_bytes()},
                             stream.get()));
  });
  graph.launch(stream.get());
  require(cudaStreamSynchronize(stream.get()));
  const std::vector<uint16_t> replayed = data.out();
  data.replace(step);
  const PlanOnGpu planned(step.problem, MUSE_ATTENTION_ANY_CONTEXT);
  planned.run(data, planned.workspace, nullptr);
  require(cudaDeviceSynchronize());
  EXPECT_EQ(replayed, data.out());
}

TEST_F(RuntimeOnGpu, TwoStreamsRunOnePlanAtOnce) {
  for (size_t i = 0; i < table().keys().size(); ++i) {
    const reference::Step step = step_of(shape_of(i, 1000), 1);
    const reference::Step other = step_of(shape_of(i, 1000), 2);
    const PlanOnGpu planned(step.problem, 1000);
    const GpuStep first(step), second(other);
    const Stream streams[2];
    const Block workspaces[2] = {planned.make_workspace(streams[0].get()),
                                 planned.make_workspace(streams[1].get())};
    planned.run(first, workspaces[0], streams[0].get());
    planned.run(second, workspaces[1], streams[1].get());
    require(cudaDeviceSynchronize());
    const std::vector<uint16_t> expected[2] = {first.out(), second.out()};
    for (int again = 0; again < 500; ++again) {
      planned.run(first, workspaces[0], streams[0].get());
      planned.run(second, workspaces[1], streams[1].get());
    }
    require(cudaDeviceSynchronize());
    EXPECT_EQ(first.out(), expected[0]) << table().keys()[i];
    EXPECT_EQ(second.out(), expected[1]) << table().keys()[i];
  }
}

TEST_F(RuntimeOnGpu, TenThousandRunsTakeNoMemoryAndChangeNothing) {
  for (size_t i = 0; i < table().keys().size(); ++i) {
    const reference::Step step = step_of(shape_of(i, 256), 1);
    const GpuStep data(step);
    const PlanOnGpu planned(step.problem, 256);
    planned.run(data, planned.workspace, nullptr);
    require(cudaDeviceSynchronize());
    const std::vector<uint16_t> expected = data.out();
    size_t before = 0, after = 0, total = 0;
    require(cudaMemGetInfo(&before, &total));
    for (int call = 0; call < 10000; ++call) planned.run(data, planned.workspace, nullptr);
    require(cudaDeviceSynchronize());
    require(cudaMemGetInfo(&after, &total));
    EXPECT_EQ(data.out(), expected) << table().keys()[i];
    EXPECT_EQ(after, before) << table().keys()[i];
  }
}

TEST_F(RuntimeOnGpu, RefusesACacheThatIsNotAlignedAndGoesOn) {
  const reference::Step step = step_of(shape_of(2, 64), 1);
  const GpuStep data(step);
  const PlanOnGpu planned(step.problem, 64);
  muse_attention_buffers buffers = data.buffers();
  buffers.k_cache = reinterpret_cast<void*>(uintptr_t{8});
  const Status status = attention_decode({.plan = &planned.plan,
                                          .buffers = buffers,
                                          .workspace = planned.workspace.as<void>(),
                                          .workspace_bytes = planned.plan.workspace_bytes()});
  EXPECT_EQ(status.code, MUSE_ATTENTION_INVALID);
  planned.run(data, planned.workspace, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(RuntimeWithoutGpu, ADeviceThatIsNotThereIsAnErrorWithItsText) {
  const Problem problem{.page_size = 16, .max_context = 4096};
  AttentionPlan plan;
  const Status status = plan.create(fakes::problem_of(problem), 100, 4711);
  EXPECT_EQ(status.code, MUSE_ATTENTION_DEVICE);
  EXPECT_EQ(
      std::string(status.message()).find("muse_attention_plan_create: cuda:4711: CUDA error "), 0u)
      << status.message();
}

}  // namespace
}  // namespace aot

namespace runtime {

const LinkedTable& linked_table() { return aot::table().linked; }

}  // namespace runtime
}  // namespace muse
