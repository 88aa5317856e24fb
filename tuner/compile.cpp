// SPDX-License-Identifier: Apache-2.0
// A pool of compiler processes over the candidates that the cache does not have.
#include "tuner/compile.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <set>
#include <thread>

#include "tuner/compiler_process.h"
#include "tuner/console.h"

namespace muse::tuner {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{20};  ///< how often the flag to stop and deadlines are looked at
constexpr milliseconds kLoadLimit{30000};  ///< to load NVRTC and say its version

/// Waits until one of them has something to say, at most a tick.
void wait_for(const std::vector<const CompilerProcess*>& processes) {
  std::vector<pollfd> fds;
  for (const CompilerProcess* process : processes) process->add_to(fds);
  poll(fds.data(), fds.size(), static_cast<int>(kTick.count()));
}

CompileResult failure(Outcome outcome, std::string reason) {
  return {.outcome = outcome, .reason = std::move(reason)};
}

class Pool {
 public:
  Pool(std::string toolkit, const CompileOptions& options)
      : toolkit_(std::move(toolkit)),
        options_(options),
        cache_(std::filesystem::absolute(options.cache)) {}

  /// What the cache has is done at once, the rest waits for run().
  void add(const Candidate& candidate) {
    const std::string text = key(candidate);
    if (!known_.insert(text).second) return;
    if (auto compiled = cache_.find(candidate, toolkit_, options_.architecture)) {
      results_[text] = {.compiled = std::move(compiled), .cached = true};
    } else {
      waiting_.push_back(candidate);
    }
  }

  std::map<std::string, CompileResult> run();

 private:
  struct Lane {
    std::unique_ptr<CompilerProcess> process;
    Candidate candidate;  ///< being compiled
  };

  bool stopped() const { return options_.stop && options_.stop->load() != 0; }
  void feed(Lane& lane);
  CompileResult result_of(const Candidate& candidate,
                          const tl::expected<CompileReply, CompilerProcess::Loss>& reply) const;

  std::string toolkit_;
  const CompileOptions& options_;
  CubinCache cache_;
  std::set<std::string> known_;
  std::set<std::string> killed_;  ///< whose process somebody ended: each is tried once more
  std::deque<Candidate> waiting_;
  std::map<std::string, CompileResult> results_;
};

/// Hands the lane the next candidate, to a fresh process where it has none.
void Pool::feed(Lane& lane) {
  if (!lane.process) {
    auto process = CompilerProcess::start(options_.executable);
    if (!process) throw IoError("cannot start a compiler process: " + process.error());
    lane.process = *std::move(process);
  }
  lane.candidate = waiting_.front();
  waiting_.pop_front();
  lane.process->ask({.variant = lane.candidate.variant->name,
                     .entries = lane.candidate.variant->entries,
                     .configuration = lane.candidate.configuration,
                     .toolkit = toolkit_,
                     .architecture = options_.architecture,
                     .cache = cache_.folder().string()},
                    options_.deadline);
}

CompileResult Pool::result_of(
    const Candidate& candidate,
    const tl::expected<CompileReply, CompilerProcess::Loss>& reply) const {
  if (!reply) {
    const CompilerProcess::Loss& loss = reply.error();
    if (loss.killed) return failure(Outcome::kPending, loss.reason + ", twice");
    return failure(loss.late ? Outcome::kCompileTimeout : Outcome::kCrashed, loss.reason);
  }
  switch (reply->kind) {
    case CompileReply::Kind::kStored:
      if (auto compiled = cache_.find(candidate, toolkit_, options_.architecture)) {
        return {.compiled = std::move(compiled)};
      }
      throw IoError(fmt::format("{}: a cubin that was just written cannot be read back",
                                cache_.folder().string()));
    case CompileReply::Kind::kFailed:
      return failure(Outcome::kCompileFailed, reply->text);
    case CompileReply::Kind::kUnavailable:
      return failure(Outcome::kPending, "not in the cache, and cannot be compiled: " + reply->text);
    case CompileReply::Kind::kNotStored:
      throw IoError(reply->text + "; use --cache DIR");
    case CompileReply::Kind::kToolkit:
      break;
  }
  return failure(Outcome::kCrashed, "compiler answered what was not asked");
}

std::map<std::string, CompileResult> Pool::run() {
  const size_t cpus = std::max(1U, std::thread::hardware_concurrency());
  const size_t jobs = options_.jobs > 0 ? static_cast<size_t>(options_.jobs) : cpus;
  std::vector<Lane> lanes(std::min(jobs, waiting_.size()));
  size_t busy = 0;
  while (!stopped() && (busy > 0 || !waiting_.empty())) {
    for (Lane& lane : lanes) {
      if (waiting_.empty() || (lane.process && lane.process->busy())) continue;
      feed(lane);
      ++busy;
    }
    std::vector<const CompilerProcess*> working;
    for (const Lane& lane : lanes) {
      if (lane.process && lane.process->busy()) working.push_back(lane.process.get());
    }
    wait_for(working);
    for (Lane& lane : lanes) {
      if (!lane.process || !lane.process->busy()) continue;
      const auto reply = lane.process->look();
      if (!reply) continue;
      --busy;
      const std::string text = key(lane.candidate);
      if (!*reply) lane.process.reset();  // the next candidate gets a fresh one
      if (!*reply && reply->error().killed && killed_.insert(text).second) {
        waiting_.push_front(lane.candidate);
        continue;
      }
      results_[text] = result_of(lane.candidate, *reply);
      options_.progress(text,
                        static_cast<double>(results_.size()) / static_cast<double>(known_.size()));
    }
  }
  return std::move(results_);
}

}  // namespace

tl::expected<std::string, std::string> compiler_toolkit(const std::filesystem::path& executable) {
  return find_compiler(executable).map([](const Compiler& compiler) { return compiler.toolkit; });
}

tl::expected<Compiler, std::string> find_compiler(const std::filesystem::path& executable) {
  auto process = CompilerProcess::start(executable);
  if (!process) return tl::unexpected("cannot start a compiler process: " + process.error());
  (*process)->ask({}, kLoadLimit);
  for (;;) {
    wait_for({process->get()});
    const auto reply = (*process)->look();
    if (!reply) continue;
    if (!*reply) return tl::unexpected("NVRTC cannot be loaded: " + reply->error().reason);
    if ((*reply)->kind == CompileReply::Kind::kToolkit) {
      return Compiler{(*reply)->text, (*reply)->targets};
    }
    return tl::unexpected((*reply)->text);
  }
}

std::map<std::string, CompileResult> compile_all(const std::vector<Candidate>& candidates,
                                                 const std::string& toolkit,
                                                 const CompileOptions& options) {
  Pool pool(toolkit, options);
  for (const Candidate& candidate : candidates) {
    if (candidate.variant->target.kind == TargetKind::kCuda) pool.add(candidate);
  }
  return pool.run();
}

int cc_of(std::string_view architecture) {
  constexpr std::string_view kPrefix = "sm_";
  if (!architecture.starts_with(kPrefix)) return 0;
  architecture.remove_prefix(kPrefix.size());
  if (architecture.starts_with('0')) return 0;
  int cc = 0;
  size_t digits = 0;
  for (; digits < architecture.size() && digits < 4; ++digits) {
    if (architecture[digits] < '0' || architecture[digits] > '9') break;
    cc = cc * 10 + (architecture[digits] - '0');
  }
  const std::string_view suffix = architecture.substr(digits);
  const bool is_one = digits >= 2 && (suffix.empty() || (suffix == "a" && cc >= 90) ||
                                      (suffix == "f" && cc >= 100));
  return is_one ? cc : 0;
}

}  // namespace muse::tuner
