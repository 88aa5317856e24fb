// SPDX-License-Identifier: Apache-2.0
// The work behind floors and ceilings.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "profiler/ceilings.h"
#include "profiler/device_error.h"
#include "profiler/device_kernels.h"
#include "profiler/statistics.h"

namespace muse::profiler {
namespace {

constexpr int64_t kPoolBytes = int64_t{1} << 30;
constexpr int64_t kRowBytes = 128;
constexpr int64_t kPoolRows = kPoolBytes / 2 / kRowBytes;  ///< of K, and as many of V
constexpr int64_t kSinkBytes = 16;
constexpr int kLinks = 4;
constexpr double kLinkUs = 3;

double sm_cycles_per_us() {
  int device = 0, khz = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device), "cudaDeviceGetAttribute");
  return khz / 1e3;
}

}  // namespace

std::string_view name(PageOrder order) {
  switch (order) {
    case PageOrder::kContiguous:
      return "contiguous";
    case PageOrder::kStrideB:
      return "stride_b";
    case PageOrder::kRandom:
      return "random";
  }
  return "";
}

std::vector<int32_t> page_table(const GatherShape& shape, int64_t pool_rows) {
  const int64_t rows = shape.batch * shape.tokens;
  if (rows > pool_rows) throw std::invalid_argument("page_table: more rows than the pool has");
  std::vector<int32_t> table(static_cast<size_t>(rows));
  switch (shape.order) {
    case PageOrder::kContiguous:
      std::iota(table.begin(), table.end(), 0);
      break;
    case PageOrder::kStrideB:
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t request = i / shape.tokens, token = i % shape.tokens;
        table[static_cast<size_t>(i)] = static_cast<int32_t>(token * shape.batch + request);
      }
      break;
    case PageOrder::kRandom: {
      std::vector<int32_t> pages(static_cast<size_t>(pool_rows));
      std::iota(pages.begin(), pages.end(), 0);
      SplitMix random(1);
      for (size_t i = 0; i < table.size(); ++i) {
        std::swap(pages[i], pages[i + random.below(pages.size() - i)]);
        table[i] = pages[i];
      }
      break;
    }
  }
  return table;
}

CeilingWork::CeilingWork(CUstream_st* stream)
    : stream_(stream),
      cache_(stream),
      pool_(kPoolBytes + kSinkBytes),
      table_(kPoolRows * static_cast<int64_t>(sizeof(int32_t))),
      cycles_per_us_(sm_cycles_per_us()) {
  launch_write(stream, pool_.data(), kPoolBytes);
}

int64_t CeilingWork::cycles(double us) const { return static_cast<int64_t>(us * cycles_per_us_); }

uint32_t* CeilingWork::sink() const { return pool_.as<uint32_t>(kPoolBytes); }

Work CeilingWork::null_kernel() {
  Work work = bare_null_kernel();
  work.before = [this] { cache_.flush(); };
  return work;
}

Work CeilingWork::bare_null_kernel() {
  return {.before = [] {},
          .run = [this] { launch_null(stream_); },
          .kernels = {symbol(OwnKernel::kNull)}};
}

Work CeilingWork::spin(double us) {
  return {.before = [this] { cache_.flush(); },
          .run = [this, us] { launch_spin(stream_, cycles(us)); },
          .kernels = {symbol(OwnKernel::kSpin)}};
}

Work CeilingWork::read(int64_t bytes) { return read_after(bytes, Before::kRead); }

Work CeilingWork::read_after(int64_t bytes, Before before) {
  if (bytes > kPoolBytes / 2) throw std::invalid_argument("read: more than half the pool");
  // What is written is never what is read, and more than fits into the L2.
  const auto prepare = [this, before] {
    if (before != Before::kRead) {
      launch_write(stream_, pool_.data() + kPoolBytes / 2, cache_.bytes());
    }
    if (before != Before::kWrite) cache_.flush();
  };
  return {.before = prepare,
          .run = [this, bytes] { launch_read(stream_, pool_.data(), bytes, sink()); },
          .kernels = {symbol(OwnKernel::kRead)}};
}

Work CeilingWork::copy(int64_t bytes) {
  if (bytes > kPoolBytes) throw std::invalid_argument("copy: more than the pool");
  return {.before = [this] { cache_.flush(); },
          .run =
              [this, bytes] {
                launch_copy(stream_, pool_.data() + kPoolBytes / 2, pool_.data(), bytes / 2);
              },
          .kernels = {symbol(OwnKernel::kCopy)}};
}

Work CeilingWork::gather(const GatherShape& shape) {
  const std::vector<int32_t> table = page_table(shape, kPoolRows);
  check_cuda(cudaMemcpyAsync(table_.data(), table.data(), table.size() * sizeof(int32_t),
                             cudaMemcpyHostToDevice, stream_),
             "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  const GatherArgs args{.k_pool = pool_.data(),
                        .v_pool = pool_.data() + kPoolBytes / 2,
                        .table = table_.as<int32_t>(),
                        .rows = static_cast<int64_t>(table.size()),
                        .row_bytes = shape.row_bytes,
                        .sink = sink()};
  const OwnKernel kernel =
      shape.row_bytes == kRowBytes ? OwnKernel::kGather128 : OwnKernel::kGather64;
  return {.before = [this] { cache_.flush(); },
          .run = [this, args] { launch_gather(stream_, args); },
          .kernels = {symbol(kernel)}};
}

Work CeilingWork::null_graph(int kernels, bool programmatic) {
  // Shared, because a std::function must be copyable.
  const auto graph = std::make_shared<CapturedGraph>(stream_, [&] {
    for (int i = 0; i < kernels; ++i) launch_null(stream_, programmatic && i > 0);
  });
  return {
      .before = [this] { cache_.flush(); },
      .run = [graph] { graph->launch(); },
      .kernels = std::vector<std::string>(static_cast<size_t>(kernels), symbol(OwnKernel::kNull))};
}

Work CeilingWork::chains(int copies) {
  const auto graph = std::make_shared<CapturedGraph>(stream_, [&] {
    for (int i = 0; i < copies * kLinks; ++i) {
      launch_link(stream_, cycles(kLinkUs), i % kLinks != 0);
    }
  });
  return {.before = [this] { cache_.flush(); },
          .run = [graph] { graph->launch(); },
          .kernels = std::vector<std::string>(static_cast<size_t>(copies * kLinks),
                                              symbol(OwnKernel::kLink))};
}

}  // namespace muse::profiler
