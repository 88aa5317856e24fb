// SPDX-License-Identifier: Apache-2.0
// The gates against kernels with planted faults, on a target whose memory is not the host's own:
// each is caught by the gate that should catch it.
#include "tests/fakes/wrong_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "tests/fakes/misbehaving/emulated/wrong_kernels_table.h"
#include "tests/fakes/planted_faults.h"
#include "tests/simt/simt_backend.h"
#include "tuner/validate.h"
#include "variants/registry.h"

namespace muse {
namespace {

using tuner::Outcome;

tuner::Backend& emulator() {
  static const std::unique_ptr<tuner::Backend> backend =
      simt::make_simt_backend(1, fakes::emulated_wrong_kernels());
  return *backend;
}

tuner::ValidationReport judge(const std::string& text, const Shape& shape) {
  return tuner::validate(emulator(), Registry::global().parse_chain(text).value(), shape, {});
}

TEST(WrongKernels, AreAllTold) {
  std::set<std::string> told;
  for (const fakes::WrongKernel& kernel : fakes::wrong_kernels()) told.insert(kernel.candidate);
  for (const std::string& right : fakes::right_kernels()) told.insert(right);
  for (const simt::CompiledKernel& kernel : fakes::emulated_wrong_kernels()) {
    EXPECT_TRUE(told.contains(kernel.candidate)) << kernel.candidate;
  }
}

TEST(WrongKernels, AreRightWithoutAFault) {
  for (const std::string& chain : fakes::right_kernels()) {
    for (const int64_t page_size : {1, 16}) {
      const tuner::ValidationReport report = judge(chain, fakes::fault_shape(page_size));
      EXPECT_EQ(report.outcome, Outcome::kOk) << chain << ": " << report.reason;
    }
  }
}

class WrongKernel : public testing::TestWithParam<fakes::WrongKernel> {};

TEST_P(WrongKernel, IsCaughtByItsGate) {
  const fakes::WrongKernel& wrong = GetParam();
  const tuner::ValidationReport report = judge(wrong.candidate, wrong.shape);
  ASSERT_EQ(report.outcome, Outcome::kIncorrect) << wrong.kind << ": " << report.reason;
  const auto failed = std::find_if(report.gates.begin(), report.gates.end(),
                                   [](const tuner::GateResult& gate) { return !gate.passed; });
  ASSERT_NE(failed, report.gates.end()) << wrong.kind;
  EXPECT_EQ(tuner::name(failed->gate), tuner::name(wrong.gate))
      << wrong.kind << ": " << report.reason;
  const std::string& buffer = failed->failure->buffer;
  EXPECT_EQ(buffer.substr(0, buffer.find('@')), wrong.buffer)
      << wrong.kind << ": " << report.reason;
}

INSTANTIATE_TEST_SUITE_P(Faults, WrongKernel, testing::ValuesIn(fakes::wrong_kernels()));

// A bench serves one candidate after the other, right ones and wrong ones in any order.
TEST(WrongKernels, LeaveNothingBehindForTheNextOne) {
  const Shape shape = fakes::fault_shape();
  tuner::ValidationBench bench(emulator(), shape, 1);
  const auto outcome = [&](const std::string& text) {
    return tuner::validate(bench, Registry::global().parse_chain(text).value(), {}).outcome;
  };
  for (const fakes::WrongKernel& wrong : fakes::wrong_kernels()) {
    if (!(wrong.shape == shape)) continue;
    EXPECT_EQ(outcome(wrong.candidate), Outcome::kIncorrect) << wrong.kind;
  }
  for (const std::string& chain : fakes::right_kernels()) {
    EXPECT_EQ(outcome(chain), Outcome::kOk) << chain;
  }
}

}  // namespace
}  // namespace muse
