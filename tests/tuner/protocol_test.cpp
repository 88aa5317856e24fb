// SPDX-License-Identifier: Apache-2.0
// What supervisor and worker exchange, the processes they are and the lock they take turns by.
#include "tuner/protocol.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <thread>

#include "tuner/device_lock.h"
#include "tuner/process.h"
#include "tuner/supervisor.h"
#include "tuner/worker_watch.h"

namespace muse::tuner {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
T back(const Reply& reply) {
  const auto decoded = decode_reply(encode(reply));
  EXPECT_TRUE(decoded) << (decoded ? "" : decoded.error());
  return std::get<T>(decoded.value());
}

TEST(Protocol, RequestsComeBackAsTheyWere) {
  const std::vector<Request> requests = {
      HelloRequest{},
      CanaryRequest{},
      QuitRequest{},
      ValidateRequest{.shape = "b1", .chain = "gate/scalar", .seed = UINT64_MAX},
      RoundRequest{.shape = "b1",
                   .seed = 7,
                   .regime = "cold",
                   .entrants = {{"a + b", ""}, {"gate/x:t=1", "prepare/y"}},
                   .orders = {{1, 0, 1}, {}, {0}},
                   .one_by_one = true,
                   .placements = 3,
                   .first_round = 17},
      RevalidateRequest{.shape = "b1", .seed = 7, .entrant = {"a + b", ""}, .other_seed = 8}};
  for (const Request& request : requests) {
    const auto decoded = decode_request(encode(request));
    ASSERT_TRUE(decoded) << decoded.error();
    EXPECT_EQ(*decoded, request);
  }
}

TEST(Protocol, HelloComesBackAsItWas) {
  const Hello hello{.pid = 42,
                    .device_class = {.model = "CPU \"x\"",
                                     .host = true,
                                     .cc = 90,
                                     .sm_count = 2,
                                     .memory_bytes = int64_t{1} << 40,
                                     .l2_bytes = 3,
                                     .smem_per_block_bytes = 4,
                                     .driver_version = 5,
                                     .isa = "avx2"},
                    .device_instance = {.kind = "host",
                                        .uuid = "u",
                                        .name = "n",
                                        .driver = "6.1",
                                        .clock_policy = "free"},
                    .step_ns = 0.1,
                    .protocol = "p"};
  EXPECT_EQ(back<Hello>(hello), hello);
}

TEST(Protocol, NumbersThatJsonLacksComeBack) {
  ValidationReport report{.outcome = Outcome::kIncorrect, .reason = "r", .gates = {}};
  report.gates.push_back({.gate = Gate::kAttention,
                          .fill = Fill::kMeanOne,
                          .passed = false,
                          .metrics = {{"relrms", kNaN}, {"worst", -kInfinity}},
                          .failure = GateFailure{.buffer = "o",
                                                 .index = int64_t{1} << 40,
                                                 .got = kInfinity,
                                                 .expected = 0.1,
                                                 .limit = kNaN,
                                                 .what = "w"}});
  report.gates.push_back(
      {.gate = Gate::kPoison, .fill = Fill::kNormal, .passed = true, .metrics = {}, .failure = {}});
  const ValidationReport got = back<ValidationReport>(report);
  EXPECT_EQ(got.outcome, Outcome::kIncorrect);
  ASSERT_EQ(got.gates.size(), 2u);
  EXPECT_EQ(got.gates[0].gate, Gate::kAttention);
  EXPECT_EQ(got.gates[0].fill, Fill::kMeanOne);
  EXPECT_TRUE(std::isnan(got.gates[0].metrics.at("relrms")));
  EXPECT_EQ(got.gates[0].metrics.at("worst"), -kInfinity);
  EXPECT_EQ(got.gates[0].failure->index, int64_t{1} << 40);
  EXPECT_EQ(got.gates[0].failure->got, kInfinity);
  EXPECT_EQ(got.gates[0].failure->expected, 0.1);
  EXPECT_TRUE(std::isnan(got.gates[0].failure->limit));
  EXPECT_TRUE(got.gates[1].passed);
  EXPECT_FALSE(got.gates[1].failure);
}

TEST(Protocol, HostileTextSurvivesOrIsReplaced) {
  const std::string hostile =
      std::string("a\0b\"\\\n\x1b[31m", 12) + "\xff\xc3(" + "\xf0\x9f\x98\x80";
  const auto reply = back<RoundReply>(RoundReply{
      .rounds =
          {{.samples = {{.span_ns = kNaN, .rejected = hostile, .outcome = "oom", .reason = hostile},
                        {.span_ns = 2.5}},
            .clock = {.load = 0.25, .sm_mhz = 1980, .reason_bits = 4}},
           {.samples = {{.span_ns = kInfinity}}, .clock = {}}},
      .device_ns = 7.5});
  ASSERT_EQ(reply.rounds.size(), 2u);
  EXPECT_EQ(reply.device_ns, 7.5);
  EXPECT_EQ(reply.rounds[1].samples.at(0).span_ns, kInfinity);
  const std::vector<RoundReply::One>& samples = reply.rounds[0].samples;
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[1].span_ns, 2.5);
  EXPECT_TRUE(std::isnan(samples[0].span_ns));
  EXPECT_EQ(samples[0].reason.substr(0, 12), hostile.substr(0, 12));
  EXPECT_NE(samples[0].reason.find("\xef\xbf\xbd"), std::string::npos);
  EXPECT_TRUE(samples[0].reason.ends_with("\xf0\x9f\x98\x80"));
  const profiler::ClockReading& clock = reply.rounds[0].clock;
  EXPECT_EQ(clock.load, 0.25);
  EXPECT_EQ(clock.sm_mhz, 1980);
  EXPECT_EQ(clock.power_w, -1);
  EXPECT_EQ(clock.reason_bits, 4);
}

TEST(Protocol, SamplesThatAreNoneAreAnError) {
  const std::string whole =
      encode(Reply{RoundReply{.rounds = {{.samples = {{.span_ns = 1}}, .clock = {}}}}});
  ASSERT_TRUE(decode_reply(whole));
  const size_t begin = whole.find("\"samples\":[") + 11, end = whole.find(']', begin) + 1;
  for (const char* samples :
       {"{}", "[true]", "[{}]", "[\"1\"]",
        "[{\"span_ns\":1,\"rejected\":\"\",\"outcome\":\"fine\",\"reason\":\"\"}]"}) {
    const std::string broken = whole.substr(0, begin - 1) + samples + whole.substr(end);
    EXPECT_FALSE(decode_reply(broken)) << broken;
  }
}

TEST(Protocol, GarbageIsAnErrorAndNeverAnException) {
  for (const char* text :
       {"", "{", "null", "7", "[]", "{}", "{\"kind\":1}", "{\"kind\":\"nonsense\"}",
        "{\"kind\":\"hello\"}", "{\"kind\":\"refusal\",\"reason\":null}",
        "{\"kind\":\"round\",\"samples\":[]}", "{\"kind\":\"round\",\"samples\":[],\"clock\":7}",
        "{\"kind\":\"round\",\"samples\":[],\"clock\":{\"cpu_mhz\":\"fast\"}}",
        "{\"kind\":\"validation\",\"outcome\":\"splendid\",\"reason\":\"\",\"gates\":[]}",
        "{\"kind\":\"validation\",\"outcome\":\"ok\",\"reason\":\"\",\"gates\":[{}]}"}) {
    EXPECT_FALSE(decode_reply(text)) << text;
  }
  for (const char* text :
       {"", "{\"kind\":\"validate\",\"shape\":\"s\",\"chain\":\"c\",\"seed\":-1}",
        "{\"kind\":\"validate\",\"shape\":\"s\",\"chain\":\"c\",\"seed\":1.5}",
        "{\"kind\":\"round\",\"shape\":\"s\",\"seed\":1,\"regime\":\"cold\",\"entrants\":[],"
        "\"order\":[0]}",
        "{\"kind\":\"round\",\"shape\":\"s\",\"seed\":1,\"regime\":\"cold\",\"entrants\":[],"
        "\"order\":[-1]}",
        "{\"kind\":\"round\",\"shape\":\"s\",\"seed\":1,\"regime\":\"cold\",\"entrants\":[],"
        "\"order\":[99999999999]}"}) {
    EXPECT_FALSE(decode_request(text)) << text;
  }
  EXPECT_FALSE(decode_reply(std::string(100000, '[')));
}

TEST(Protocol, MessagesAreCutFromAStreamInAnyPieces) {
  const std::string stream = frame("one") + frame("") + frame(std::string(70000, 'x'));
  for (const size_t piece : {size_t{1}, size_t{5}, stream.size()}) {
    MessageBuffer buffer;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      buffer.feed(std::string_view(stream).substr(at, piece));
      for (;;) {
        auto message = buffer.next();
        ASSERT_TRUE(message);
        if (!*message) break;
        got.push_back(**message);
      }
    }
    EXPECT_TRUE(buffer.empty());
    EXPECT_EQ(got, (std::vector<std::string>{"one", "", std::string(70000, 'x')}));
  }
}

TEST(Protocol, ALengthBeyondTheLimitBreaksTheStream) {
  MessageBuffer buffer;
  buffer.feed(std::string_view("\x01\x00\x00\x04", 4));  // 64 MiB + 1
  EXPECT_FALSE(buffer.next());
  MessageBuffer largest;
  largest.feed(std::string_view("\x00\x00\x00\x04", 4));
  EXPECT_TRUE(largest.next());
}

TEST(Protocol, PlainTextLosesControlsAndBrokenUtf8) {
  EXPECT_EQ(plain_text("a\x1b[31mb\tc\r\nd\x7f"), "a[31mbc\nd");
  EXPECT_EQ(plain_text("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"),
            "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
  EXPECT_EQ(plain_text("\xc2\x9b|\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|\xc3"), "??|??|???|????|?");
}

TEST(WorkerWatch, CountsTheDeadlineOnlyWhileAVariantRuns) {
  Progress page;
  page.reference = 0;
  std::chrono::nanoseconds cpu{0};
  const auto ms = [](int n) { return std::chrono::milliseconds(n); };
  Patience patience(page, {.deadline = ms(10), .host_deadline = ms(1000), .silence = ms(100)},
                    [&] { return ++cpu; });
  const auto start = Patience::Clock::now();
  const auto after = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  page.beat = 1;
  EXPECT_FALSE(patience.exhausted(after(500)));
  EXPECT_FALSE(patience.exhausted(after(510)));
  EXPECT_EQ(patience.exhausted(after(511))->why, "no progress for 10 ms");
  page.reference = 1;
  EXPECT_FALSE(patience.exhausted(after(511)));
  const auto hung = patience.exhausted(after(1501));
  EXPECT_EQ(hung->why, "no progress for 1000 ms, outside any candidate");
  EXPECT_FALSE(hung->silent);
}

TEST(WorkerWatch, AStoppedWorkerIsToldFromAReferenceAtWork) {
  Progress page;
  std::chrono::nanoseconds cpu{0};
  const auto ms = [](int n) { return std::chrono::milliseconds(n); };
  Patience patience(page, {.deadline = ms(10), .host_deadline = ms(100000), .silence = ms(1000)},
                    [&] { return cpu; });
  const auto start = Patience::Clock::now();
  cpu = ms(1);
  EXPECT_FALSE(patience.exhausted(start + ms(5000)));  // at work without progress
  EXPECT_FALSE(patience.exhausted(start + ms(6000)));
  EXPECT_EQ(patience.silent_for(), ms(1000));
  cpu = ms(2);
  EXPECT_FALSE(patience.exhausted(start + ms(6500)));
  EXPECT_EQ(patience.silent_for(), ms(0));
  const auto stopped = patience.exhausted(start + ms(7501));
  ASSERT_TRUE(stopped);
  EXPECT_TRUE(stopped->silent);
  EXPECT_EQ(stopped->why, "neither progress nor CPU time for 1000 ms, outside any candidate");
  page.reference = 0;  // a launch may wait for the device without any: its deadline alone counts
  page.beat = 1;
  EXPECT_FALSE(patience.exhausted(start + ms(9000)));
}

TEST(WorkerWatch, LastWordsAreBoundedAndPlain) {
  LastWords words;
  EXPECT_EQ(words.line(), "");
  for (int i = 0; i < 100; ++i) words.add(std::string(1000, 'x') + "\n");
  words.add("the \x1b[31mend\n\n");
  EXPECT_EQ(words.line(), "the [31mend");
  EXPECT_LE(words.text().size(), kLastWordsBytes);
  words.add(std::string(199, 'y') + "\xc3\xbc");
  EXPECT_EQ(words.line(), std::string(199, 'y') + "?");
}

std::string read_all(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0;) {
    text.append(bytes, static_cast<size_t>(got));
  }
  return text;
}

/// What a shell in a spawned child says on its stderr.
std::string shell(const std::string& script, std::vector<int> inherited = {}) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd mine(ends[0]);
  Fd theirs(ends[1]);
  const auto child = spawn({.executable = "/bin/sh",
                            .arguments = {"sh", "-c", script},
                            .inherited = std::move(inherited),
                            .error_output = theirs.get()});
  EXPECT_TRUE(child) << (child ? "" : child.error());
  theirs.reset();
  std::string text = read_all(mine.get());
  EXPECT_TRUE(collect(*child, std::chrono::seconds(10)));
  return text;
}

TEST(Process, InheritsTheDescriptorsGivenAndNoOther) {
  const Fd leaky(open("/dev/zero", O_RDONLY));  // deliberately without O_CLOEXEC
  const Fd given(open("/dev/full", O_RDONLY | O_CLOEXEC));
  const std::string script =
      "for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do "
      "[ -e /proc/$$/fd/$i ] && echo $i $(readlink /proc/$$/fd/$i) >&2; done";
  const std::string said = shell(script, {given.get(), given.get()});
  EXPECT_TRUE(said.starts_with("0 /dev/null\n1 /dev/null\n2 pipe:")) << said;
  EXPECT_TRUE(said.ends_with("3 /dev/full\n4 /dev/full\n")) << said;
}

TEST(Process, LeadsAGroupOfItsOwnWithDefaultSignals) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(sigprocmask(SIG_BLOCK, &blocked, &before), 0);
  const auto handler = signal(SIGPIPE, SIG_IGN);
  const std::string said = shell(
      "set -- $(cat /proc/$$/stat); [ $1 = $5 ] && echo leader >&2; "
      "grep SigBlk /proc/self/status >&2; kill -PIPE $$; echo deaf >&2");
  signal(SIGPIPE, handler);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(said, "leader\nSigBlk:\t0000000000000000\n");
}

TEST(Process, SaysHowAChildEnded) {
  const auto ending = [](const std::string& script) {
    const auto child = spawn({.executable = "/bin/sh",
                              .arguments = {"sh", "-c", script},
                              .inherited = {},
                              .error_output = -1});
    return collect(child.value(), std::chrono::seconds(10))->text();
  };
  EXPECT_EQ(ending("exit 3"), "exited with status 3");
  EXPECT_EQ(ending("kill -SEGV $$"), "ended by signal 11 (SIGSEGV)");
}

TEST(Process, SaysWhyAProgramCannotStart) {
  const auto child = spawn(
      {.executable = "/no/such/program", .arguments = {"x"}, .inherited = {}, .error_output = -1});
  ASSERT_FALSE(child);
  EXPECT_EQ(child.error(), "cannot start '/no/such/program': No such file or directory");
}

class DeviceLockTest : public testing::Test {
 protected:
  DeviceLockTest() {
    std::string pattern = testing::TempDir() + "muse-lock-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~DeviceLockTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(DeviceLockTest, WaitersGetTheirTurnBeforeTheHolderComesBack) {
  DeviceLock first(folder_, "gpu-1"), second(folder_, "gpu-1");
  first.acquire([] { FAIL() << "nobody else is there"; });
  std::atomic<int> turns{0};  // ThreadSanitizer knows nothing of locks on files
  int second_turn = 0;
  std::atomic<bool> waiting{false};
  std::thread other([&] {
    second.acquire([&] { waiting = true; });
    second_turn = ++turns;
    second.release();
  });
  while (!waiting) std::this_thread::yield();
  first.release();
  first.acquire([] {});  // straight back, but the other one was first
  const int first_turn = ++turns;
  other.join();
  EXPECT_EQ(second_turn, 1);
  EXPECT_EQ(first_turn, 2);
}

TEST_F(DeviceLockTest, DevicesDoNotWaitForEachOther) {
  DeviceLock first(folder_, "gpu-1"), second(folder_, "gpu-2");
  first.acquire([] {});
  second.acquire([] { FAIL() << "another device"; });
}

TEST_F(DeviceLockTest, StaysInItsFolderAndFollowsNoLink) {
  const DeviceLock lock(folder_, "../../etc/x");
  EXPECT_EQ(lock.path().parent_path(), folder_);
  struct stat status {};
  ASSERT_EQ(stat(lock.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const std::filesystem::path path = DeviceLock(folder_, "linked").path();
  std::filesystem::remove(path);
  std::ofstream(folder_ / "victim") << "data";
  std::filesystem::create_symlink(folder_ / "victim", path);
  EXPECT_THROW(DeviceLock(folder_, "linked"), std::system_error);
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_THROW(DeviceLock(folder_, "linked"), std::system_error);
}

// --- what the supervisor makes of a worker that breaks the protocol -----------------------------

/// This program as a worker: it answers request after request as the letters of the script say, and
/// exits with status 5 at the first one beyond them.
int scripted_worker(std::string_view script) {
  MessageBuffer buffer;
  const auto say = [](const std::string& bytes) {
    return write(kFirstInherited, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  };
  for (size_t turn = 0;; ++turn) {
    for (auto message = buffer.next(); !*message; message = buffer.next()) {
      char bytes[4096];
      const ssize_t got = read(kFirstInherited, bytes, sizeof bytes);
      if (got <= 0) return 0;
      buffer.feed({bytes, static_cast<size_t>(got)});
    }
    if (turn == script.size()) return 5;
    const ValidationReport wrong{.outcome = Outcome::kIncorrect, .reason = "w", .gates = {}};
    RoundReply one_sample;
    one_sample.rounds.resize(1);
    one_sample.rounds[0].samples.resize(1);
    bool said = true;
    switch (script[turn]) {
      case 'h':
        said = say(frame(encode(Hello{})));
        break;
      case 'v':
        said = say(frame(encode(ValidationReport{})));
        break;
      case 'w':
        said = say(frame(encode(wrong)));
        break;
      case 'n':
        said = say(frame(encode(RoundReply{})));
        break;
      case 'r':
        said = say(frame(encode(one_sample)));
        break;
      case '2':
        said = say(frame(encode(Hello{})) + frame(encode(Hello{})));
        break;
      case 'l':
        said = say("\xff\xff\xff\xff");
        break;
      case 'c':
        close(kFirstInherited);
        pause();
        break;
      default:
        return 6;
    }
    if (!said) return 1;
  }
}

constexpr const char* kScript = "MUSE_TEST_WORKER_SCRIPT";

std::string reason_of_round(const char* script) {
  setenv(kScript, script, 1);
  WorkerOptions options;
  options.grace = std::chrono::milliseconds(200);
  Supervisor supervisor(options);
  const auto reply = supervisor.rounds(
      {.shape = "s", .seed = 1, .regime = "cold", .entrants = {{"a", ""}}, .orders = {{0, 0}}});
  EXPECT_FALSE(reply);
  EXPECT_EQ(reply.error().outcome, Outcome::kCrashed);
  EXPECT_EQ(supervisor.lost_device(), false);
  return reply.error().reason;
}

TEST(BrokenWorker, EveryBreachIsALossWithItsReason) {
  EXPECT_EQ(reason_of_round(""), "worker exited with status 5 before it answered");
  EXPECT_EQ(reason_of_round("v"), "worker sent garbage: no hello");
  EXPECT_EQ(reason_of_round("hh"), "worker sent garbage: the answer to another question");
  EXPECT_EQ(reason_of_round("hr"), "worker sent garbage: 1 samples for 2 turns");
  EXPECT_EQ(reason_of_round("hn"), "worker sent garbage: 0 rounds of 1");
  EXPECT_EQ(reason_of_round("h2"), "worker sent garbage: more than one answer");
  EXPECT_EQ(reason_of_round("hl"),
            "worker sent garbage: a message of 4294967295 bytes, limit 67108864");
  EXPECT_EQ(reason_of_round("hc"), "worker closed its connection");
}

TEST(BrokenWorker, TwoFailedCanariesLoseTheDevice) {
  setenv(kScript, "hw", 1);
  Supervisor supervisor(WorkerOptions{});
  const ValidateRequest request{.shape = "s", .chain = "c", .seed = 1};
  EXPECT_EQ(supervisor.validate(request)->outcome, Outcome::kIncorrect);  // no canary at first
  EXPECT_FALSE(supervisor.validate(request));                             // the script is over
  const auto first = supervisor.validate(request);
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().reason, "canary after a respawn: w");
  EXPECT_EQ(first.error().entrant, -1);
  EXPECT_FALSE(supervisor.lost_device());
  EXPECT_FALSE(supervisor.validate(request));
  EXPECT_TRUE(supervisor.lost_device());
  EXPECT_EQ(supervisor.respawns(), 2);
  EXPECT_FALSE(supervisor.hello());
  EXPECT_EQ(supervisor.respawns(), 2);
}

TEST(BrokenWorker, APassedCanaryForgetsTheFailedOne) {
  setenv(kScript, "hv", 1);
  Supervisor supervisor(WorkerOptions{});
  const ValidateRequest request{.shape = "s", .chain = "c", .seed = 1};
  EXPECT_TRUE(supervisor.validate(request));
  EXPECT_FALSE(supervisor.validate(request));
  for (const char* script : {"hw", "hv", "hw"}) {
    setenv(kScript, script, 1);
    EXPECT_FALSE(supervisor.validate(request));  // canary fails, or passes and the script is over
  }
  EXPECT_FALSE(supervisor.lost_device());
}

}  // namespace
}  // namespace muse::tuner

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "worker") {
    return muse::tuner::scripted_worker(std::getenv(muse::tuner::kScript));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
