// SPDX-License-Identifier: Apache-2.0
// muse-simt: one candidate or chain through the five gates on the emulator. For authors of kernels.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/simt/kernel_table.h"
#include "tests/simt/shapes.h"
#include "tests/simt/simt_backend.h"
#include "tuner/validate.h"
#include "variants/registry.h"

namespace muse::simt {
namespace {

constexpr const char* kUsage =
    "usage: muse-simt                      lists the candidates compiled for the emulator\n"
    "       muse-simt CHAIN [SHAPE...]     validates; without a shape on all small ones\n"
    "CHAIN: keys joined by ' + ', or a glob over compiled candidates ('attention/mma*')\n"
    "SHAPE: as muse-tune prints it, e.g. b2_l1_h16x2_d64_ps1_w0_rope0_kv1_t65_uniform_random_s1,\n"
    "       or with a length for each request ..._t255_list2.32.255_random_s1\n";

std::vector<std::string> compiled_candidates() {
  std::vector<std::string> keys;
  for (const CompiledKernel& kernel : compiled_kernels()) {
    if (keys.empty() || keys.back() != kernel.candidate) keys.emplace_back(kernel.candidate);
  }
  return keys;
}

std::vector<Chain> chains(const std::string& text) {
  std::vector<Chain> found;
  for (const std::string& key : compiled_candidates()) {
    if (glob_match(text, key)) found.push_back(Registry::global().parse_chain(key).value());
  }
  if (!found.empty()) return found;
  const auto chain = Registry::global().parse_chain(text);
  if (!chain) throw std::invalid_argument(chain.error());
  return {*chain};
}

bool validate_and_print(tuner::Backend& backend, const Chain& chain, const Shape& shape) {
  const auto start = std::chrono::steady_clock::now();
  const tuner::ValidationReport report = tuner::validate(backend, chain, shape, {});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("{:<13} {}\n              {}  {:.2f} s\n", tuner::name(report.outcome), key(chain),
             key(shape), seconds.count());
  if (!report.reason.empty()) fmt::print("    {}\n", report.reason);
  if (report.outcome != tuner::Outcome::kIncorrect) {
    return report.outcome == tuner::Outcome::kOk || report.outcome == tuner::Outcome::kUnsupported;
  }
  for (const tuner::GateResult& gate : report.gates) {
    fmt::print("    {:<10} {:<8} {}", tuner::name(gate.gate), tuner::name(gate.fill),
               gate.passed ? "passed" : "FAILED");
    for (const auto& [metric, value] : gate.metrics) fmt::print(" {}={:.4g}", metric, value);
    fmt::print("\n");
  }
  return false;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    for (const std::string& key : compiled_candidates()) fmt::print("{}\n", key);
    return 0;
  }
  if (arguments.front().starts_with("-")) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::vector<Shape> shapes;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const auto shape = parse_shape(arguments[i]);
    if (!shape) throw std::invalid_argument(shape.error());
    shapes.push_back(*shape);
  }
  if (shapes.empty()) shapes = small_shapes();
  const auto threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const std::unique_ptr<tuner::Backend> backend = make_simt_backend(threads);
  int wrong = 0;
  for (const Chain& chain : chains(arguments.front())) {
    for (const Shape& shape : shapes) {
      if (!validate_and_print(*backend, chain, shape)) ++wrong;
    }
  }
  if (wrong > 0) fmt::print("{} failed\n", wrong);
  return wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace muse::simt

int main(int argc, char** argv) {
  try {
    return muse::simt::run({argv + 1, argv + argc});
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "muse-simt: %s\n%s", error.what(), muse::simt::kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "muse-simt: %s\n", error.what());
    return 1;
  }
}
