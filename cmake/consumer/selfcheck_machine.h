// SPDX-License-Identifier: Apache-2.0
// Where muse_selfcheck runs a step: memory and a clock of the table's target. selfcheck_host.cpp or
// selfcheck_cuda.cu defines these. C++17; a failure throws std::runtime_error with the reason.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

struct CUstream_st;

namespace selfcheck {

/// Enqueues a step.
using Run = std::function<void(CUstream_st*)>;

/// On a GPU: makes this ordinal the current device.
void choose_device(int device);
/// For reports: how times are taken.
const char* clock_name();
/// How far such a time may be held against that of a sweep in regime cold: a sentence.
const char* comparison();

/// Memory of the target, aligned to 256 bytes.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

void upload(void* target, const void* host, std::size_t bytes);
void download(void* host, const void* target, std::size_t bytes);

/// Runs and waits for the end.
void run_once(const Run& run);
/// So many times of a step that finds nothing in the caches, us. On a GPU of a captured graph.
std::vector<double> times_us(const Run& run, int count);

}  // namespace selfcheck
