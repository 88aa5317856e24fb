// SPDX-License-Identifier: Apache-2.0
// What supervisor and worker say to each other: length-prefixed JSON over a socket pair, and the
// progress page both map.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tuner/validate.h"

namespace muse::tuner {

/// Shared memory: where the worker is. Written by the worker before each launch, read by the
/// supervisor for the deadline and, after a fault, for the culprit.
struct Progress {
  std::atomic<uint64_t> beat{0};        ///< rises with every step; stands still in a hang
  std::atomic<int32_t> entrant{-1};     ///< index in the request, -1 = none
  std::atomic<int32_t> candidate{-1};   ///< within the entrant's chain
  std::atomic<int32_t> launch{-1};
  std::atomic<int32_t> reference{0};    ///< 1: host reference work, no deadline
};

/// An entrant as the worker needs it.
struct EntrantText {
  std::string chain;   ///< chain key to time
  std::string feeder;  ///< chain key run untimed before it; empty where the chain starts at prepare
};

struct Hello {
  int64_t pid = 0;
  DeviceClass device_class;
  profiler::DeviceInstance device_instance;
  double step_ns = 0;
  std::string protocol;  ///< Backend::protocol()
};

struct ValidateRequest {
  std::string shape, chain;
  uint64_t seed = 1;
};

struct RoundRequest {
  std::string shape;
  uint64_t seed = 1;  ///< of the inputs
  std::string regime;
  std::vector<EntrantText> entrants;
  std::vector<int> order;  ///< indices into entrants, sentinel included
};

struct RoundReply {
  struct One {
    double span_ns = 0;
    std::string rejected;         ///< the sample was no good
    std::string outcome, reason;  ///< not empty: a TrialError's
  };
  std::vector<One> samples;  ///< one per entry of order
  double cpu_mhz = -1, load = -1;
};

}  // namespace muse::tuner
