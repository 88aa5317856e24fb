// SPDX-License-Identifier: Apache-2.0
// Opening a file: what is refused with which words, what reading leaves alone, migration.
#include "db/open.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <random>

#include "db/file_system.h"
#include "tests/db/support.h"

namespace muse::db {
namespace {

namespace fs = std::filesystem;

/// Every read there is; gives how many cells were seen.
size_t read_everything(const Store& store) {
  size_t cells = store.devices().size();
  for (const std::string& name : store.table_names()) {
    for (const auto& row : store.table(name).rows) cells += row.size();
  }
  for (const RunRow& run : store.runs()) {
    cells += store.run_trials(run.id).size() + store.selections(run.id).size() +
             store.interactions(run.id).size();
    for (const RaceRow& race : store.races(run.id)) cells += store.rounds(race.id).size();
  }
  return cells;
}

constexpr int kNextVersion = kSchemaVersion + 1;
const std::string kFromNewer = "newer muse-tune (schema version " + std::to_string(kNextVersion) +
                               ", this one knows " + std::to_string(kSchemaVersion) + ")";

class OpenTest : public testing::Test {
 protected:
  /// A sound file with some hundred rows.
  void make(const fs::path& file, const std::string& status = "complete") {
    Store store = Store::open(file, Open::kCreate);
    fill(store, status);
  }
  /// Opening fails in each of the ways, names file and fault, and touches nothing.
  void expect_refused(const fs::path& file, const std::string& words,
                      std::vector<Open> ways = {Open::kRead, Open::kWrite, Open::kCreate}) {
    const auto before = listing(folder_.path());
    for (const Open how : ways) {
      const std::string error = error_of([&] { Store::open(file, how); });
      EXPECT_NE(error.find(file.string() + ": "), std::string::npos) << error;
      EXPECT_NE(error.find(words), std::string::npos) << error;
    }
    EXPECT_TRUE(listing(folder_.path()) == before);
  }

  TempFolder folder_;
  fs::path file_ = folder_ / "a.db";
};

using Refused = OpenTest;
using Reading = OpenTest;
using Creation = OpenTest;
using Damage = OpenTest;
using Migrations = OpenTest;

TEST_F(Refused, Missing) {
  expect_refused(file_, "no database there; `muse-tune sweep CONFIG` makes one",
                 {Open::kRead, Open::kWrite});
  expect_refused(folder_ / "none/a.db", "no folder", {Open::kCreate});
  expect_refused(folder_ / "none/a.db", "no database there", {Open::kRead, Open::kWrite});
  write_file(folder_ / "plain", "x");
  expect_refused(folder_ / "plain/a.db", "cannot be reached", {Open::kRead, Open::kWrite});
  EXPECT_NE(error_of([] { Store::open("", Open::kCreate); }), "");
}

TEST_F(Refused, WhatIsNoFile) {
  fs::create_directory(file_);
  expect_refused(file_, "is a folder");
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(pipe, "not a regular file");
  fs::create_symlink("loop", folder_ / "loop");
  expect_refused(folder_ / "loop", "cannot be followed");
}

TEST_F(Refused, Empty) {
  write_file(file_, "");
  expect_refused(file_, "is empty");
}

TEST_F(Refused, WhatIsNoDatabase) {
  for (const std::string& content :
       {std::string("x"), std::string("schema: 1\n"), std::string(5000, '\0'),
        std::string(5000, 'z'), std::string("SQLite format 3"),
        std::string("SQLite format 3\0", 16)}) {
    write_file(file_, content);
    expect_refused(file_, "is not a database of muse-tune");
  }
}

TEST_F(Refused, OfAnotherProgram) {
  {
    Connection other(file_, "other", Connection::Mode::kNew);
    other.execute("CREATE TABLE notes (text)");
  }
  expect_refused(file_, "another program (application_id 0x00000000)");
  {
    Connection other(file_, "other", Connection::Mode::kWrite);
    other.execute("PRAGMA application_id=252006673");
  }
  expect_refused(file_, "another program (application_id 0x0F055111)");
}

TEST_F(Refused, OfAnotherVersion) {
  make(file_);
  Connection(file_, "raw", Connection::Mode::kWrite)
      .execute(("PRAGMA user_version=" + std::to_string(kNextVersion)).c_str());
  expect_refused(file_, kFromNewer);
  Connection(file_, "raw", Connection::Mode::kWrite).execute("PRAGMA user_version=0");
  expect_refused(file_, "damaged (schema version 0)");
}

TEST_F(Refused, SwitchedToWal) {
  make(file_);
  {
    Connection raw(file_, "raw", Connection::Mode::kWrite);
    EXPECT_EQ(raw.value("PRAGMA journal_mode=WAL"), "wal");
  }
  expect_refused(file_, "journal mode WAL");
}

TEST_F(Refused, Truncated) {
  make(file_);
  const auto size = fs::file_size(file_);
  fs::resize_file(file_, size - 4096);
  expect_refused(file_, "damaged");
  fs::resize_file(file_, 4096);
  expect_refused(file_, "damaged");
  fs::resize_file(file_, 99);
  expect_refused(file_, "is not a database");
}

TEST_F(Reading, LeavesFileAndFolderAsTheyWere) {
  make(file_, "running");
  fs::remove(file_.string() + ".lock");
  const auto before = listing(folder_.path());
  ASSERT_EQ(before.size(), 1u);
  {
    const Store store = Store::open(file_, Open::kRead);
    EXPECT_GT(read_everything(store), 1000u);
    EXPECT_EQ(store.integrity(), "");
    EXPECT_TRUE(listing(folder_.path()) == before);
    EXPECT_EQ(store.snapshot().runs().size(), 1u);
  }
  EXPECT_TRUE(listing(folder_.path()) == before);
}

TEST_F(Reading, NeedsNoRightToWrite) {
  make(file_);
  fs::permissions(file_, fs::perms(0444));
  fs::permissions(folder_.path(), fs::perms(0555));
  EXPECT_EQ(in_child([&] {
              drop_root();
              if (read_everything(Store::open(file_, Open::kRead)) < 1000) return 1;
              if (Store::can_be_written(file_)) return 4;
              for (const Open how : {Open::kWrite, Open::kCreate}) {
                const std::string error = error_of([&] { Store::open(file_, how); });
                if (error.find("is read-only") == std::string::npos) return 2;
              }
              const std::string error =
                  error_of([&] { Store::open(folder_ / "new.db", Open::kCreate); });
              return error.find("is read-only") == std::string::npos ? 3 : 0;
            }),
            0);
  fs::permissions(file_, fs::perms(0666));  // the folder is still read-only: no room for a journal
  EXPECT_EQ(in_child([&] {
              drop_root();
              if (Store::can_be_written(file_)) return 2;
              const std::string error = error_of([&] { Store::open(file_, Open::kWrite); });
              return error.find("is read-only") == std::string::npos ? 1 : 0;
            }),
            0);
  fs::permissions(file_, fs::perms(0000));
  EXPECT_EQ(in_child([&] {
              drop_root();
              const std::string error = error_of([&] { Store::open(file_, Open::kRead); });
              return error.find("check the rights") == std::string::npos ? 1 : 0;
            }),
            0);
}

TEST_F(Reading, FollowsLinksAndKeepsRelativeNames) {
  make(file_);
  fs::create_symlink("a.db", folder_ / "link.db");
  EXPECT_TRUE(Store::can_be_written(folder_ / "link.db"));
  EXPECT_FALSE(Store::can_be_written(folder_ / "none.db"));
  Store store = Store::open(folder_ / "link.db", Open::kWrite);
  store.finish_run(1, "complete", "now");
  EXPECT_TRUE(fs::exists(file_.string() + ".lock"));
  EXPECT_FALSE(fs::exists(folder_ / "link.db.lock"));
  const std::string error = error_of([] { Store::open("no/such.db", Open::kRead); });
  EXPECT_EQ(error.find("no/such.db: no database there"), 0u) << error;
}

/// Leaves a transaction half written to the file, as a writer killed in its midst does: more than
/// the page cache holds, so that the journal is already in force.
void leave_hot_journal(const fs::path& file) {
  EXPECT_EQ(in_child([&] {
              Store store = Store::open(file, Open::kWrite);
              store.transaction([&] {
                store.finish_run(1, "never", "never");
                store.insert(RunRow{
                    .device_id = 1, .build_id = 1, .config_text = std::string(8 << 20, 'x')});
                std::raise(SIGKILL);
              });
              return 1;
            }),
            -SIGKILL);
  ASSERT_TRUE(fs::exists(file.string() + "-journal"));
}

TEST_F(Reading, RollsBackWhatAKilledWriterLeft) {
  make(file_);
  leave_hot_journal(file_);
  const Store store = Store::open(file_, Open::kRead);
  EXPECT_EQ(store.run(1)->status, "complete");
  EXPECT_FALSE(fs::exists(file_.string() + "-journal"));
}

TEST_F(Reading, SaysWhyItCannotRollBackOnAReadOnlyPlace) {
  make(file_);
  leave_hot_journal(file_);
  fs::permissions(file_, fs::perms(0444));
  fs::permissions(file_.string() + "-journal", fs::perms(0444));
  fs::permissions(folder_.path(), fs::perms(0555));
  EXPECT_EQ(in_child([&] {
              drop_root();
              const std::string error = error_of([&] { Store::open(file_, Open::kRead); });
              return error.find("killed writer") == std::string::npos ? 1 : 0;
            }),
            0);
  fs::permissions(folder_.path(), fs::perms(0755));
  EXPECT_TRUE(fs::exists(file_.string() + "-journal"));
}

TEST_F(Creation, MakesASoundFileOnceAndOpensItAfterwards) {
  make(file_);
  EXPECT_EQ(Store::open(file_, Open::kCreate).runs().size(), 1u);
  EXPECT_EQ(Store::open(file_, Open::kWrite).integrity(), "");
  EXPECT_EQ(listing(folder_.path()).size(), 2u);  // and the lock file
  Connection raw(file_, "raw", Connection::Mode::kRead);
  EXPECT_EQ(raw.value("PRAGMA application_id"), std::to_string(kApplicationId));
  EXPECT_EQ(raw.value("PRAGMA user_version"), std::to_string(kSchemaVersion));
  EXPECT_EQ(raw.value("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND "
                      "sql NOT LIKE '%STRICT%'"),
            "0");
}

TEST_F(Creation, PutsTheJournalOfALostFileAside) {
  make(file_);
  leave_hot_journal(file_);
  const std::string journal = file_.string() + "-journal";
  const std::string content = read_file(journal);
  fs::remove(file_);
  const Store store = Store::open(file_, Open::kCreate);
  EXPECT_EQ(store.integrity(), "");
  EXPECT_TRUE(store.runs().empty());
  EXPECT_FALSE(fs::exists(journal));
  EXPECT_TRUE(read_file(journal + ".left") == content);
}

TEST_F(Creation, LeavesAWholeFileOrNoneWhenKilled) {
  std::minstd_rand random(1);
  for (int i = 0; i < 40; ++i) {
    const pid_t child = start_child([&] {
      Store::open(file_, Open::kCreate);
      return 0;
    });
    ::usleep(random() % 4000);
    ::kill(child, SIGKILL);
    wait_for(child);
    if (fs::exists(file_)) {
      EXPECT_EQ(Store::open(file_, Open::kRead).integrity(), "");
    }
    EXPECT_EQ(Store::open(file_, Open::kCreate).integrity(), "");
    for (const auto& [name, content] : listing(folder_.path())) {
      EXPECT_TRUE(name == "a.db" || name == "a.db.lock") << name;
    }
    fs::remove(file_);
  }
}

TEST_F(Damage, OfAPageIsFoundByTheCheck) {
  make(file_);
  std::string content = read_file(file_);
  ASSERT_GT(content.size(), 20u * 4096);
  int found = 0, tried = 0;
  for (size_t page = 2; page * 4096 < content.size(); page += 3, ++tried) {
    std::string broken = content;
    broken.replace(page * 4096, 200, 200, '\x5A');
    write_file(file_, broken);
    std::string finding;
    const std::string error =
        error_of([&] { finding = Store::open(file_, Open::kRead).integrity(); });
    if (!finding.empty() || !error.empty()) ++found;
  }
  EXPECT_EQ(found, tried);
}

TEST_F(Damage, IsLookedForAfterARunThatDidNotEnd) {
  make(file_, "running");
  EXPECT_EQ(error_of([&] { Store::open(file_, Open::kRead); }), "");
  {
    Connection raw(file_, "raw", Connection::Mode::kWrite);
    raw.execute("PRAGMA foreign_keys=OFF; DELETE FROM candidate WHERE id = 7");
  }
  expect_refused(file_, "trial row 7 names a missing row of candidate",
                 {Open::kRead, Open::kWrite});
  Connection(file_, "raw", Connection::Mode::kWrite).execute("UPDATE run SET status = 'complete'");
  EXPECT_NE(Store::open(file_, Open::kRead).integrity(), "");
}

TEST_F(Damage, AtRandomIsAnErrorOrACleanRead) {
  make(file_);
  const std::string content = read_file(file_);
  std::mt19937 random(7);
  int errors = 0;
  for (int i = 0; i < 200; ++i) {
    std::string broken = content;
    const int kind = i % 4;
    if (kind == 0) broken.resize(random() % broken.size());
    for (int flips = kind == 0 ? 0 : 1 << (kind * 3); flips > 0; --flips) {
      // Half of them in the first two pages: header and schema.
      const size_t range = random() % 2 == 0 ? 8192 : broken.size();
      broken[random() % range] = static_cast<char>(random());
    }
    write_file(file_, broken);
    const std::string error = error_of([&] {
      const Store store = Store::open(file_, Open::kRead);
      store.integrity();
      read_everything(store);
    });
    if (!error.empty()) ++errors;
    EXPECT_TRUE(read_file(file_) == broken);
  }
  EXPECT_GT(errors, 50);
}

constexpr char kNextStep[] =
    "CREATE TABLE extra (id INTEGER PRIMARY KEY) STRICT; "
    "ALTER TABLE run ADD COLUMN note TEXT NOT NULL DEFAULT 'old'";

/// To a version that is not there yet.
std::vector<Migration> steps_beyond(const char* next = kNextStep) {
  std::vector<Migration> steps(migrations().begin(), migrations().end());
  steps.push_back({kNextVersion, next});
  return steps;
}

TEST_F(Migrations, KeepRowsAndLeaveABackup) {
  make(file_);
  const std::string before = read_file(file_);
  const auto steps = steps_beyond();
  Opened opened = open_checked(file_, Open::kWrite, steps);
  EXPECT_EQ(version(*opened.connection), kNextVersion);
  EXPECT_EQ(opened.connection->value("SELECT note FROM run"), "old");
  EXPECT_EQ(opened.connection->value("SELECT count(*) FROM trial"), "100");
  expect_refused(file_, kFromNewer);
  const Store backup =
      Store::open(file_.string() + ".v" + std::to_string(kSchemaVersion) + ".bak", Open::kRead);
  EXPECT_EQ(backup.run_trials(1).size(), 100u);
  EXPECT_EQ(listing(folder_.path()).size(), 3u);  // file, lock, backup
}

TEST_F(Migrations, HappenInMemoryWhereOnlyReadingWasAsked) {
  make(file_);
  const auto before = listing(folder_.path());
  const auto steps = steps_beyond();
  Opened opened = open_checked(file_, Open::kRead, steps);
  EXPECT_EQ(opened.connection->value("SELECT note FROM run"), "old");
  EXPECT_TRUE(listing(folder_.path()) == before);
}

TEST_F(Migrations, ThatFailLeaveTheFileAsItWas) {
  make(file_);
  const std::string before = read_file(file_);
  for (const char* next : {"CREATE TABLE extra (id INTEGER PRIMARY KEY) STRICT; nonsense",
                           "INSERT INTO run_trial VALUES (77, 77, 0)"}) {
    const auto steps = steps_beyond(next);
    EXPECT_NE(error_of([&] { open_checked(file_, Open::kWrite, steps); }), "");
    EXPECT_TRUE(read_file(file_) == before);
    EXPECT_EQ(Store::open(file_, Open::kWrite).run_trials(1).size(), 100u);
  }
}

TEST_F(Migrations, KilledAtAnyMomentLeaveTheOldFileOrTheNew) {
  make(file_);
  const std::string before = read_file(file_);
  const auto steps = steps_beyond();
  std::minstd_rand random(3);
  for (int i = 0; i < 40; ++i) {
    const pid_t child = start_child([&] {
      open_checked(file_, Open::kWrite, steps);
      return 0;
    });
    ::usleep(random() % 5000);
    ::kill(child, SIGKILL);
    wait_for(child);
    {
      Opened opened = open_checked(file_, Open::kRead, steps);
      EXPECT_EQ(integrity(*opened.connection), "");
      EXPECT_EQ(opened.connection->value("SELECT count(*) FROM trial"), "100");
    }
    fs::remove(file_.string() + "-journal");
    write_file(file_, before);
  }
}

fs::path kept_file(int version) {
  return fs::path(MUSE_SOURCE_DIR) / "tests/golden/db" / ("schema_v" + std::to_string(version));
}

TEST_F(Migrations, OpenTheKeptFileOfEveryVersion) {
  for (int version = 1; version <= kSchemaVersion; ++version) {
    write_file(file_, read_file(kept_file(version)));
    Store store = Store::open(file_, Open::kWrite);
    EXPECT_EQ(store.integrity(), "");
    EXPECT_EQ(store.run_trials(1).size(), 100u);
    EXPECT_GT(read_everything(store), 1000u);
  }
}

TEST_F(Migrations, OfVersion1SayWhatItDidNotKnow) {
  write_file(file_, read_file(kept_file(1)));
  Store store = Store::open(file_, Open::kWrite);
  ASSERT_EQ(store.selections(1).size(), 1u);
  EXPECT_EQ(store.selections(1).front().race_id, 0);
  EXPECT_EQ(store.run(1)->cost, "");
  EXPECT_TRUE(store.interactions(1).empty());
  EXPECT_TRUE(fs::exists(file_.string() + ".v1.bak"));
  SelectionRow known = store.selections(1).front();
  known.race_id = 1;
  store.upsert(known);
  EXPECT_EQ(store.selections(1).front().race_id, 1);
}

// A released version's SQL is never edited: a change is a new version.
TEST_F(Migrations, AKeptFileHasTheTablesOfItsVersion) {
  constexpr char kSchema[] =
      "SELECT group_concat(sql, ';') FROM (SELECT sql FROM sqlite_schema ORDER BY type, name)";
  for (const Migration& step : migrations()) {
    Connection fresh("", "fresh", Connection::Mode::kMemory);
    apply(fresh, migrations().first(static_cast<size_t>(step.version)));
    Connection kept(kept_file(step.version), "kept", Connection::Mode::kRead);
    EXPECT_EQ(fresh.value(kSchema), kept.value(kSchema)) << "schema version " << step.version;
  }
}

// Run with --gtest_also_run_disabled_tests once, when a version is new.
TEST_F(Migrations, DISABLED_WriteTheKeptFileOfThisVersion) {
  make(file_);
  fs::copy_file(file_, kept_file(kSchemaVersion), fs::copy_options::overwrite_existing);
}

}  // namespace
}  // namespace muse::db
