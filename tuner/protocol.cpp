// SPDX-License-Identifier: Apache-2.0
// JSON for the messages between supervisor and worker. The reader trusts nothing: the other side
// may be a process whose memory a candidate has overwritten.
#include "tuner/protocol.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace muse::tuner {
namespace {

using Json = nlohmann::json;

/// Caught in decode(): never leaves this file.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number(const Json& json, const char* key) {
  if (json.is_number()) return json.get<double>();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  throw Malformed(fmt::format("'{}' is no number", key));
}

const Json& member(const Json& json, const char* key) {
  if (!json.is_object()) throw Malformed(fmt::format("no object where '{}' should be", key));
  const auto found = json.find(key);
  if (found == json.end()) throw Malformed(fmt::format("'{}' is missing", key));
  return *found;
}

double read_number(const Json& json, const char* key) { return number(member(json, key), key); }

const std::string& read_text(const Json& json, const char* key) {
  const Json& value = member(json, key);
  if (!value.is_string()) throw Malformed(fmt::format("'{}' is no text", key));
  return value.get_ref<const std::string&>();
}

bool read_flag(const Json& json, const char* key) {
  const Json& value = member(json, key);
  if (!value.is_boolean()) throw Malformed(fmt::format("'{}' is no flag", key));
  return value.get<bool>();
}

const Json& read_list(const Json& json, const char* key) {
  const Json& value = member(json, key);
  if (!value.is_array()) throw Malformed(fmt::format("'{}' is no list", key));
  return value;
}

/// Integers outside Int are malformed, never cut.
template <class Int>
Int integer(const Json& value, const char* key) {
  if (value.is_number_unsigned()) {
    const uint64_t wide = value.get<uint64_t>();
    if (wide <= static_cast<uint64_t>(std::numeric_limits<Int>::max())) {
      return static_cast<Int>(wide);
    }
  } else if (value.is_number_integer()) {  // negative
    const int64_t wide = value.get<int64_t>();
    if (std::is_signed_v<Int> && wide >= static_cast<int64_t>(std::numeric_limits<Int>::min())) {
      return static_cast<Int>(wide);
    }
  }
  throw Malformed(fmt::format("'{}' is no integer in range", key));
}

template <class Int>
Int read_integer(const Json& json, const char* key) {
  return integer<Int>(member(json, key), key);
}

/// The enumerator of that name.
template <class Enum>
Enum read_name(const Json& json, const char* key, std::initializer_list<Enum> all) {
  const std::string& text = read_text(json, key);
  for (const Enum one : all) {
    if (name(one) == text) return one;
  }
  throw Malformed(fmt::format("'{}' is no {}", plain_text(text), key));
}

Json to_json(const HelloRequest&) { return {{"kind", "hello"}}; }
Json to_json(const CanaryRequest&) { return {{"kind", "canary"}}; }
Json to_json(const QuitRequest&) { return {{"kind", "quit"}}; }

Json to_json(const ValidateRequest& request) {
  return {{"kind", "validate"},
          {"shape", request.shape},
          {"chain", request.chain},
          {"seed", request.seed}};
}

ValidateRequest read_validate(const Json& json) {
  return {.shape = read_text(json, "shape"),
          .chain = read_text(json, "chain"),
          .seed = read_integer<uint64_t>(json, "seed")};
}

Json to_json(const EntrantText& entrant) {
  return {{"chain", entrant.chain}, {"feeder", entrant.feeder}};
}

EntrantText read_entrant(const Json& json) {
  return {read_text(json, "chain"), read_text(json, "feeder")};
}

Json to_json(const RoundRequest& request) {
  Json entrants = Json::array();
  for (const EntrantText& entrant : request.entrants) entrants.push_back(to_json(entrant));
  return {{"kind", "round"},
          {"shape", request.shape},
          {"seed", request.seed},
          {"regime", request.regime},
          {"entrants", entrants},
          {"orders", request.orders},
          {"one_by_one", request.one_by_one},
          {"placements", request.placements},
          {"first_round", request.first_round}};
}

RoundRequest read_round(const Json& json) {
  RoundRequest request{.shape = read_text(json, "shape"),
                       .seed = read_integer<uint64_t>(json, "seed"),
                       .regime = read_text(json, "regime"),
                       .entrants = {},
                       .orders = {},
                       .one_by_one = read_flag(json, "one_by_one"),
                       .placements = read_integer<int>(json, "placements"),
                       .first_round = read_integer<int>(json, "first_round")};
  if (request.placements < 1 || request.placements > kMostPlacements || request.first_round < 0) {
    throw Malformed("'placements' or 'first_round' is out of range");
  }
  for (const Json& one : read_list(json, "entrants")) {
    request.entrants.push_back(read_entrant(one));
  }
  for (const Json& round : read_list(json, "orders")) {
    if (!round.is_array()) throw Malformed("'orders' holds something that is no list");
    std::vector<int>& order = request.orders.emplace_back();
    for (const Json& one : round) {
      const int index = integer<int>(one, "orders");
      if (index < 0 || index >= static_cast<int>(request.entrants.size())) {
        throw Malformed(
            fmt::format("'orders' names entrant {} of {}", index, request.entrants.size()));
      }
      order.push_back(index);
    }
  }
  return request;
}

Json to_json(const RevalidateRequest& request) {
  return {{"kind", "revalidate"},
          {"shape", request.shape},
          {"seed", request.seed},
          {"entrant", to_json(request.entrant)},
          {"other_seed", request.other_seed}};
}

RevalidateRequest read_revalidate(const Json& json) {
  return {.shape = read_text(json, "shape"),
          .seed = read_integer<uint64_t>(json, "seed"),
          .entrant = read_entrant(member(json, "entrant")),
          .other_seed = read_integer<uint64_t>(json, "other_seed")};
}

Json to_json(const Hello& hello) {
  const DeviceClass& device = hello.device_class;
  const profiler::DeviceInstance& instance = hello.device_instance;
  return {{"kind", "hello"},
          {"pid", hello.pid},
          {"step_ns", number(hello.step_ns)},
          {"limits",
           {{"dram_bytes_per_s", number(hello.limits.dram_bytes_per_s)},
            {"sm_clock_hz", number(hello.limits.sm_clock_hz)},
            {"launch_floor_ns", number(hello.limits.launch_floor_ns)}}},
          {"protocol", hello.protocol},
          {"toolkit", hello.toolkit},
          {"device_class",
           {{"model", device.model},
            {"host", device.host},
            {"cc", device.cc},
            {"sm_count", device.sm_count},
            {"memory_bytes", device.memory_bytes},
            {"l2_bytes", device.l2_bytes},
            {"smem_per_block_bytes", device.smem_per_block_bytes},
            {"driver_version", device.driver_version},
            {"isa", device.isa}}},
          {"device_instance",
           {{"kind", instance.kind},
            {"uuid", instance.uuid},
            {"name", instance.name},
            {"driver", instance.driver},
            {"clock_policy", instance.clock_policy}}}};
}

Hello read_hello(const Json& json) {
  const Json& device = member(json, "device_class");
  const Json& instance = member(json, "device_instance");
  const Json& limits = member(json, "limits");
  return {.pid = read_integer<int64_t>(json, "pid"),
          .device_class = {.model = read_text(device, "model"),
                           .host = read_flag(device, "host"),
                           .cc = read_integer<int>(device, "cc"),
                           .sm_count = read_integer<int>(device, "sm_count"),
                           .memory_bytes = read_integer<int64_t>(device, "memory_bytes"),
                           .l2_bytes = read_integer<int64_t>(device, "l2_bytes"),
                           .smem_per_block_bytes =
                               read_integer<int64_t>(device, "smem_per_block_bytes"),
                           .driver_version = read_integer<int>(device, "driver_version"),
                           .isa = read_text(device, "isa")},
          .device_instance = {.kind = read_text(instance, "kind"),
                              .uuid = read_text(instance, "uuid"),
                              .name = read_text(instance, "name"),
                              .driver = read_text(instance, "driver"),
                              .clock_policy = read_text(instance, "clock_policy")},
          .step_ns = read_number(json, "step_ns"),
          .limits = {.dram_bytes_per_s = read_number(limits, "dram_bytes_per_s"),
                     .sm_clock_hz = read_number(limits, "sm_clock_hz"),
                     .launch_floor_ns = read_number(limits, "launch_floor_ns")},
          .protocol = read_text(json, "protocol"),
          .toolkit = read_text(json, "toolkit")};
}

Json to_json(const GateResult& result) {
  Json metrics = Json::object();
  for (const auto& [key, value] : result.metrics) metrics[key] = number(value);
  Json failure;
  if (result.failure) {
    failure = {
        {"buffer", result.failure->buffer},       {"index", result.failure->index},
        {"got", number(result.failure->got)},     {"expected", number(result.failure->expected)},
        {"limit", number(result.failure->limit)}, {"what", result.failure->what}};
  }
  return {{"gate", name(result.gate)},
          {"fill", name(result.fill)},
          {"passed", result.passed},
          {"metrics", metrics},
          {"failure", failure}};
}

GateResult read_gate(const Json& json) {
  GateResult result{.gate = read_name(json, "gate",
                                      {Gate::kPoison, Gate::kPrepare, Gate::kAttention, Gate::kGate,
                                       Gate::kEndToEnd}),
                    .fill = read_name(json, "fill", {Fill::kNormal, Fill::kFlat, Fill::kMeanOne}),
                    .passed = read_flag(json, "passed"),
                    .metrics = {},
                    .failure = {}};
  const Json& metrics = member(json, "metrics");
  if (!metrics.is_object()) throw Malformed("'metrics' is no object");
  for (const auto& [key, value] : metrics.items()) {
    result.metrics[key] = number(value, "metrics");
  }
  const Json& failure = member(json, "failure");
  if (failure.is_null()) return result;
  result.failure = GateFailure{.buffer = read_text(failure, "buffer"),
                               .index = read_integer<int64_t>(failure, "index"),
                               .got = read_number(failure, "got"),
                               .expected = read_number(failure, "expected"),
                               .limit = read_number(failure, "limit"),
                               .what = read_text(failure, "what")};
  return result;
}

Outcome read_outcome(const Json& json) {
  const std::string& text = read_text(json, "outcome");
  const std::optional<Outcome> outcome = parse_outcome(text);
  if (!outcome) throw Malformed(fmt::format("'{}' is no outcome", plain_text(text)));
  return *outcome;
}

Json to_json(const ValidationReport& report) {
  Json gates = Json::array();
  for (const GateResult& gate : report.gates) gates.push_back(to_json(gate));
  return {{"kind", "validation"},
          {"outcome", name(report.outcome)},
          {"reason", report.reason},
          {"gates", gates}};
}

ValidationReport read_report(const Json& json) {
  ValidationReport report{
      .outcome = read_outcome(json), .reason = read_text(json, "reason"), .gates = {}};
  for (const Json& gate : read_list(json, "gates")) report.gates.push_back(read_gate(gate));
  return report;
}

/// A good sample is its time alone: a reply holds thousands.
Json to_json(const RoundReply::One& one) {
  if (one.rejected.empty() && one.outcome.empty()) return number(one.span_ns);
  return {{"span_ns", number(one.span_ns)},
          {"rejected", one.rejected},
          {"outcome", one.outcome},
          {"reason", one.reason}};
}

RoundReply::One read_sample(const Json& json) {
  if (!json.is_object()) return {.span_ns = number(json, "samples")};
  RoundReply::One sample{.span_ns = read_number(json, "span_ns"),
                         .rejected = read_text(json, "rejected"),
                         .outcome = read_text(json, "outcome"),
                         .reason = read_text(json, "reason")};
  if (!sample.outcome.empty()) read_outcome(json);  // refuses an unknown word
  return sample;
}

Json to_json(const profiler::ClockReading& clock) {
  return {{"cpu_mhz", number(clock.cpu_mhz)}, {"load", number(clock.load)},
          {"sm_mhz", number(clock.sm_mhz)},   {"memory_mhz", number(clock.memory_mhz)},
          {"power_w", number(clock.power_w)}, {"temperature_c", number(clock.temperature_c)},
          {"reason_bits", clock.reason_bits}};
}

profiler::ClockReading read_clock(const Json& clock) {
  return {.cpu_mhz = read_number(clock, "cpu_mhz"),
          .load = read_number(clock, "load"),
          .sm_mhz = read_number(clock, "sm_mhz"),
          .memory_mhz = read_number(clock, "memory_mhz"),
          .power_w = read_number(clock, "power_w"),
          .temperature_c = read_number(clock, "temperature_c"),
          .reason_bits = read_integer<int64_t>(clock, "reason_bits")};
}

Json to_json(const RoundReply& reply) {
  Json rounds = Json::array();
  for (const RoundReply::Round& round : reply.rounds) {
    Json samples = Json::array();
    for (const RoundReply::One& one : round.samples) samples.push_back(to_json(one));
    rounds.push_back({{"samples", samples}, {"clock", to_json(round.clock)}});
  }
  return {{"kind", "round"},
          {"rounds", rounds},
          {"rounds_s", number(reply.rounds_s)},
          {"device_ns", number(reply.device_ns)}};
}

RoundReply read_round_reply(const Json& json) {
  RoundReply reply{.rounds = {},
                   .rounds_s = read_number(json, "rounds_s"),
                   .device_ns = read_number(json, "device_ns")};
  for (const Json& one : read_list(json, "rounds")) {
    RoundReply::Round& round = reply.rounds.emplace_back();
    round.clock = read_clock(member(one, "clock"));
    for (const Json& sample : read_list(one, "samples")) {
      round.samples.push_back(read_sample(sample));
    }
  }
  return reply;
}

Json to_json(const Refusal& refusal) {
  return {{"kind", "refusal"},
          {"reason", refusal.reason},
          {"what", refusal.what},
          {"code", refusal.code}};
}

template <class Message>
std::string encode_message(const Message& message) {
  const Json json = std::visit([](const auto& one) { return to_json(one); }, message);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Request read_request(const Json& json) {
  const std::string& kind = read_text(json, "kind");
  if (kind == "hello") return HelloRequest{};
  if (kind == "canary") return CanaryRequest{};
  if (kind == "validate") return read_validate(json);
  if (kind == "round") return read_round(json);
  if (kind == "revalidate") return read_revalidate(json);
  if (kind == "quit") return QuitRequest{};
  throw Malformed(fmt::format("unknown request '{}'", plain_text(kind)));
}

Reply read_reply(const Json& json) {
  const std::string& kind = read_text(json, "kind");
  if (kind == "hello") return read_hello(json);
  if (kind == "validation") return read_report(json);
  if (kind == "round") return read_round_reply(json);
  if (kind == "refusal")
    return Refusal{.reason = read_text(json, "reason"),
                   .what = read_text(json, "what"),
                   .code = read_integer<int>(json, "code")};
  throw Malformed(fmt::format("unknown reply '{}'", plain_text(kind)));
}

template <class Message>
tl::expected<Message, std::string> decode(std::string_view text, Message (*read)(const Json&)) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return tl::unexpected(std::string("text that is no JSON"));
  try {
    return read(json);
  } catch (const Malformed& fault) {
    return tl::unexpected(std::string(fault.what()));
  }
}

/// Length of the UTF-8 sequence at `at` that is no control character, 0 where there is none.
size_t sequence(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0;
  };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return lead == '\n' || (lead >= 0x20 && lead != 0x7F) ? 1 : 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    // U+0080 to U+009F are controls too.
    return tail(1) && !(lead == 0xC2 && byte(1) < 0xA0) ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = lead == 0xED && byte(1) > 0x9F;
    return tail(1) && tail(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool outside = (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
    return tail(1) && tail(2) && tail(3) && !outside ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string encode(const Request& request) { return encode_message(request); }
std::string encode(const Reply& reply) { return encode_message(reply); }

tl::expected<Request, std::string> decode_request(std::string_view text) {
  return decode<Request>(text, read_request);
}

tl::expected<Reply, std::string> decode_reply(std::string_view text) {
  return decode<Reply>(text, read_reply);
}

std::string frame(std::string_view text) {
  if (text.size() > kMessageLimit) {
    throw std::length_error(
        fmt::format("message of {} bytes, limit {}", text.size(), kMessageLimit));
  }
  std::string bytes;
  bytes.reserve(text.size() + 4);
  for (int shift = 0; shift < 32; shift += 8) {
    bytes.push_back(static_cast<char>((text.size() >> shift) & 0xFF));
  }
  return bytes.append(text);
}

tl::expected<std::optional<std::string>, std::string> MessageBuffer::next() {
  if (bytes_.size() < 4) return std::optional<std::string>();
  size_t length = 0;
  for (int i = 0; i < 4; ++i) length |= size_t{static_cast<uint8_t>(bytes_[i])} << (8 * i);
  if (length > kMessageLimit) {
    return tl::unexpected(fmt::format("a message of {} bytes, limit {}", length, kMessageLimit));
  }
  if (bytes_.size() < 4 + length) return std::optional<std::string>();
  std::optional<std::string> message(bytes_.substr(4, length));
  bytes_.erase(0, 4 + length);
  return message;
}

std::string plain_text(std::string_view text) {
  std::string clean;
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence(text, at);
    if (length > 0) {
      clean.append(text, at, length);
      at += length;
      continue;
    }
    if (static_cast<uint8_t>(text[at]) >= 0x80) clean += '?';
    ++at;
  }
  return clean;
}

}  // namespace muse::tuner
