// SPDX-License-Identifier: Apache-2.0
// What the tests of the database share: a folder of their own, a filled file, a child process.
#pragma once

#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "db/store.h"

namespace muse::db {

/// Gone with all it holds when it dies. In memory where that can be had: commits wait for the disk.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm")
                                                        : std::filesystem::temp_directory_path()) /
                       "muse-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temp folder");
    path_ = name;
    std::filesystem::permissions(path_, std::filesystem::perms(0755));
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms(0755), ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_file(const std::filesystem::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

/// Name -> content and time of change (ns) of all there is in a folder.
using Listing = std::map<std::string, std::pair<std::string, int64_t>>;

inline Listing listing(const std::filesystem::path& folder) {
  Listing result;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    struct stat status {};
    ::lstat(entry.path().c_str(), &status);
    const int64_t changed = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
    result[entry.path().filename()] = {
        std::filesystem::is_regular_file(entry.symlink_status()) ? read_file(entry.path()) : "",
        changed};
  }
  return result;
}

/// The words of the Error that `body` throws; empty if it throws none.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Forks; the child ends with what `body` gives, 99 if it throws. No database may be open here.
inline pid_t start_child(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("no fork");
  if (pid > 0) return pid;
  int code = 99;
  try {
    code = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

/// Exit code, or minus the signal that ended it.
inline int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline int in_child(const std::function<int()>& body) { return wait_for(start_child(body)); }

/// Rights of files bind everybody but root: root's child becomes somebody else.
inline void drop_root() {
  if (::geteuid() != 0) return;
  if (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) {
    throw std::runtime_error("cannot become another user");
  }
}

/// Ids of the rows every other row hangs on.
struct Base {
  Id device = 0, build = 0, run = 0, problem = 0;
};

inline Base add_base(Store& store, const std::string& status = "complete") {
  Base base;
  base.device = store.upsert(DeviceRow{.kind = "host", .uuid = "machine", .name = "a CPU"});
  base.build = store.upsert(BuildRow{.version = "1"});
  base.run = store.insert(
      RunRow{.device_id = base.device, .build_id = base.build, .status = status, .base = "b"});
  base.problem = store.upsert(ProblemRow{.key = "b8", .fields = "{}"});
  return base;
}

inline TrialRow add_trial(Store& store, const Base& base, const std::string& key) {
  const Id candidate = store.upsert(
      CandidateRow{.key = key, .span = "attention", .variant = key.substr(0, key.find(':'))});
  return store.trial({.device_id = base.device,
                      .toolkit = "none",
                      .code_hash = "hash",
                      .candidate_id = candidate,
                      .problem_id = base.problem,
                      .regime = "cold",
                      .protocol_hash = "protocol"},
                     base.run, false);
}

inline Id add_race(Store& store, const Base& base) {
  return store.insert(RaceRow{.run_id = base.run,
                              .problem_id = base.problem,
                              .span = "attention",
                              .regime = "cold",
                              .rules = "{}",
                              .status = "running"});
}

/// One candidate's round.
inline Id add_round(Store& store, Id race, int64_t number, Id trial, std::vector<double> ns,
                    const std::string& rejected = "") {
  return store.insert(RoundRow{.race_id = race,
                               .number = number,
                               .order = {trial},
                               .rejected = rejected,
                               .samples = {{.trial_id = trial, .ns = std::move(ns)}}});
}

/// Some hundred rows in every table that a sweep fills.
inline void fill(Store& store, const std::string& status = "complete") {
  store.transaction([&] {
    const Base base = add_base(store, status);
    const Id race = add_race(store, base);
    RoundRow round{.race_id = race};
    for (int i = 0; i < 100; ++i) {
      const TrialRow trial = add_trial(store, base, "attention/simt:splits=" + std::to_string(i));
      store.set_trial(trial.id, "ok", "", 0, "2025-01-01T00:00:00Z");
      store.insert(ValidationRow{.trial_id = trial.id, .run_id = base.run, .gate = "attention"});
      round.order.push_back(trial.id);
      round.samples.push_back({.trial_id = trial.id, .ns = {1000.0 + i}});
      store.upsert(InteractionRow{.run_id = base.run,
                                  .problem_id = base.problem,
                                  .regime = "cold",
                                  .candidate_id = trial.key.candidate_id,
                                  .stage_sum_ns = 990.0 + i});
    }
    for (round.number = 0; round.number < 4; ++round.number) store.insert(round);
    store.finish_race(race, "complete");
    store.upsert(SelectionRow{.run_id = base.run,
                              .problem_id = base.problem,
                              .trial_id = round.order.front(),
                              .race_id = race});
  });
}

}  // namespace muse::db
