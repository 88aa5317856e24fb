// SPDX-License-Identifier: Apache-2.0
// How long a lookup takes, beside a hash map of the standard library and a walk over all rows.
#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <unordered_map>
#include <vector>

#include "tests/bench/bench.h"
#include "tests/bench/dispatch_grid.h"
#include "tests/bench/dispatch_table.h"

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

// Counted in the whole program, so that none in a lookup goes unseen. Not inlined: g++ would warn
// of memory that is freed otherwise than it was made.
[[gnu::noinline]] void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace muse::bench {
namespace {

using dispatch::Guard;
using dispatch::Key;

/// Enough that no branch predictor learns them.
constexpr size_t kAsked = 1 << 16;

struct Lookup {
  tuner::DispatchIndex index;
  dispatch::Rules rules;
  std::vector<Key> known;    ///< keys of rows, in random order
  std::vector<Key> unknown;  ///< near some row, equal to none
};

std::vector<Key> shuffled(const std::vector<Key>& keys, bool near) {
  std::mt19937_64 random(1);
  std::vector<Key> asked;
  while (asked.size() < kAsked) {
    Key key = keys[random() % keys.size()];
    if (near) key.context += 1 + static_cast<int64_t>(random() % 9);
    asked.push_back(key);
  }
  return asked;
}

/// Every pipeline was measured on every row.
Lookup lookup_of(std::vector<dispatch::Row> rows) {
  std::vector<Key> keys;
  for (const dispatch::Row& row : rows) keys.push_back(row.key);
  std::vector<tuner::RowLosses> losses(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (uint16_t p = 0; p < kGridPipelines; ++p) {
      losses[i][p] = grid_loss(p, static_cast<int64_t>(i));
    }
  }
  return {tuner::index_rows(std::move(rows), true, std::move(losses)),
          dispatch_grid_table(0, 0).rules, shuffled(keys, false), shuffled(keys, true)};
}

dispatch::Row row_of(const Key& key) {
  dispatch::Row row{};
  row.key = key;
  row.status = row.shape = row.date = "";
  return row;
}

Lookup grid(int64_t batches, int64_t contexts) {
  std::vector<dispatch::Row> rows;
  for (const tuner::DispatchRow& row : dispatch_grid(batches, contexts)) {
    rows.push_back(row_of(tuner::dispatch_key(row.shape, true)));
  }
  return lookup_of(std::move(rows));
}

/// One structure and a batch for each row: nothing but the batch tells them apart.
Lookup batches(int64_t count) {
  std::vector<dispatch::Row> rows;
  for (int64_t batch = 1; batch <= count; ++batch) {
    Key key;
    key.batch = batch;
    key.context = 1000;
    rows.push_back(row_of(key));
  }
  return lookup_of(std::move(rows));
}

struct KeyHash {
  size_t operator()(const Key& k) const {
    size_t hash = 0;
    for (const int64_t value :
         {k.batch, k.q_len, k.num_q_heads, k.num_kv_heads, k.head_dim, k.page_size, k.window,
          int64_t{k.rope}, int64_t{k.scaled}, k.context}) {
      hash ^= std::hash<int64_t>()(value) + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
    }
    return hash;
  }
};
struct KeyEqual {
  bool operator()(const Key& a, const Key& b) const { return dispatch::detail::same(a, b); }
};

/// Times `answer(key)` over the keys in turn; counts what is allocated meanwhile.
template <class Answer>
void ask(benchmark::State& state, const std::vector<Key>& keys, const Answer& answer) {
  size_t i = 0;
  const int64_t before = allocations.load();
  for (auto _ : state) {
    benchmark::DoNotOptimize(answer(keys[i]));
    i = (i + 1) % kAsked;
  }
  state.counters["allocations"] = static_cast<double>(allocations.load() - before);
}

void by_lookup(benchmark::State& state, const Lookup& lookup, const std::vector<Key>& keys) {
  const dispatch::Table table = lookup.index.table();
  ask(state, keys, [&](const Key& key) {
    return dispatch::find(table, lookup.rules, key, Guard::kTuned, dispatch::Anything{}).row;
  });
}

void by_map(benchmark::State& state, const Lookup& lookup) {
  std::unordered_map<Key, const dispatch::Row*, KeyHash, KeyEqual> map;
  for (const dispatch::Row& row : lookup.index.rows) map.emplace(row.key, &row);
  ask(state, lookup.known, [&](const Key& key) { return map.find(key)->second; });
}

/// The exact row, or the nearest.
void by_scan(benchmark::State& state, const Lookup& lookup, const std::vector<Key>& keys) {
  using namespace dispatch::detail;
  ask(state, keys, [&](const Key& key) {
    const int64_t batch = log2_fixed(key.batch), context = log2_fixed(key.context);
    const dispatch::Row* best = nullptr;
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < lookup.index.rows.size(); ++i) {
      const dispatch::Row& row = lookup.index.rows[i];
      if (same(row.key, key)) return &row;
      if (row.key.q_len != key.q_len || compare(structure(row.key), structure(key)) != 0) continue;
      const int64_t distance = std::abs(log2_fixed(row.key.batch) - batch) +
                               std::abs(lookup.index.context_log2[i] - context);
      if (distance < least) {
        least = distance;
        best = &row;
      }
    }
    return best;
  });
}

void register_table(const std::string& name, const std::shared_ptr<const Lookup>& lookup) {
  const auto add = [&](const std::string& what, auto function) {
    benchmark::RegisterBenchmark(("dispatch_lookup/" + what + "/" + name).c_str(), function);
  };
  add("exact", [=](benchmark::State& state) { by_lookup(state, *lookup, lookup->known); });
  add("exact_unordered_map", [=](benchmark::State& state) { by_map(state, *lookup); });
  add("exact_linear_scan",
      [=](benchmark::State& state) { by_scan(state, *lookup, lookup->known); });
  add("near", [=](benchmark::State& state) { by_lookup(state, *lookup, lookup->unknown); });
  add("near_linear_scan",
      [=](benchmark::State& state) { by_scan(state, *lookup, lookup->unknown); });
}

std::vector<Key> emitted_keys() {
  std::vector<Key> keys;
  for (const dispatch::Row& row : dispatch::kRows) keys.push_back(row.key);
  return keys;
}

void emitted(benchmark::State& state, bool near) {
  ask(state, shuffled(emitted_keys(), near),
      [](const Key& key) { return dispatch::lookup(key, Guard::kTuned).row; });
}

}  // namespace

void register_lookup() {
  register_table("1000", std::make_shared<const Lookup>(grid(25, 10)));
  register_table("10000", std::make_shared<const Lookup>(grid(25, 100)));
  register_table("1000_batches", std::make_shared<const Lookup>(batches(1000)));
  benchmark::RegisterBenchmark("dispatch_lookup/emitted_exact/1000",
                               [](benchmark::State& state) { emitted(state, false); });
  benchmark::RegisterBenchmark("dispatch_lookup/emitted_near/1000",
                               [](benchmark::State& state) { emitted(state, true); });
}

}  // namespace muse::bench
