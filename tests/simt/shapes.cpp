// SPDX-License-Identifier: Apache-2.0
// Dealing the dimensions of small shapes.
#include "tests/simt/shapes.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>

namespace muse::simt {
namespace {

constexpr int kShapes = 48;

/// Deals values so that each has come once before any comes again.
template <class T>
class Deck {
 public:
  Deck(uint64_t seed, std::vector<T> values) : random_(seed), values_(std::move(values)) {}
  T next() {
    if (dealt_ % values_.size() == 0) {
      for (size_t i = values_.size(); i > 1; --i) {
        std::swap(values_[i - 1], values_[random_() % i]);
      }
    }
    return values_[dealt_++ % values_.size()];
  }

 private:
  std::mt19937_64 random_;
  std::vector<T> values_;
  size_t dealt_ = 0;
};

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Where the edges of tiles, splits and windows lie; at least q_len.
int64_t edge(int64_t pick, int64_t q_len, int64_t window) {
  if (pick == 0) return q_len;                                            // nothing cached
  if (pick < 0 && window > 0) return std::max(q_len, window - 2 - pick);  // -1..-3
  return std::max(q_len, pick < 0 ? 31 - pick : pick);
}

}  // namespace

std::vector<Shape> small_shapes() {
  Deck<int64_t> batch(1, {1, 2, 3}), q_len(2, {1, 2, 3, 5, 8, 8, 1}), page_size(3, {1, 16, 64}),
      window(4, {0, 1, 2, 128, 0}), seed(5, {1, 2, 3});
  Deck<int64_t> pick(6, {0, -1, -2, -3, 63, 64, 65, 129, 200, 257, -1, -3, 15, 300});
  Deck<std::pair<int64_t, int64_t>> heads(7, {{16, 2}, {8, 1}, {16, 4}, {4, 4}, {16, 2}});
  Deck<double> rope(8, {0, 500000}), scale(9, {1, 1.3, 0.523809493, 1});
  Deck<PageOrder> order(
      10, {PageOrder::kContiguous, PageOrder::kReversed, PageOrder::kRandom, PageOrder::kStrideB});
  Deck<int> ragged(11, {0, 1}), roomy(12, {0, 0, 1});
  std::vector<Shape> shapes;
  for (int i = 0; i < kShapes; ++i) {
    Shape shape;
    Problem& p = shape.problem;
    p.batch = batch.next();
    p.q_len = q_len.next();
    std::tie(p.num_q_heads, p.num_kv_heads) = heads.next();
    p.page_size = page_size.next();
    p.window = window.next();
    p.rope_theta = rope.next();
    p.kv_scale = scale.next();
    Lengths& lengths = shape.lengths;
    lengths.page_order = order.next();
    lengths.seed = static_cast<uint64_t>(seed.next());
    if (ragged.next() != 0) {
      lengths.profile = Profile::kList;
      for (int64_t b = 0; b < p.batch; ++b) {
        lengths.list.push_back(edge(pick.next(), p.q_len, p.window));
      }
      lengths.context = *std::max_element(lengths.list.begin(), lengths.list.end());
    } else {
      lengths.context = edge(pick.next(), p.q_len, p.window);
    }
    p.max_context = round_up(lengths.context + (roomy.next() != 0 ? 700 : 0), p.page_size);
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

Shape long_window_shape() {
  Shape shape;
  shape.problem.q_len = 2;
  shape.problem.window = 2048;
  shape.problem.rope_theta = 500000;
  shape.lengths.context = 2053;
  shape.problem.max_context = 2100;
  return shape;
}

Shape odd_heads_shape() {
  Shape shape;
  shape.problem.num_q_heads = 12;
  shape.problem.num_kv_heads = 3;
  shape.lengths.context = 900;
  shape.problem.max_context = 900;
  return shape;
}

}  // namespace muse::simt
