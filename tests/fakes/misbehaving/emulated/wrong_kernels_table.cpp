// SPDX-License-Identifier: Apache-2.0
// Every kernel of wrong_step.cuh with each of its faults, compiled for the emulator.
#include "tests/fakes/misbehaving/emulated/wrong_kernels_table.h"

#include <deque>
#include <string>

#include "tests/fakes/misbehaving/variants/attention/fake_planted.cuh"
#include "tests/fakes/misbehaving/variants/combine/fake_planted.cuh"
#include "tests/fakes/misbehaving/variants/gate/fake_planted.cuh"
#include "tests/fakes/misbehaving/variants/prepare/fake_planted.cuh"

namespace muse::fakes {
namespace {

template <int kValue>
struct With {
  static constexpr int fault = kValue;
};

/// A key that lives on.
const char* key_of(const char* stage, int fault) {
  static std::deque<std::string> keys;
  return keys.emplace_back(std::string(stage) + "/fake_planted:fault=" + std::to_string(fault))
      .c_str();
}

template <int... kValues>
void add_prepare(std::vector<simt::CompiledKernel>& table, WrongList<kValues...>) {
  (table.push_back({key_of("prepare", kValues), "prepare",
                    simt::KernelOf<&prepare_fake_planted::prepare<With<kValues>>>::kernel()}),
   ...);
}
template <int... kValues>
void add_attention(std::vector<simt::CompiledKernel>& table, WrongList<kValues...>) {
  (table.push_back({key_of("attention", kValues), "attend",
                    simt::KernelOf<&attention_fake_planted::attend<With<kValues>>>::kernel()}),
   ...);
}
template <int... kValues>
void add_combine(std::vector<simt::CompiledKernel>& table, WrongList<kValues...>) {
  (table.push_back({key_of("combine", kValues), "combine",
                    simt::KernelOf<&combine_fake_planted::combine<With<kValues>>>::kernel()}),
   ...);
}
template <int... kValues>
void add_gate(std::vector<simt::CompiledKernel>& table, WrongList<kValues...>) {
  (table.push_back({key_of("gate", kValues), "gate",
                    simt::KernelOf<&gate_fake_planted::gate<With<kValues>>>::kernel()}),
   ...);
}

}  // namespace

const std::vector<simt::CompiledKernel>& emulated_wrong_kernels() {
  static const std::vector<simt::CompiledKernel> kernels = [] {
    std::vector<simt::CompiledKernel> table;
    add_prepare(table, PrepareFaults{});
    add_attention(table, AttentionFaults{});
    add_combine(table, CombineFaults{});
    add_gate(table, GateFaults{});
    return table;
  }();
  return kernels;
}

}  // namespace muse::fakes
