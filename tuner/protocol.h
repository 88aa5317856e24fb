// SPDX-License-Identifier: Apache-2.0
// What supervisor and worker say to each other: length-prefixed JSON over a socket pair, and the
// progress page both map.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <variant>
#include <vector>

#include "tuner/validate.h"

namespace muse::tuner {

/// Shared memory: where the worker is. Written by the worker before each launch, read by the
/// supervisor for the deadline and, after a fault, for the culprit. A hint, not a fact: a candidate
/// that writes at random can write here too.
struct Progress {
  std::atomic<uint64_t> beat{0};       ///< rises with every step; stands still in a hang
  std::atomic<int32_t> entrant{-1};    ///< index in the request, -1 = none
  std::atomic<int32_t> candidate{-1};  ///< within the entrant's chain; -1 = its feeder
  std::atomic<int32_t> launch{-1};     ///< of the candidate; -1 = it is being bound
  std::atomic<int32_t> reference{1};   ///< 1: the host's own work, no candidate runs, no deadline
  std::atomic<int32_t> waiting{0};     ///< 1: another process measures on this device
};

/// An entrant as the worker needs it.
struct EntrantText {
  std::string chain;   ///< chain key to time
  std::string feeder;  ///< chain key run untimed before it; empty where the chain starts at prepare
  bool operator==(const EntrantText&) const = default;
};

struct HelloRequest {
  bool operator==(const HelloRequest&) const = default;
};

/// Asks for the base on a tiny shape, whose answer is known; answered by a ValidationReport.
struct CanaryRequest {
  bool operator==(const CanaryRequest&) const = default;
};

struct QuitRequest {
  bool operator==(const QuitRequest&) const = default;
};

struct ValidateRequest {
  std::string shape, chain;
  uint64_t seed = 1;
  bool operator==(const ValidateRequest&) const = default;
};

inline constexpr int kMostPlacements = 16;

/// Rounds over one set of entrants, run one after the other without leaving the device idle.
struct RoundRequest {
  std::string shape;
  uint64_t seed = 1;  ///< of the inputs
  std::string regime;
  std::vector<EntrantText> entrants;
  /// Of each round: indices into entrants, in the order to run, sentinel included.
  std::vector<std::vector<int>> orders;
  /// Each sample ends before the next begins, so that the progress page names a culprit.
  bool one_by_one = false;
  /// Rounds take turns in so many places in memory, two in a row in each; the first of these is
  /// round `first_round`.
  int placements = 1;
  int first_round = 0;
  bool operator==(const RoundRequest&) const = default;
};

/// Asks whether the entrant, as it was timed (same memory, same graph), is right on other data:
/// answered by a ValidationReport.
struct RevalidateRequest {
  std::string shape;
  uint64_t seed = 1;  ///< of the inputs it was timed with
  EntrantText entrant;
  uint64_t other_seed = 2;  ///< of inputs, lengths and page table that it has not seen
  bool operator==(const RevalidateRequest&) const = default;
};

struct Hello {
  int64_t pid = 0;
  DeviceClass device_class;
  profiler::DeviceInstance device_instance;
  double step_ns = 0;
  DeviceLimits limits;
  std::string protocol;  ///< Backend::protocol()
  std::string toolkit;   ///< Backend::toolkit()
  bool operator==(const Hello&) const = default;
};

struct RoundReply {
  struct One {
    double span_ns = 0;
    std::string rejected;         ///< the sample was no good
    std::string outcome, reason;  ///< not empty: a TrialError's
  };
  struct Round {
    std::vector<One> samples;      ///< one per entry of its order
    profiler::ClockReading clock;  ///< while it ran
  };
  std::vector<Round> rounds;  ///< of the first orders; fewer where the time was up
  double rounds_s = 0;        ///< wall, without waiting for the device and binding
  double device_ns = 0;       ///< what the samples cost the device, with what ran before each
};

/// The request makes no sense to the worker, or its target cannot be had; the worker lives on.
struct Refusal {
  std::string reason;
  std::string what;  ///< "device" or "timer" where a TargetError is behind it, else empty
  int code = 0;      ///< the TargetError's
  bool operator==(const Refusal&) const = default;
};

using Request = std::variant<HelloRequest, CanaryRequest, ValidateRequest, RoundRequest,
                             RevalidateRequest, QuitRequest>;
using Reply = std::variant<Hello, ValidationReport, RoundReply, Refusal>;

/// JSON text. Invalid UTF-8 is replaced; NaN and infinities travel as strings.
std::string encode(const Request& request);
std::string encode(const Reply& reply);
/// Strict inverses; the error says what is missing or of the wrong type.
tl::expected<Request, std::string> decode_request(std::string_view text);
tl::expected<Reply, std::string> decode_reply(std::string_view text);

inline constexpr size_t kMessageLimit = size_t{64} << 20;  ///< bytes of one message

/// The bytes on the socket: length, 4 bytes little endian, then the text. Throws std::length_error
/// above kMessageLimit.
std::string frame(std::string_view text);

/// Cuts a byte stream back into messages.
class MessageBuffer {
 public:
  void feed(std::string_view bytes) { bytes_.append(bytes); }
  /// The next whole message; the error says that the stream cannot be one of messages.
  tl::expected<std::optional<std::string>, std::string> next();
  bool empty() const { return bytes_.empty(); }

 private:
  std::string bytes_;
};

/// The text fit for a terminal and a database: no control bytes but newlines, valid UTF-8.
std::string plain_text(std::string_view text);

}  // namespace muse::tuner
