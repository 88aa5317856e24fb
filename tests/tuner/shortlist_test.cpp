// SPDX-License-Identifier: Apache-2.0
// Which of the composed pipelines race.
#include "tuner/shortlist.h"

#include <gmock/gmock.h>

#include "tests/tuner/fake_registry.h"

namespace muse::tuner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Stages {
  Variant prepare = fake::prepare("prepare/fake");
  Variant attention = fake::attention(
      "attention/fake", {{.name = "splits", .values = {1, 8, 16}, .default_value = 8}});
  Variant combine = fake::combine("combine/fake");
  Variant gate = fake::gate("gate/fake");

  Candidate attending(int64_t splits) const { return {&attention, {{"splits", splits}}}; }
};

Shortlist shortlist(const Stages& stages) {
  Shortlist list;
  list.add({&stages.prepare, {}}, {}, 10);
  list.add(stages.attending(1), {}, 300);
  for (const int64_t splits : {8, 16}) {
    const Candidate attending = stages.attending(splits);
    list.add(attending, {}, 100.0 + static_cast<double>(splits));
    list.add({&stages.combine, {}}, attending.variant->produces({}, attending.configuration), 20);
  }
  list.add({&stages.gate, {}}, {}, 5);
  return list;
}

TEST(Shortlist, ComposesThePipelinesOfLeastSumFirst) {
  const Stages stages;
  const std::vector<Composed> ranked = shortlist(stages).pipelines({});
  ASSERT_EQ(ranked.size(), 3U);
  EXPECT_EQ(key(ranked[0].chain),
            "prepare/fake + attention/fake:splits=8 + combine/fake + gate/fake");
  EXPECT_EQ(ranked[0].stage_sum_ns, 10 + 108 + 20 + 5);
  EXPECT_EQ(ranked[1].stage_sum_ns, 10 + 116 + 20 + 5);
  EXPECT_EQ(key(ranked[2].chain), "prepare/fake + attention/fake:splits=1 + gate/fake");
}

std::vector<std::string> keys(const std::vector<Chain>& chains) {
  std::vector<std::string> keys;
  for (const Chain& chain : chains) keys.push_back(key(chain));
  return keys;
}

TEST(Shortlist, AttentionsTakeTurnsAndEachBringsItsBestComposition) {
  const Stages stages;
  const Variant other = fake::gate("gate/other");
  Shortlist list = shortlist(stages);
  list.add({&other, {}}, {}, 6);  // with splits=8 still ahead of anything with splits=16
  EXPECT_THAT(keys(worth_racing(list.pipelines({}), 4)),
              ElementsAre("prepare/fake + attention/fake:splits=8 + combine/fake + gate/fake",
                          "prepare/fake + attention/fake:splits=16 + combine/fake + gate/fake",
                          "prepare/fake + attention/fake:splits=1 + gate/fake",
                          "prepare/fake + attention/fake:splits=8 + combine/fake + gate/other"));
}

TEST(Shortlist, NothingComposedIsNothingToRace) {
  EXPECT_THAT(worth_racing(Shortlist().pipelines({}), 4), IsEmpty());
}

}  // namespace
}  // namespace muse::tuner
