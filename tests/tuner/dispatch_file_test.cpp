// SPDX-License-Identifier: Apache-2.0
// An emitted table read back: the same table, or what is wrong and where.
#include "tuner/dispatch_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/fakes/command.h"

namespace muse::tuner {
namespace {

using nlohmann::json;

std::string golden() {
  return fakes::read_file(std::filesystem::path(MUSE_SOURCE_DIR) /
                          "tests/golden/muse_dispatch.json");
}

std::string error_of(const std::function<void(json&)>& edit) {
  json document = json::parse(golden());
  edit(document);
  const auto file = parse_dispatch_json(document.dump());
  return file ? "nothing is wrong" : file.error();
}

TEST(DispatchFile, ReadsBackWhatEmitWrites) {
  const auto file = parse_dispatch_json(golden());
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(dispatch_json(file->table, file->header_hash), golden());
}

TEST(DispatchFile, NamesThePlaceOfWhatIsWrong) {
  const std::pair<std::function<void(json&)>, std::string> cases[] = {
      {[](json& d) { d["entries"][1]["median_ns"] = "fast"; },
       "entries[1].median_ns: a number is expected, not string"},
      {[](json& d) { d["entries"][1]["median_ns"] = 0; },
       "entries[1].median_ns: a time above zero is expected"},
      {[](json& d) {
         d["entries"][0]["interval_ns"] = {2, 1};
       },
       "entries[0].interval_ns: it is no interval"},
      {[](json& d) { d["entries"][0]["interval_ns"] = {2}; },
       "entries[0].interval_ns: it is no interval"},
      {[](json& d) { d["entries"][0].erase("pipeline"); }, "entries[0]: no 'pipeline' in it"},
      {[](json& d) { d["entries"][0]["colour"] = 1; },
       "entries[0]: 'colour' is no key of this version"},
      {[](json& d) { d["entries"][0]["key"]["batch"] = 7; },
       "entries[0].key.batch: it is not that of the row's shape"},
      {[](json& d) { d["entries"][0]["shape"] = "b0"; }, "entries[0].shape: "},
      {[](json& d) { d["entries"] = json::array(); }, "entries: a table has one entry at least"},
      {[](json& d) { d["captured"][0]["shapes"] = json::array(); },
       "captured[0].shapes: a row is chosen for one shape at least"},
      {[](json& d) { d["axes"]["batch"] = "linear"; },
       "axes.batch: an axis is a weight or \"exact\""},
      {[](json& d) { d["device"]["host"] = 1; }, "device.host: true or false is expected"},
      {[](json& d) { d["max_distance"] = -1; }, "max_distance: a distance of zero or more"},
      {[](json& d) { d["version"] = 2; }, "version: this muse-tune reads 1 alone"},
      {[](json& d) { d["format"] = 2; }, "format: this muse-tune reads 3 alone"},
      {[](json& d) { d["entries"][0]["losses_pct"]["4"] = 1; },
       "entries[0].losses_pct: '4' is no place in the list of pipelines"},
      {[](json& d) { d["entries"][0]["losses_pct"]["01"] = 1; },
       "entries[0].losses_pct: '01' is no place"},
      {[](json& d) { d["entries"][0]["losses_pct"]["-1"] = 1; },
       "entries[0].losses_pct: '-1' is no place"},
      {[](json& d) { d["entries"][0]["losses_pct"]["0"] = 655.35; },
       "entries[0].losses_pct.0: a loss from 0 to 655.34 percent is expected"},
      {[](json& d) { d["entries"][0]["losses_pct"] = json::array(); },
       "entries[0].losses_pct: an object is expected, not array"},
      {[](json& d) { d["pipelines"].push_back("gate/unheard_of"); },
       "pipelines: they are not the base and then, in order, what the rows name"},
      {[](json& d) { d["generalists"] = json::array(); },
       "generalists: they are not those that no row has chosen"},
      {[](json& d) { d["schema"] = "muse.plan"; }, "this is no table of muse-tune emit"},
      {[](json& d) { d = json::array(); }, "an object is expected, not array"},
  };
  for (const auto& [edit, expected] : cases) {
    const std::string error = error_of(edit);
    EXPECT_NE(error.find(expected), std::string::npos) << expected << " not in: " << error;
  }
}

TEST(DispatchFile, ANumberBeyondAllIsNoNumber) {
  std::string text = golden();
  const std::string before = "\"max_distance\": ";
  text.insert(text.find(before) + before.size(), "1e999");
  const auto file = parse_dispatch_json(text);
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().find("larger than any"), std::string::npos) << file.error();
}

TEST(DispatchFile, SaysThatADamagedFileIsDamaged) {
  const std::string text = golden();
  for (const size_t length : {size_t{0}, text.size() / 2, text.size() - 3}) {
    const auto file = parse_dispatch_json(text.substr(0, length));
    ASSERT_FALSE(file);
    EXPECT_NE(file.error().find("damaged"), std::string::npos) << file.error();
  }
}

}  // namespace
}  // namespace muse::tuner
