// SPDX-License-Identifier: Apache-2.0
// Reads the table of the other pipeline's times.
#include "tests/bench/seed_figures.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <sstream>
#include <stdexcept>

namespace muse::bench {
namespace {

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> found;
  std::istringstream text(line);
  for (std::string cell; std::getline(text, cell, ',');) found.push_back(cell);
  return found;
}

/// One line of the table by the names of its columns.
class Row {
 public:
  Row(const std::vector<std::string>& names, const std::string& line, int number)
      : number_(number) {
    const std::vector<std::string> values = cells(line);
    if (values.size() != names.size()) fail(fmt::format("{} cells", values.size()));
    for (size_t i = 0; i < names.size(); ++i) cells_[names[i]] = values[i];
  }
  template <class T>
  T number(const std::string& column) const {
    const auto cell = cells_.find(column);
    if (cell == cells_.end()) fail("no column " + column);
    const std::string& text = cell->second;
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
      fail(fmt::format("{} is '{}', no number", column, text));
    }
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(fmt::format("line {}: {}", number_, what));
  }
  std::map<std::string, std::string> cells_;
  int number_;
};

}  // namespace

std::vector<SeedFigure> parse_seed_figures(const std::string& csv) {
  std::istringstream text(csv);
  std::string line;
  std::getline(text, line);
  const std::vector<std::string> names = cells(line);
  std::vector<SeedFigure> figures;
  for (int number = 2; std::getline(text, line); ++number) {
    const Row row(names, line, number);
    figures.push_back({.batch = row.number<int64_t>("B"),
                       .q_len = row.number<int64_t>("L"),
                       .window = row.number<int64_t>("window"),
                       .context = row.number<int64_t>("ctx"),
                       .page_size = row.number<int64_t>("page_size"),
                       .total_us = row.number<double>("total_us")});
  }
  if (figures.empty()) throw std::runtime_error("line 1: no row below it");
  return figures;
}

std::optional<double> seed_us(const std::vector<SeedFigure>& figures, const Shape& shape) {
  const Problem& p = shape.problem;
  if (shape.lengths.profile != Profile::kUniform ||
      shape.lengths.page_order != PageOrder::kRandom) {
    return std::nullopt;
  }
  for (const SeedFigure& figure : figures) {
    if (figure.batch == p.batch && figure.q_len == p.q_len && figure.window == p.window &&
        figure.context == shape.lengths.context && figure.page_size == p.page_size) {
      return figure.total_us;
    }
  }
  return std::nullopt;
}

}  // namespace muse::bench
