// SPDX-License-Identifier: Apache-2.0
// The canonical key of a shape, written and read. Numbers go through to_chars and from_chars, which
// know no locale; doubles are fixed and shortest, so that 500000 is not written 5e+05.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <type_traits>

#include "variants/lengths.h"

namespace muse {
namespace {

std::string text_of(double value) {
  char buffer[400];  // the longest fixed double: 5e-324 and its kin
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  return std::string(buffer, end.ptr);
}

std::string profile_part(const Lengths& lengths) {
  std::string part(name(lengths.profile));
  switch (lengths.profile) {
    case Profile::kUniform:
      return part;
    case Profile::kLognormal:
      return part + text_of(lengths.sigma);
    case Profile::kOutlier:
      return part + std::to_string(lengths.rest);
    case Profile::kList:
      for (size_t i = 0; i < lengths.list.size(); ++i) {
        part += fmt::format("{}{}", i == 0 ? "" : ".", lengths.list[i]);
      }
      return part;
  }
  return part;
}

// The parts of the key in order. `capacity`: whether max_context is written.
std::vector<std::string> parts_of(const Shape& shape, bool capacity) {
  const Problem& p = shape.problem;
  const Lengths& l = shape.lengths;
  const Problem defaults;
  std::vector<std::string> parts = {
      fmt::format("b{}", p.batch),
      fmt::format("l{}", p.q_len),
      fmt::format("h{}x{}", p.num_q_heads, p.num_kv_heads),
      fmt::format("d{}", p.head_dim),
      fmt::format("ps{}", p.page_size),
      fmt::format("w{}", p.window),
      "rope" + text_of(p.rope_theta),
      "kv" + text_of(p.kv_scale),
      fmt::format("t{}", l.context),
      profile_part(l),
      std::string(name(l.page_order)),
      fmt::format("s{}", l.seed),
  };
  if (p.qk_scale_factor != defaults.qk_scale_factor) {
    parts.push_back("qk" + text_of(p.qk_scale_factor));
  }
  if (p.sm_scale != defaults.sm_scale) parts.push_back("sm" + text_of(p.sm_scale));
  if (l.pool_bytes != kDefaultPoolBytes) parts.push_back(fmt::format("pool{}", l.pool_bytes));
  if (capacity) parts.push_back(fmt::format("cap{}", p.max_context));
  return parts;
}

// Whole text or nothing; no sign and no space in front.
template <class Number>
bool read_number(std::string_view text, Number& value) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return false;
  const char* end = text.data() + text.size();
  const auto result = [&] {
    if constexpr (std::is_floating_point_v<Number>) {
      return std::from_chars(text.data(), end, value, std::chars_format::fixed);
    } else {
      return std::from_chars(text.data(), end, value);
    }
  }();
  return result.ec == std::errc() && result.ptr == end;
}

bool read_list(std::string_view text, Lengths& lengths) {
  while (true) {
    const size_t dot = text.find('.');
    int64_t value = 0;
    if (!read_number(text.substr(0, dot), value)) return false;
    lengths.list.push_back(value);
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

bool read_profile(std::string_view text, Lengths& lengths) {
  for (Profile profile :
       {Profile::kUniform, Profile::kLognormal, Profile::kOutlier, Profile::kList}) {
    if (!text.starts_with(name(profile))) continue;
    lengths.profile = profile;
    text.remove_prefix(name(profile).size());
    switch (profile) {
      case Profile::kUniform:
        return text.empty();
      case Profile::kLognormal:
        return read_number(text, lengths.sigma);
      case Profile::kOutlier:
        return read_number(text, lengths.rest);
      case Profile::kList:
        return read_list(text, lengths);
    }
  }
  return false;
}

bool read_page_order(std::string_view text, Lengths& lengths) {
  for (PageOrder order :
       {PageOrder::kContiguous, PageOrder::kReversed, PageOrder::kRandom, PageOrder::kStrideB}) {
    if (text != name(order)) continue;
    lengths.page_order = order;
    return true;
  }
  return false;
}

// Takes a key apart from the left; the first part that does not fit is the error.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  template <class Number>
  void number(std::string_view prefix, std::string_view form, Number& value) {
    const std::string_view part = take();
    const bool fits = part.starts_with(prefix) && read_number(part.substr(prefix.size()), value);
    if (!fits) fail(part, form);
  }

  /// For the parts that are written only where they differ from the default.
  template <class Number>
  bool optional_number(std::string_view prefix, std::string_view form, Number& value) {
    if (!rest_.starts_with(prefix)) return false;
    number(prefix, form, value);
    return true;
  }

  void heads(Problem& problem) {
    const std::string_view part = take();
    const size_t x = part.find('x');
    const bool fits = part.starts_with("h") && x != std::string_view::npos &&
                      read_number(part.substr(1, x - 1), problem.num_q_heads) &&
                      read_number(part.substr(x + 1), problem.num_kv_heads);
    if (!fits) fail(part, "h<query heads>x<kv heads>");
  }

  void profile(Lengths& lengths) {
    const std::string_view part = take();
    if (!read_profile(part, lengths)) {
      fail(part, "uniform, lognormal<sigma>, outlier<rest> or list<context>.<context>...");
    }
  }

  void page_order(Lengths& lengths) {
    // The only part with an underscore of its own.
    const std::string_view stride_b = name(PageOrder::kStrideB);
    const std::string_view part = rest_.starts_with(stride_b) ? take(stride_b.size()) : take();
    if (!read_page_order(part, lengths)) fail(part, "contiguous, reversed, random or stride_b");
  }

  void end() {
    if (!ended_) fail(rest_, "nothing more");
  }

  const std::string& error() const { return error_; }

 private:
  std::string_view take(size_t from = 0) {
    const size_t end = rest_.find('_', from);
    const std::string_view part = rest_.substr(0, end);
    ended_ = end == std::string_view::npos;
    rest_.remove_prefix(ended_ ? rest_.size() : end + 1);
    return part;
  }

  void fail(std::string_view part, std::string_view form) {
    if (error_.empty()) error_ = fmt::format("part '{}' does not fit; expected {}", part, form);
  }

  std::string_view rest_;
  bool ended_ = false;
  std::string error_;
};

// Reads everything but what key() leaves out; true where the capacity was written.
bool read_parts(Reader& reader, Shape& shape) {
  Problem& p = shape.problem;
  Lengths& l = shape.lengths;
  reader.number("b", "b<batch>", p.batch);
  reader.number("l", "l<q_len>", p.q_len);
  reader.heads(p);
  reader.number("d", "d<head_dim>", p.head_dim);
  reader.number("ps", "ps<page_size>", p.page_size);
  reader.number("w", "w<window>", p.window);
  reader.number("rope", "rope<theta>", p.rope_theta);
  reader.number("kv", "kv<scale>", p.kv_scale);
  reader.number("t", "t<context>", l.context);
  reader.profile(l);
  reader.page_order(l);
  reader.number("s", "s<seed>", l.seed);
  reader.optional_number("qk", "qk<qk_scale_factor>", p.qk_scale_factor);
  reader.optional_number("sm", "sm<sm_scale>", p.sm_scale);
  reader.optional_number("pool", "pool<bytes>", l.pool_bytes);
  const bool capacity = reader.optional_number("cap", "cap<max_context>", p.max_context);
  reader.end();
  return capacity;
}

std::string_view take_part(std::string_view& text) {
  const std::string_view part = text.substr(0, text.find('_'));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

std::string_view letters_of(std::string_view part) {
  return part.substr(0, part.find_first_of("0123456789"));
}

// A second way of writing a number (ps01, kv1.0) or a part that only repeats a default. Both texts
// have the same parts in the same order, but for those that the canonical one leaves out.
std::string canonical_error(std::string_view text, std::string_view canonical) {
  while (!text.empty()) {
    const std::string_view wrong = take_part(text);
    const std::string_view right = take_part(canonical);
    if (wrong == right) continue;
    if (letters_of(wrong) != letters_of(right)) {
      return fmt::format("part '{}' repeats a default; leave it out", wrong);
    }
    return fmt::format("part '{}' is written '{}'", wrong, right);
  }
  return {};
}

}  // namespace

std::string key(const Shape& shape) {
  const bool capacity = shape.problem.max_context != default_max_context(shape);
  return fmt::format("{}", fmt::join(parts_of(shape, capacity), "_"));
}

tl::expected<Shape, std::string> parse_shape(std::string_view text) {
  const auto fail = [&](std::string_view reason) {
    return tl::unexpected(fmt::format("shape '{}': {}", text, reason));
  };
  Shape shape;
  Reader reader(text);
  const bool capacity = read_parts(reader, shape);
  if (!reader.error().empty()) return fail(reader.error());
  std::string error = check_all_but_capacity(shape);
  if (!error.empty()) return fail(error);
  if (!capacity) shape.problem.max_context = default_max_context(shape);
  error = check(shape);
  if (error.empty()) error = canonical_error(text, key(shape));
  if (!error.empty()) return fail(error);
  return shape;
}

}  // namespace muse
