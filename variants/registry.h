// SPDX-License-Identifier: Apache-2.0
// The variants of this binary. Each stem registers itself; there is no list to edit.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "variants/variant.h"

namespace muse {

class Registry {
 public:
  /// The process's own, filled before main by MUSE_REGISTER_VARIANT.
  static Registry& global();

  /// Throws std::logic_error with the reason where the variant breaks its contract: name not
  /// "stage/stem", name taken, a function missing, a tunable or value listed twice, a default
  /// outside its values, kernel entries missing or on the host, a constraint that does not parse,
  /// names no tunable or has no reason, a
  /// default configuration that is not legal or whose span does not fit the folder.
  const Variant& add(Variant variant);

  /// The same for a stem: also throws where the variant calls itself something else.
  const Variant& add_stem(std::string_view stem, Variant variant);

  /// Ordered by name.
  std::vector<const Variant*> all() const;
  const Variant* find(std::string_view name) const;
  /// Names that match the glob (`*` and `?`; "attention/*", "*"), ordered.
  std::vector<const Variant*> match(std::string_view glob) const;
  /// The nearest name for a did-you-mean; empty where none is near.
  std::string nearest(std::string_view name) const;

  /// Inverse of key(Candidate), tunables in any order; a part without tunables means the default
  /// configuration, a last part "pdl" sets Chain::pdl. The error says what is unknown and the
  /// nearest name.
  tl::expected<Candidate, std::string> parse_candidate(std::string_view text) const;
  tl::expected<Chain, std::string> parse_chain(std::string_view text) const;

 private:
  std::deque<Variant> variants_;
};

bool glob_match(std::string_view glob, std::string_view text);
/// The option with the least edit distance, if that is at most a third of the word's length (at
/// least 1); empty otherwise.
std::string nearest_name(std::string_view word, const std::vector<std::string>& options);

/// Hash over the sources a variant is made of (its stem's files and every project header they
/// include), compiler and flags; nullopt for a variant that was not built from variants/ (tests).
std::optional<std::string> code_hash(const Variant& variant);

/// In a stem, outside every namespace: MUSE_REGISTER_VARIANT(attention, scalar, make_variant())
/// defines muse::variant_attention_scalar(), which production code names to link this stem, and
/// registers it.
#define MUSE_REGISTER_VARIANT(stage, stem, ...)                                                 \
  namespace muse {                                                                              \
  const Variant& variant_##stage##_##stem() {                                                   \
    static const Variant& variant = Registry::global().add_stem(#stage "/" #stem, __VA_ARGS__); \
    return variant;                                                                             \
  }                                                                                             \
  namespace {                                                                                   \
  [[maybe_unused]] const Variant& registered_##stage##_##stem = variant_##stage##_##stem();     \
  }                                                                                             \
  }

}  // namespace muse
