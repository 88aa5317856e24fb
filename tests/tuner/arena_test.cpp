// SPDX-License-Identifier: Apache-2.0
// Buffers between guard bands, and the host as a target.
#include "tuner/arena.h"

#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

#include "profiler/host_cache.h"

namespace muse::tuner {
namespace {

/// Counts blocks and fails when told; memory is the host's.
class CountingBackend final : public Backend {
 public:
  int fail_at = std::numeric_limits<int>::max();
  int allocated = 0;
  std::set<void*> live;

  TargetKind target() const override { return host_->target(); }
  const DeviceClass& device_class() const override { return host_->device_class(); }
  const profiler::DeviceInstance& device_instance() const override {
    return host_->device_instance();
  }
  std::string toolkit() const override { return host_->toolkit(); }
  void* allocate(int64_t bytes) override {
    if (++allocated >= fail_at) throw TrialError(Outcome::kOom, "planned");
    return *live.insert(host_->allocate(bytes)).first;
  }
  void release(void* address) override {
    EXPECT_EQ(live.erase(address), 1u);
    host_->release(address);
  }
  void upload(void* target, const void* host, int64_t bytes) override {
    host_->upload(target, host, bytes);
  }
  void download(void* host, const void* target, int64_t bytes) override {
    host_->download(host, target, bytes);
  }
  void put(std::span<const Put> puts) override { host_->put(puts); }
  std::optional<Difference> first_difference(std::span<const Compared> all) override {
    return host_->first_difference(all);
  }
  void synchronize() override { host_->synchronize(); }
  std::unique_ptr<Program> bind(const Candidate& candidate, const Problem& problem,
                                const Buffers& buffers, void* workspace) override {
    return host_->bind(candidate, problem, buffers, workspace);
  }
  std::unique_ptr<Program> capture(const std::vector<Program*>& programs, bool pdl,
                                   size_t chain_length) override {
    return host_->capture(programs, pdl, chain_length);
  }
  std::optional<TargetTruth> attention_truth(const Problem& problem,
                                             const Buffers& buffers) override {
    return host_->attention_truth(problem, buffers);
  }
  profiler::ClockReading read_clock() override { return host_->read_clock(); }
  profiler::Sampler& sampler() override { return host_->sampler(); }
  void flush_caches() override { host_->flush_caches(); }
  DeviceLimits limits() override { return host_->limits(); }
  std::optional<CombinedPartials> combined_partials(const Problem& problem, const Buffers& buffers,
                                                    bool values) override {
    return host_->combined_partials(problem, buffers, values);
  }
  std::string protocol() const override { return host_->protocol(); }

 private:
  std::unique_ptr<Backend> host_ = make_host_backend();
};

Shape small_shape() {
  Shape shape;
  shape.problem = {.batch = 3, .q_len = 2, .rope_theta = 500000};
  shape.lengths.context = 37;
  shape.lengths.pool_bytes = 1 << 16;
  shape.problem.max_context = default_max_context(shape);
  return shape;
}

constexpr Handoff kNoPartials{.kind = HandoffKind::kO};
constexpr Handoff kFourSplits{
    .kind = HandoffKind::kPartials, .partial_type = PartialType::kF32, .split_capacity = 4};
constexpr Handoff kFourSplitsBf16{
    .kind = HandoffKind::kPartials, .partial_type = PartialType::kBf16, .split_capacity = 4};

class ArenaTest : public testing::Test {
 protected:
  Inputs inputs_ = make_inputs(small_shape(), 1, Fill::kNormal);
  CountingBackend backend_;
  Arena arena_{backend_, inputs_};

  bool all(std::string_view name, uint8_t byte) const {
    const auto bytes = arena_.download(name);
    return std::all_of(bytes.begin(), bytes.end(), [byte](uint8_t b) { return b == byte; });
  }
};

TEST_F(ArenaTest, UploadsInputsAndPoisonsTheRest) {
  const auto qkv = arena_.download("qkv");
  ASSERT_EQ(qkv.size(), inputs_.qkv.size() * sizeof(uint16_t));
  EXPECT_EQ(memcmp(qkv.data(), inputs_.qkv.data(), qkv.size()), 0);
  EXPECT_EQ(arena_.download("k_cache"), inputs_.k_cache);
  for (const char* name : {"q8", "o", "out", "q8_tap", "o_tap"}) {
    EXPECT_TRUE(all(name, kPoisonByte)) << name;
  }
  EXPECT_EQ(arena_.broken_guard(), std::nullopt);
}

TEST_F(ArenaTest, AlignsEveryPayload) {
  arena_.buffers(kFourSplits, true);
  arena_.workspace("someone", {.bytes = 100});
  for (const Arena::Area& area : arena_.areas()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(area.address) % 256, 0u) << area.name;
  }
}

TEST_F(ArenaTest, GivesTapsOnlyWhereAskedFor) {
  const Buffers plain = arena_.buffers(kNoPartials, false);
  EXPECT_EQ(plain.q8_tap, nullptr);
  EXPECT_EQ(plain.o_tap, nullptr);
  EXPECT_EQ(plain.partial_o, nullptr);
  EXPECT_EQ(plain.qkv, arena_.area("qkv").address);
  EXPECT_EQ(plain.out, arena_.area("out").address);
  const Buffers tapped = arena_.buffers(kNoPartials, true);
  EXPECT_EQ(tapped.q8_tap, arena_.area("q8_tap").address);
  EXPECT_EQ(tapped.o_tap, arena_.area("o_tap").address);
}

TEST_F(ArenaTest, KeepsPartialsPerHandoff) {
  const Buffers f32 = arena_.buffers(kFourSplits, false);
  EXPECT_EQ(f32.split_capacity, 4);
  EXPECT_EQ(f32.partial_type, PartialType::kF32);
  const Buffers bf16 = arena_.buffers(kFourSplitsBf16, false);
  EXPECT_EQ(bf16.partial_type, PartialType::kBf16);
  EXPECT_NE(f32.partial_o, bf16.partial_o);
  EXPECT_NE(f32.n_splits, bf16.n_splits);
  EXPECT_EQ(arena_.buffers(kFourSplits, false).partial_o, f32.partial_o);
  const Problem& problem = inputs_.shape.problem;
  const int64_t elements = 4 * problem.tokens() * problem.num_q_heads * problem.head_dim;
  EXPECT_EQ(arena_.area("partial_o@4_f32").bytes, 4 * elements);
  EXPECT_EQ(arena_.area("partial_o@4_bf16").bytes, 2 * elements);
  EXPECT_EQ(arena_.area("partial_lse@4_f32").address, f32.partial_lse);
  EXPECT_EQ(arena_.area("n_splits@4_bf16").address, bf16.n_splits);
  EXPECT_TRUE(all("partial_o@4_f32", kPoisonByte));
}

TEST_F(ArenaTest, KeepsAWorkspacePerOwner) {
  void* zeroed = arena_.workspace("a", {.bytes = 96, .zeroed_once = true});
  void* doubled = arena_.workspace("b", {.bytes = 96, .double_buffered = true});
  EXPECT_NE(zeroed, doubled);
  EXPECT_TRUE(all("workspace@a", 0));
  EXPECT_TRUE(all("workspace@b", kPoisonByte));
  EXPECT_EQ(arena_.area("workspace@b").bytes, 192);
  static_cast<uint8_t*>(zeroed)[3] = 9;
  EXPECT_EQ(arena_.workspace("a", {.bytes = 96, .zeroed_once = true}), zeroed);
  EXPECT_EQ(arena_.download("workspace@a")[3], 9);  // zeroed once, then the candidate's own
  EXPECT_EQ(arena_.workspace("c", {}), nullptr);
  EXPECT_THROW(arena_.workspace("a", {.bytes = 97}), std::logic_error);
}

TEST_F(ArenaTest, SeesAByteWrittenBesideAnyBuffer) {
  arena_.buffers(kFourSplits, true);
  arena_.workspace("a", {.bytes = 33});
  for (const Arena::Area& area : arena_.areas()) {
    for (const int64_t offset :
         {-kGuardBytes, int64_t{-1}, area.bytes, area.bytes + kGuardBytes - 1}) {
      static_cast<uint8_t*>(area.address)[offset] = 0x3C;
      const auto broken = arena_.broken_guard();
      ASSERT_TRUE(broken) << area.name << " at " << offset;
      EXPECT_EQ(broken->buffer, area.name);
      EXPECT_EQ(broken->offset, offset);
      EXPECT_EQ(broken->got, 0x3C);
      arena_.repair_guards();
      EXPECT_EQ(arena_.broken_guard(), std::nullopt);
      static_cast<uint8_t*>(area.address)[offset] = kGuardByte;
      EXPECT_EQ(arena_.broken_guard(), std::nullopt) << "its own byte cannot be seen";
      arena_.repair_guards(kOtherGuardByte);
      static_cast<uint8_t*>(area.address)[offset] = kGuardByte;
      ASSERT_TRUE(arena_.broken_guard()) << area.name << " at " << offset;
      EXPECT_EQ(arena_.broken_guard()->expected, kOtherGuardByte);
      arena_.repair_guards();
    }
  }
}

TEST_F(ArenaTest, LetsTheWholePayloadBeWritten) {
  arena_.workspace("a", {.bytes = 33});
  for (const Arena::Area& area : arena_.areas()) {
    memset(area.address, 0x3C, static_cast<size_t>(area.bytes));
    EXPECT_EQ(arena_.broken_guard(), std::nullopt) << area.name;
  }
  arena_.poison("out");
  EXPECT_TRUE(all("out", kPoisonByte));
}

TEST_F(ArenaTest, MovesWholeBuffersAndParts) {
  const std::vector<uint8_t> bytes{1, 2, 3, 4};
  arena_.upload("out", bytes.data(), 4);
  std::vector<uint8_t> part(2);
  arena_.download("out", 2, part.data(), 2);
  EXPECT_EQ(part, (std::vector<uint8_t>{3, 4}));
  const int64_t size = arena_.area("out").bytes;
  std::vector<uint8_t> large(static_cast<size_t>(size) + 1);
  EXPECT_THROW(arena_.upload("out", large.data(), size + 1), std::logic_error);
  EXPECT_THROW(arena_.download("out", 1, large.data(), size), std::logic_error);
  EXPECT_THROW(arena_.download("out", -1, large.data(), 1), std::logic_error);
  EXPECT_THROW(arena_.area("outt"), std::logic_error);
}

TEST(Arena, ReleasesWhatItAllocated) {
  const Inputs inputs = make_inputs(small_shape(), 1, Fill::kNormal);
  CountingBackend backend;
  {
    Arena arena(backend, inputs);
    arena.buffers(kFourSplits, true);
    arena.workspace("a", {.bytes = 8});
    EXPECT_FALSE(backend.live.empty());
  }
  EXPECT_TRUE(backend.live.empty());
}

TEST(Arena, ReleasesWhatItHadWhenMemoryRunsOut) {
  const Inputs inputs = make_inputs(small_shape(), 1, Fill::kNormal);
  for (const int fail_at : {1, 4, 12}) {
    CountingBackend backend;
    backend.fail_at = fail_at;
    EXPECT_THROW(Arena(backend, inputs), TrialError);
    EXPECT_TRUE(backend.live.empty());
  }
}

TEST(Arena, HasNoTableOfAnglesWithoutRope) {
  Shape shape = small_shape();
  shape.problem.rope_theta = 0;
  CountingBackend backend;
  Arena arena(backend, make_inputs(shape, 1, Fill::kNormal));
  EXPECT_EQ(arena.buffers(kNoPartials, false).cos_sin, nullptr);
}

TEST(Arena, RefusesInputsThatDoNotFitTheProblem) {
  Inputs inputs = make_inputs(small_shape(), 1, Fill::kNormal);
  inputs.qkv.pop_back();
  CountingBackend backend;
  EXPECT_THROW(Arena(backend, inputs), std::logic_error);
  EXPECT_TRUE(backend.live.empty());
}

TEST(HostBackend, RefusesMoreThanTheMachineHas) {
  const auto backend = make_host_backend();
  constexpr int64_t kHuge = int64_t{1} << 50;
  try {
    backend->allocate(kHuge);
    FAIL();
  } catch (const TrialError& error) {
    EXPECT_EQ(error.outcome, Outcome::kOom);
    const std::string what = error.what();
    EXPECT_NE(what.find(std::to_string(kHuge) + " bytes requested"), std::string::npos) << what;
    EXPECT_NE(what.find("available"), std::string::npos) << what;
  }
}

TEST(HostBackend, GivesAlignedMemoryOfAnySize) {
  const auto backend = make_host_backend();
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{257}, int64_t{5} << 20}) {
    void* address = backend->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 256, 0u);
    backend->fill(address, 7, bytes);
    std::vector<uint8_t> back(static_cast<size_t>(bytes));
    backend->download(back.data(), address, bytes);
    EXPECT_TRUE(std::all_of(back.begin(), back.end(), [](uint8_t b) { return b == 7; }));
    backend->release(address);
  }
}

/// Writes its launch number and the value of its tunable into the workspace.
struct ScriptArguments {
  int32_t* log;  // [launches]
  int32_t value;
};

Variant script_variant() {
  Variant variant;
  variant.name = "gate/script";
  variant.geometry = [](const Problem&, const Configuration& configuration, const DeviceClass&) {
    Geometry geometry{.launches = {}, .workspace = {.bytes = 64}};
    geometry.launches.resize(static_cast<size_t>(configuration.at("launches")));
    return geometry;
  };
  variant.bind = [](const Problem&, const Configuration&, const Buffers&, void* workspace,
                    const TensorMapEncoder& encode, int launch) {
    EXPECT_FALSE(encode);  // no tensor maps on the host
    return Arguments::of(ScriptArguments{static_cast<int32_t*>(workspace), 100 + launch});
  };
  variant.host_entry = [](const Arguments& arguments, int launch) {
    const auto& script = arguments.as<ScriptArguments>();
    script.log[launch] = script.value + launch;
  };
  return variant;
}

TEST(HostBackend, BindsEachLaunchAndRunsItByItsNumber) {
  const auto backend = make_host_backend();
  const Variant variant = script_variant();
  std::vector<int32_t> log(3, -1);
  const auto program =
      backend->bind({&variant, {{"launches", 3}}}, small_shape().problem, {}, log.data());
  ASSERT_EQ(program->launches(), 3);
  EXPECT_EQ(log, (std::vector<int32_t>{-1, -1, -1}));
  for (int launch = 0; launch < 3; ++launch) program->launch(launch);
  EXPECT_EQ(log, (std::vector<int32_t>{100, 102, 104}));
}

TEST(HostBackend, RefusesAVariantOfAnotherTarget) {
  const auto backend = make_host_backend();
  Variant variant = script_variant();
  variant.target.kind = TargetKind::kCuda;
  EXPECT_THROW(backend->bind({&variant, {{"launches", 1}}}, small_shape().problem, {}, nullptr),
               TrialError);
  variant = script_variant();
  variant.host_entry = nullptr;
  EXPECT_THROW(backend->bind({&variant, {{"launches", 1}}}, small_shape().problem, {}, nullptr),
               TrialError);
}

TEST(HostBackend, TellsItsProtocolInFull) {
  const auto backend = make_host_backend();
  const std::string protocol = backend->protocol();
  EXPECT_EQ(protocol, make_host_backend()->protocol());
  for (const std::string& part :
       {std::string("timer=host"), backend->sampler().version(), std::string("cold="),
        std::string("warm="), profiler::HostCache::recipe(backend->device_class().l2_bytes)}) {
    EXPECT_NE(protocol.find(part), std::string::npos) << part << " in " << protocol;
  }
  backend->flush_caches();
  backend->synchronize();
  EXPECT_EQ(backend->target(), TargetKind::kHost);
  EXPECT_EQ(backend->device_instance(), profiler::host_device_instance());
}

}  // namespace
}  // namespace muse::tuner
