// SPDX-License-Identifier: Apache-2.0
// `defaults` and `shapes`: grids, and their product in a fixed order.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "tuner/shape_kind.h"
#include "tuner/spec_reader.h"

namespace muse::tuner {
namespace {

constexpr size_t kMaxShapes = 10'000;
constexpr size_t kMaxListed = 10'000;
constexpr IntegerRange kPoolBytes{0, int64_t{1} << 40};
constexpr IntegerRange kTokens{1, kMaxContextTokens};
constexpr NumberRange kScale{1e-9, 1e9};

struct IntegerField {
  int64_t& (*at)(Shape&);
  IntegerRange range;
  bool size = false;  ///< KiB, MiB, ... allowed
};
struct NumberField {
  double& (*at)(Shape&);
  NumberRange range;
};
struct PageOrderField {};

/// A key that takes one value, or in `shapes` a list of them.
struct Field {
  std::string_view name;
  bool in_defaults;
  std::variant<IntegerField, NumberField, PageOrderField> type;
};

template <auto kMember>
auto& of_problem(Shape& shape) {
  return shape.problem.*kMember;
}
template <auto kMember>
auto& of_lengths(Shape& shape) {
  return shape.lengths.*kMember;
}

/// In the order of the product: the first varies slowest.
const std::vector<Field>& fields() {
  static const std::vector<Field> fields{
      {"batch", false, IntegerField{of_problem<&Problem::batch>, {1, 4096}}},
      {"q_len", false, IntegerField{of_problem<&Problem::q_len>, {1, 64}}},
      {"num_q_heads", true, IntegerField{of_problem<&Problem::num_q_heads>, {1, 1024}}},
      {"num_kv_heads", true, IntegerField{of_problem<&Problem::num_kv_heads>, {1, 1024}}},
      {"head_dim", true, IntegerField{of_problem<&Problem::head_dim>, {8, 1024}}},
      {"page_size", true, IntegerField{of_problem<&Problem::page_size>, {1, 1024}}},
      {"window", true, IntegerField{of_problem<&Problem::window>, {0, kMaxContextTokens}}},
      {"rope_theta", true, NumberField{of_problem<&Problem::rope_theta>, {0, 1e12}}},
      {"qk_scale_factor", true, NumberField{of_problem<&Problem::qk_scale_factor>, kScale}},
      {"sm_scale", true, NumberField{of_problem<&Problem::sm_scale>, kScale}},
      {"kv_scale", true, NumberField{of_problem<&Problem::kv_scale>, kScale}},
      {"context", false, IntegerField{of_lengths<&Lengths::context>, kTokens}},
      {"max_context", true, IntegerField{of_problem<&Problem::max_context>, kTokens}},
      {"page_order", true, PageOrderField{}},
      {"pool_bytes", true, IntegerField{of_lengths<&Lengths::pool_bytes>, kPoolBytes, true}},
  };
  return fields;
}

const std::array<std::pair<std::string_view, PageOrder>, 4> kPageOrders{{
    {"contiguous", PageOrder::kContiguous},
    {"reversed", PageOrder::kReversed},
    {"random", PageOrder::kRandom},
    {"stride_b", PageOrder::kStrideB},
}};

const std::array<std::pair<std::string_view, RaceAmong>, 2> kRaces{{
    {"all", RaceAmong::kAll},
    {"siblings", RaceAmong::kSiblings},
}};

using Setter = std::function<void(Shape&)>;

/// The values of one field; `listed`: a list is allowed. Empty where anything was wrong.
template <class Read, class Set>
std::vector<Setter> read_setters(const YamlNode& node, std::string_view what, bool listed,
                                 DiagnosticLog& log, Read read, Set set) {
  std::vector<Setter> setters;
  if (listed && node.kind == NodeKind::kList) {
    for (const auto& value : read_list(node, what, kMaxListed, log, read))
      setters.push_back([set, value](Shape& shape) { set(shape, value); });
  } else if (const auto value = read(node)) {
    setters.push_back([set, value = *value](Shape& shape) { set(shape, value); });
  }
  return setters;
}

struct SetterReader {
  const YamlNode& node;
  std::string_view name;
  bool listed;
  DiagnosticLog& log;

  std::vector<Setter> operator()(const IntegerField& field) const {
    return read_setters(
        node, name, listed, log,
        [&](const YamlNode& item) {
          return read_value(item, name, log, [&](std::string_view text) {
            return field.size ? parse_size(text, field.range) : parse_integer(text, field.range);
          });
        },
        [at = field.at](Shape& shape, int64_t value) { at(shape) = value; });
  }
  std::vector<Setter> operator()(const NumberField& field) const {
    return read_setters(
        node, name, listed, log,
        [&](const YamlNode& item) { return read_number(item, name, field.range, log); },
        [at = field.at](Shape& shape, double value) { at(shape) = value; });
  }
  std::vector<Setter> operator()(const PageOrderField&) const {
    return read_setters(
        node, name, listed, log,
        [&](const YamlNode& item) {
          return read_choice<PageOrder>(item, "page order", kPageOrders, log);
        },
        [](Shape& shape, PageOrder value) { shape.lengths.page_order = value; });
  }
};

Shape read_defaults(const YamlNode* node, DiagnosticLog& log) {
  Shape shape;
  if (!node) return shape;
  const Section section(*node, Level::kDefaults, log);
  for (const Field& field : fields()) {
    const YamlNode* value = field.in_defaults ? section.find(field.name) : nullptr;
    if (!value) continue;
    for (const Setter& set : std::visit(SetterReader{*value, field.name, false, log}, field.type))
      set(shape);
  }
  return shape;
}

/// Where the field that a reason of muse::check() names first is written; else the entry.
Mark mark_of_reason(const YamlNode& entry, const std::string& reason) {
  std::vector<std::pair<std::string, Mark>> words;
  for (const YamlKey& key : entry.keys) words.emplace_back(key.text, key.mark);
  if (const YamlNode* lengths = entry.find("lengths"))
    for (const YamlKey& key : lengths->keys)
      words.emplace_back(key.text == "values" ? "list"
                         : key.text == "mean" ? "context"
                                              : key.text,
                         key.mark);
  const auto is_part = [&](size_t i) {
    return i < reason.size() &&
           (std::isalnum(static_cast<unsigned char>(reason[i])) != 0 || reason[i] == '_');
  };
  Mark mark = entry.mark;
  size_t first = reason.npos;
  for (const auto& [word, where] : words)
    for (size_t at = reason.find(word); at < first; at = reason.find(word, at + 1))
      if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) {
        first = at;
        mark = where;
      }
  return mark;
}

/// Fills in the capacity. Returns why the shape is none, or an empty text.
std::string complete(Shape& shape) {
  if (const std::string reason = check_all_but_capacity(shape); !reason.empty()) return reason;
  if (shape.problem.max_context == 0) shape.problem.max_context = default_max_context(shape);
  return check(shape);
}

/// Reads the entries one after the other and keeps each shape once.
class Expander {
 public:
  Expander(const Shape& defaults, DiagnosticLog& log) : defaults_(defaults), log_(log) {}

  void add(const YamlNode& entry) {
    const Section section(entry, Level::kShape, log_);
    if (entry.kind != NodeKind::kMap) return;
    ShapeEntry first{.shape = defaults_, .mark = entry.mark};
    read_length_keys(section, first.shape.lengths);
    if (const YamlNode* value = section.find("weight"))
      first.weight = read_number(*value, "weight", {0, 1e6, true}, log_).value_or(1);
    if (const YamlNode* value = section.find("race")) {
      first.race_mark = value->mark;
      first.race = read_choice<RaceAmong>(*value, "race", kRaces, log_).value_or(RaceAmong::kAll);
    }
    const bool batched = section.require("batch") != nullptr;
    const bool stepped = section.require("q_len") != nullptr;
    const auto grid = read_grid(section);
    if (!grid || !batched || !stepped || broken_) return;
    expand(entry, *grid, first);
  }

  std::vector<ShapeEntry> take() { return std::move(entries_); }

 private:
  using Grid = std::vector<std::vector<Setter>>;

  void read_length_keys(const Section& section, Lengths& lengths) {
    broken_ = false;
    const YamlNode* given = section.find("lengths");
    const bool context = section.find("context") != nullptr;
    if (given && context) {
      log_.error(section.key_mark("lengths"),
                 "'lengths' and 'context' exclude each other; give one of them");
      broken_ = true;
    } else if (given) {
      const size_t before = log_.size();
      read_lengths(*given, lengths, log_);
      broken_ = log_.size() > before;
    } else if (!context) {
      log_.error(section.mark(), "an entry of shapes lacks the key 'context' (or 'lengths')");
      broken_ = true;
    }
  }

  std::optional<Grid> read_grid(const Section& section) {
    Grid grid;
    bool whole = true;
    for (const Field& field : fields()) {
      const YamlNode* value = section.find(field.name);
      if (!value) continue;
      grid.push_back(std::visit(SetterReader{*value, field.name, true, log_}, field.type));
      whole = whole && !grid.back().empty();
    }
    if (!whole) return std::nullopt;
    return grid;
  }

  void expand(const YamlNode& entry, const Grid& grid, const ShapeEntry& first) {
    size_t count = 1;
    for (const auto& values : grid)
      if (__builtin_mul_overflow(count, values.size(), &count)) count = SIZE_MAX;
    if (count > kMaxShapes - expanded_) {
      log_.error(entry.mark, fmt::format("this grid makes it more than {} shapes; split the config",
                                         kMaxShapes));
      return;
    }
    expanded_ += count;
    for (size_t number = 0; number < count; ++number) {
      ShapeEntry one = first;
      size_t rest = number;
      for (auto values = grid.rbegin(); values != grid.rend(); ++values) {
        (*values)[rest % values->size()](one.shape);
        rest /= values->size();
      }
      keep(entry, std::move(one));
    }
  }

  void keep(const YamlNode& entry, ShapeEntry one) {
    if (const std::string reason = complete(one.shape); !reason.empty()) {
      log_.error(mark_of_reason(entry, reason), reason);
      return;
    }
    const auto [first, fresh] = seen_.emplace(key(one.shape), entry.mark);
    if (fresh) {
      entries_.push_back(std::move(one));
    } else {
      log_.error(entry.mark, fmt::format("shape {} is given at {}:{} already", first->first,
                                         first->second.line, first->second.column));
    }
  }

  const Shape& defaults_;
  DiagnosticLog& log_;
  bool broken_ = false;  ///< of the entry at hand
  size_t expanded_ = 0;
  std::vector<ShapeEntry> entries_;
  std::map<std::string, Mark> seen_;
};

/// Tells of each entry and kind of shape once.
void check_siblings(const std::vector<ShapeEntry>& entries, DiagnosticLog& log) {
  std::set<std::tuple<int, int, ShapeKind>> told;
  for (const ShapeEntry& one : without_siblings(entries)) {
    if (!told.emplace(one.race_mark.line, one.race_mark.column, kind(one.shape)).second) continue;
    log.error(one.race_mark,
              fmt::format("race: siblings, but no shape with race: all has the structure and q_len "
                          "of {}; add one, or leave race out here",
                          key(one.shape)));
  }
}

}  // namespace

std::vector<ShapeEntry> without_siblings(const std::vector<ShapeEntry>& entries) {
  std::set<ShapeKind> kinds;
  for (const ShapeEntry& entry : entries)
    if (entry.race == RaceAmong::kAll) kinds.insert(kind(entry.shape));
  std::vector<ShapeEntry> alone;
  for (const ShapeEntry& entry : entries)
    if (entry.race == RaceAmong::kSiblings && !kinds.contains(kind(entry.shape)))
      alone.push_back(entry);
  return alone;
}

std::vector<ShapeEntry> read_shapes(const YamlNode* defaults, const YamlNode& shapes,
                                    DiagnosticLog& log) {
  const Shape base = read_defaults(defaults, log);
  if (!expect(shapes, NodeKind::kList, "shapes", log)) return {};
  if (shapes.items.empty()) log.error(shapes.mark, "shapes: the list is empty");
  Expander expander(base, log);
  const size_t before = log.size();
  for (const YamlNode& entry : shapes.items) expander.add(entry);
  std::vector<ShapeEntry> entries = expander.take();
  if (log.size() == before) check_siblings(entries, log);  // a faulty entry may be what lacks
  return entries;
}

}  // namespace muse::tuner
