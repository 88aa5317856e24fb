// SPDX-License-Identifier: Apache-2.0
// Containment: whatever a candidate does to its worker, the supervisor names it in time and goes
// on.
#include "tuner/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/fakes/sanitized.h"
#include "tuner/device_lock.h"
#include "tuner/plan.h"
#include "tuner/process.h"
#include "variants/registry.h"

namespace muse::tuner {
namespace {

using fakes::kSanitized;
using std::chrono::milliseconds;

constexpr milliseconds kDeadline{kSanitized ? 5000 : 500};
/// The longest that a loss may take: deadline, grace, kill, and a machine with other work.
constexpr milliseconds kPatience = kDeadline + milliseconds(2500);

std::string tiny_shape() {
  Shape shape;
  shape.problem = {.batch = 2,
                   .q_len = 1,
                   .num_q_heads = 4,
                   .num_kv_heads = 2,
                   .page_size = 16,
                   .max_context = 32};
  shape.lengths.context = 24;
  shape.lengths.pool_bytes = 1 << 16;
  return key(shape);
}

/// The base up to the gate.
std::string feeder() {
  Chain base = default_base(TargetKind::kHost, Registry::global()).value();
  base.pop_back();
  return key(base);
}

ValidateRequest validation(const std::string& chain) {
  return {.shape = tiny_shape(), .chain = chain, .seed = 1};
}

/// gate/scalar as entrant 0, `chain` as entrant 1, taking `turns` turns in all.
RoundRequest duel(const std::string& chain, int turns) {
  RoundRequest request{.shape = tiny_shape(),
                       .seed = 1,
                       .regime = "warm",
                       .entrants = {{"gate/scalar", feeder()}, {chain, feeder()}},
                       .orders = {{}}};
  for (int i = 0; i < turns; ++i) request.orders[0].push_back(i % 2);
  return request;
}

int open_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

bool has_children() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/// Whether every process of the group is gone, within the time that the kernel needs to kill one.
bool group_ends(int64_t leader) {
  const pid_t group = static_cast<pid_t>(leader);
  const auto end = std::chrono::steady_clock::now() + milliseconds(5000);
  while (kill(-group, 0) == 0) {
    while (waitpid(-group, nullptr, WNOHANG) > 0) {
    }
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come here, so that their end can be seen
    std::string pattern = testing::TempDir() + "muse-worker-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);  // turns with this test's own workers only
  }
  ~SupervisorTest() override {
    EXPECT_FALSE(has_children()) << "a worker was left behind";
    std::filesystem::remove_all(folder_);
  }

  static WorkerOptions options() {
    WorkerOptions options;
    options.executable = MUSE_TUNE_FAKES;
    options.deadline = kDeadline;
    options.grace = milliseconds(200);
    return options;
  }

  std::filesystem::path folder_;
};

/// What the worker does not survive.
struct Misdeed {
  const char* variant;
  Outcome outcome;
  const char* reason;  ///< is in the reason; not asserted under sanitizers, which die their own way
};
const Misdeed kMisdeeds[] = {
    {"gate/fake_segv", Outcome::kCrashed,
     "worker ended by signal 11 (SIGSEGV); its last words: about to touch [31mpage 0x10"},
    {"gate/fake_abort", Outcome::kCrashed, "worker ended by signal 6 (SIGABRT)"},
    {"gate/fake_kill", Outcome::kCrashed, "worker ended by signal 9 (SIGKILL)"},
    {"gate/fake_exit0", Outcome::kCrashed, "worker exited with status 0 before it answered"},
    {"gate/fake_fork", Outcome::kCrashed, "worker exited with status 7 before it answered"},
    {"gate/fake_garbage", Outcome::kCrashed, "worker sent garbage: text that is no JSON"},
    {"gate/fake_spin", Outcome::kTimeout, "no progress for"},
    {"gate/fake_sleep", Outcome::kTimeout, "no progress for"},
    {"gate/fake_stop", Outcome::kTimeout, "no progress for"},
    {"gate/fake_ignore_term_spin", Outcome::kTimeout, "no progress for"},
};

template <class Result>
void expect_loss(const tl::expected<Result, WorkerLoss>& result, const Misdeed& misdeed,
                 int entrant) {
  ASSERT_FALSE(result);
  const WorkerLoss& loss = result.error();
  EXPECT_EQ(name(loss.outcome), name(misdeed.outcome)) << loss.reason;
  if (!kSanitized) {
    EXPECT_NE(loss.reason.find(misdeed.reason), std::string::npos) << loss.reason;
  }
  EXPECT_EQ(loss.entrant, entrant);
  EXPECT_EQ(loss.candidate, 0);
  EXPECT_EQ(loss.launch, 0);
}

TEST_F(SupervisorTest, NamesWhatKillsTheWorkerInAValidationAndGoesOn) {
  Supervisor supervisor(options());
  int respawns = 0;
  for (const Misdeed& misdeed : kMisdeeds) {
    SCOPED_TRACE(misdeed.variant);
    const int64_t victim = supervisor.hello().value().pid;
    const auto start = std::chrono::steady_clock::now();
    expect_loss(supervisor.validate(validation(misdeed.variant)), misdeed, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
    EXPECT_TRUE(group_ends(victim));
    const auto next = supervisor.validate(validation("gate/scalar"));
    ASSERT_TRUE(next) << next.error().reason;
    EXPECT_EQ(next->outcome, Outcome::kOk) << next->reason;
    EXPECT_EQ(supervisor.respawns(), ++respawns);
    EXPECT_FALSE(supervisor.lost_device());
  }
}

TEST_F(SupervisorTest, NamesWhatKillsTheWorkerInARoundAfterItWasValid) {
  for (const Misdeed& misdeed : kMisdeeds) {
    SCOPED_TRACE(misdeed.variant);
    Supervisor supervisor(options());
    const std::string chain = misdeed.variant + std::string(":after=20");
    const auto report = supervisor.validate(validation(chain));
    ASSERT_TRUE(report) << report.error().reason;
    ASSERT_EQ(report->outcome, Outcome::kOk) << report->reason;
    const int64_t victim = supervisor.hello().value().pid;
    const auto start = std::chrono::steady_clock::now();
    expect_loss(supervisor.rounds(duel(chain, 44)), misdeed, 1);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
    EXPECT_TRUE(group_ends(victim));
    const auto next = supervisor.rounds(duel("gate/simd", 4));
    ASSERT_TRUE(next) << next.error().reason;
    for (const RoundReply::One& one : next->rounds.at(0).samples) {
      EXPECT_EQ(one.outcome, "") << one.reason;
      EXPECT_GT(one.span_ns, 0);
    }
  }
}

/// What stays inside the worker.
struct Fault {
  const char* variant;
  Outcome validated;
  const char* reason;
  Outcome timed;  ///< kOk: a round has no eye for it
};
const Fault kFaults[] = {
    {"gate/fake_throw_int", Outcome::kLaunchFailed, "", Outcome::kLaunchFailed},
    {"gate/fake_throw", Outcome::kLaunchFailed, "gate ", Outcome::kLaunchFailed},
    {"gate/fake_oom", Outcome::kOom, "bad_alloc", Outcome::kOom},
    {"gate/fake_wrong", Outcome::kIncorrect, "gate", Outcome::kOk},
    {"gate/fake_half", Outcome::kIncorrect, "never written", Outcome::kOk},
    {"gate/fake_flood", Outcome::kOk, "", Outcome::kOk},
};

TEST_F(SupervisorTest, TurnsFaultsThatTheWorkerSurvivesIntoOutcomes) {
  Supervisor supervisor(options());
  for (const Fault& fault : kFaults) {
    SCOPED_TRACE(fault.variant);
    if (kSanitized && fault.validated == Outcome::kOom) continue;  // no limit on memory there
    const auto report = supervisor.validate(validation(fault.variant));
    ASSERT_TRUE(report) << report.error().reason;
    EXPECT_EQ(name(report->outcome), name(fault.validated)) << report->reason;
    EXPECT_NE(report->reason.find(fault.reason), std::string::npos) << report->reason;
    const auto round = supervisor.rounds(duel(fault.variant, 5));
    ASSERT_TRUE(round) << round.error().reason;
    ASSERT_EQ(round->rounds.at(0).samples.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      const RoundReply::One& one = round->rounds.at(0).samples[i];
      const bool failed = i % 2 == 1 && fault.timed != Outcome::kOk;
      EXPECT_EQ(one.outcome, failed ? name(fault.timed) : "") << one.reason;
      EXPECT_EQ(one.reason.empty(), !failed);
    }
  }
  EXPECT_EQ(supervisor.respawns(), 0);
}

TEST_F(SupervisorTest, TimesEveryTurnOfARoundInEveryRegimeItCan) {
  Supervisor supervisor(options());
  RoundRequest request = duel("gate/simd", 4);
  request.entrants.push_back({feeder() + " + gate/scalar", ""});
  request.entrants.push_back({"gate/scalar", ""});  // nothing feeds it
  request.entrants.push_back({"gate/nonsense", feeder()});
  request.orders = {{0, 1, 2, 3, 4, 0}};
  for (const std::string regime : {"cold", "warm"}) {
    request.regime = regime;
    const auto reply = supervisor.rounds(request);
    ASSERT_TRUE(reply) << reply.error().reason;
    for (const size_t good : {0, 1, 2, 5}) {
      EXPECT_EQ(reply->rounds.at(0).samples[good].outcome, "")
          << reply->rounds.at(0).samples[good].reason;
      EXPECT_GT(reply->rounds.at(0).samples[good].span_ns, 0);
    }
    EXPECT_EQ(reply->rounds.at(0).samples[3].outcome, "unmeasurable");
    EXPECT_EQ(reply->rounds.at(0).samples[4].outcome, "unsupported");
    EXPECT_GE(reply->rounds.at(0).clock.load, 0);
  }
  request.regime = "rotating";
  const auto rotating = supervisor.rounds(request);
  ASSERT_TRUE(rotating);
  EXPECT_EQ(rotating->rounds.at(0).samples[0].outcome, "unmeasurable");
  // Small data in a large cache would need too many copies; otherwise the host has no graphs.
  const std::string& why = rotating->rounds.at(0).samples[0].reason;
  EXPECT_TRUE(why.find("graph") != std::string::npos || why.find("copies") != std::string::npos)
      << why;
}

TEST_F(SupervisorTest, RoundsTakeTurnsInSeveralPlaces) {
  Supervisor supervisor(options());
  RoundRequest request = duel("gate/simd", 4);
  request.orders.assign(7, request.orders.front());
  request.placements = 3;
  request.first_round = 2;
  const auto reply = supervisor.rounds(request);
  ASSERT_TRUE(reply) << reply.error().reason;
  for (const RoundReply::Round& round : reply->rounds) {
    for (const RoundReply::One& one : round.samples) {
      EXPECT_EQ(one.outcome, "") << one.reason;
      EXPECT_GT(one.span_ns, 0);
    }
  }
}

TEST_F(SupervisorTest, RefusalsLeaveTheWorkerAlive) {
  Supervisor supervisor(options());
  const auto chain = supervisor.validate(validation("gate/nonsense"));
  ASSERT_FALSE(chain);
  EXPECT_NE(chain.error().reason.find("gate/nonsense"), std::string::npos);
  const auto shape = supervisor.validate({.shape = "b0", .chain = "gate/scalar", .seed = 1});
  ASSERT_FALSE(shape);
  EXPECT_EQ(shape.error().entrant, -1);
  EXPECT_TRUE(supervisor.hello());
  EXPECT_EQ(supervisor.respawns(), 0);
}

TEST_F(SupervisorTest, SaysWhyThereIsNoWorker) {
  WorkerOptions missing = options();
  missing.executable = "/no/such/program";
  EXPECT_NE(Supervisor(missing).hello().error().reason.find("No such file"), std::string::npos);
  WorkerOptions mute = options();
  mute.executable = "/bin/true";
  EXPECT_NE(Supervisor(mute).hello().error().reason.find("status 0"), std::string::npos);
  WorkerOptions nowhere = options();
  nowhere.target = "toaster";
  EXPECT_NE(Supervisor(nowhere).hello().error().reason.find("toaster"), std::string::npos);
}

TEST_F(SupervisorTest, AFaultOfTheDeviceIsToldInItsOwnWords) {
  const std::filesystem::path script = folder_ / "worker";
  std::ofstream(script)
      << "#!/bin/sh\necho 'fake_fault.cuh:48: assertion failed' >&2\n"
         "echo 'muse-tune: error: CUDA error 710 (cudaErrorAssert): it says' >&2\n"
         "exit 3\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  WorkerOptions faulty = options();
  faulty.executable = script;
  faulty.target = "cuda:0";
  const auto hello = Supervisor(faulty).hello();
  ASSERT_FALSE(hello);
  EXPECT_EQ(hello.error().outcome, Outcome::kCrashed);
  EXPECT_EQ(hello.error().reason,
            "CUDA error 710 (cudaErrorAssert): it says; the worker ended with it and is replaced");
  EXPECT_NE(hello.error().last_words.find("assertion failed"), std::string::npos);
  // The host has no such faults: there the status is any program's.
  faulty.target = "host";
  EXPECT_NE(Supervisor(faulty).hello().error().reason.find("exited with status 3"),
            std::string::npos);
}

TEST_F(SupervisorTest, KeepsItsDescriptorsOverManyWorkers) {
  const int before = open_descriptors();
  {
    Supervisor supervisor(options());
    int with_worker = -1;
    for (int i = 0; i < 31; ++i) {
      ASSERT_TRUE(supervisor.hello());
      if (i == 0) with_worker = open_descriptors();
      EXPECT_EQ(open_descriptors(), with_worker);
      EXPECT_FALSE(supervisor.validate(validation("gate/fake_exit0")));
    }
    EXPECT_EQ(supervisor.respawns(), 30);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(SupervisorTest, TellsOfALossThatIsNoCandidatesDoingOnceAnotherWorkerGoesOn) {
  std::vector<std::string> told;
  WorkerOptions telling = options();
  telling.on_replaced = [&](const std::string& loss) { told.push_back(loss); };
  Supervisor supervisor(telling);
  EXPECT_FALSE(supervisor.validate(validation("gate/fake_kill")));
  EXPECT_TRUE(told.empty());
  EXPECT_TRUE(supervisor.validate(validation("gate/scalar")));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].find("in the validation of gate/fake_kill: worker ended by signal 9 (SIGKILL)"),
            0u)
      << told[0];
  EXPECT_FALSE(supervisor.validate(validation("gate/fake_exit0")));  // its outcome tells
  EXPECT_TRUE(supervisor.validate(validation("gate/scalar")));
  EXPECT_EQ(told.size(), 1u);
}

TEST_F(SupervisorTest, ReplacesAWorkerThatDiedWhileIdle) {
  std::string told;
  WorkerOptions telling = options();
  telling.on_replaced = [&](const std::string& loss) { told = loss; };
  Supervisor supervisor(telling);
  const pid_t idle = static_cast<pid_t>(supervisor.hello().value().pid);
  ASSERT_EQ(kill(idle, SIGKILL), 0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(idle), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(supervisor.validate(validation("gate/scalar")));
  EXPECT_EQ(told, "between two requests: worker ended by signal 9 (SIGKILL)");
  EXPECT_EQ(supervisor.respawns(), 1);
}

TEST_F(SupervisorTest, ARetiredWorkerIsNoLossAndAFreshOneFollows) {
  Supervisor supervisor(options());
  const int64_t first = supervisor.hello().value().pid;
  supervisor.retire();
  EXPECT_FALSE(has_children());
  supervisor.retire();  // nobody is there
  EXPECT_TRUE(supervisor.validate(validation("gate/scalar")));
  EXPECT_NE(supervisor.hello().value().pid, first);
  EXPECT_EQ(supervisor.respawns(), 0);
}

TEST_F(SupervisorTest, RetiringAfterALossStillAsksForTheCanary) {
  Supervisor supervisor(options());
  EXPECT_FALSE(supervisor.validate(validation("gate/fake_exit0")));
  supervisor.retire();  // nobody is there who could leave in peace
  EXPECT_TRUE(supervisor.hello());
  EXPECT_EQ(supervisor.respawns(), 1);
}

TEST_F(SupervisorTest, AWorkerThatDoesNotStartIsNobodysFault) {
  const std::filesystem::path copy = std::filesystem::path(folder_) / "worker";
  std::filesystem::copy_file(MUSE_TUNE_FAKES, copy);
  WorkerOptions from_copy = options();
  from_copy.executable = copy;
  Supervisor supervisor(from_copy);
  const auto first = supervisor.hello();
  ASSERT_TRUE(first);
  std::filesystem::remove(copy);
  const auto died = supervisor.validate(validation("gate/fake_exit0"));
  ASSERT_FALSE(died);
  EXPECT_FALSE(died.error().no_worker);
  const auto refused = supervisor.validate(validation("gate/scalar"));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().no_worker);
  EXPECT_TRUE(refused.error().blameless);
}

TEST_F(SupervisorTest, WorkerDiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]), write_end(ends[1]);
  const pid_t parent = fork();
  if (parent == 0) {
    Supervisor supervisor(options());
    const int64_t pid = supervisor.hello().value().pid;
    if (write(write_end.get(), &pid, sizeof pid) != sizeof pid) _exit(1);
    // The worker is busy when its parent dies: it does not look at its socket.
    kill(getpid(), SIGSTOP);
    _exit(0);
  }
  int64_t worker = 0;
  ASSERT_EQ(read(read_end.get(), &worker, sizeof worker), static_cast<ssize_t>(sizeof worker));
  ASSERT_EQ(kill(static_cast<pid_t>(worker), SIGSTOP), 0);  // nor could it
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  EXPECT_TRUE(collect(parent, milliseconds(10000)));
  const auto ending = collect(static_cast<pid_t>(worker), milliseconds(10000));
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->signal, SIGKILL);
}

TEST_F(SupervisorTest, AnOrphanDoesNotEvenStart) {
  EXPECT_NE(worker_main({.target = "host", .timer = "host", .parent_pid = getppid() + 1}), 0);
  prctl(PR_SET_PDEATHSIG, 0);
}

TEST_F(SupervisorTest, AStopEndsAHangingWorkerWithinThreeSeconds) {
  std::atomic<int> stop{0};
  WorkerOptions patient = options();
  patient.deadline = milliseconds(60000);
  patient.grace = milliseconds(60000);
  patient.stop = &stop;
  Supervisor supervisor(patient);
  ASSERT_TRUE(supervisor.hello());
  std::thread user([&] {
    std::this_thread::sleep_for(milliseconds(200));  // whenever it comes, the outcome is the same
    stop = SIGINT;
  });
  const auto start = std::chrono::steady_clock::now();
  const auto result = supervisor.validate(validation("gate/fake_ignore_term_spin"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(3200));
  user.join();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().outcome, Outcome::kPending);
  EXPECT_EQ(result.error().reason, "stopped");
  EXPECT_FALSE(has_children());
  EXPECT_EQ(supervisor.hello().error().outcome, Outcome::kPending);
}

TEST_F(SupervisorTest, AWorkerStoppedOutsideAnyCandidateIsToldOfAndReplaced) {
  milliseconds told{0};
  WorkerOptions quick = options();
  quick.silence = milliseconds(1000);
  quick.told_silence = milliseconds(200);
  quick.on_silence = [&](milliseconds silent) { told = silent; };
  Supervisor supervisor(quick);
  const pid_t victim = static_cast<pid_t>(supervisor.hello().value().pid);
  ASSERT_EQ(kill(victim, SIGSTOP), 0);
  const auto start = std::chrono::steady_clock::now();
  const auto stopped = supervisor.validate(validation("gate/scalar"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, quick.silence + milliseconds(2500));
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().outcome, Outcome::kTimeout);
  EXPECT_TRUE(stopped.error().blameless);
  EXPECT_NE(stopped.error().reason.find("neither progress nor CPU time for 1000 ms"),
            std::string::npos)
      << stopped.error().reason;
  EXPECT_GE(told, milliseconds(200));
  EXPECT_TRUE(supervisor.validate(validation("gate/scalar")));
}

TEST_F(SupervisorTest, AWorkerStoppedAtAnyMomentIsReplacedInTime) {
  WorkerOptions quick = options();
  quick.silence = kDeadline;
  Supervisor supervisor(quick);
  for (const int delay_ms : {0, 1, 3, 7, 12, 20}) {
    SCOPED_TRACE(delay_ms);
    const pid_t victim = static_cast<pid_t>(supervisor.hello().value().pid);
    std::thread user([&] {
      std::this_thread::sleep_for(milliseconds(delay_ms));  // whenever it comes, nothing blocks
      kill(victim, SIGSTOP);
    });
    const auto start = std::chrono::steady_clock::now();
    bool lost = false;
    while (!lost && std::chrono::steady_clock::now() - start < 2 * kPatience) {
      lost = !supervisor.validate(validation("gate/scalar"));
    }
    EXPECT_TRUE(lost);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * kPatience);
    user.join();
  }
}

TEST_F(SupervisorTest, WaitingForTheDeviceIsSaidAndIsNoHang) {
  WorkerOptions waiting = options();
  waiting.deadline = milliseconds(50);
  waiting.host_deadline = milliseconds(2000);
  int waits = 0;
  std::thread holder;
  std::unique_ptr<DeviceLock> lock;
  waiting.on_wait = [&] {
    ++waits;
    holder = std::thread([&] {
      std::this_thread::sleep_for(milliseconds(200));  // several deadlines
      lock->release();
    });
  };
  Supervisor supervisor(waiting);
  lock = std::make_unique<DeviceLock>(folder_, supervisor.hello().value().device_instance.uuid);
  lock->acquire([] {});
  supervisor.set_deadline(kDeadline);
  const auto report = supervisor.validate(validation("gate/scalar"));
  holder.join();
  ASSERT_TRUE(report) << report.error().reason;
  EXPECT_EQ(report->outcome, Outcome::kOk) << report->reason;
  EXPECT_EQ(waits, 1);
}

}  // namespace
}  // namespace muse::tuner
