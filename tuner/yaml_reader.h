// SPDX-License-Identifier: Apache-2.0
// A YAML text as a tree with marks: one document, no anchors, aliases or tags, bounded size.
// Scalars stay texts; what they mean is for the reader of the tree to say.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/diagnostic.h"

namespace muse::tuner {

inline constexpr size_t kMaxConfigBytes = size_t{1} << 20;
inline constexpr size_t kMaxYamlNodes = 10'000;  ///< keys count too
inline constexpr size_t kMaxYamlDepth = 32;

enum class NodeKind { kNull, kScalar, kList, kMap };
/// "nothing", "a scalar", "a list", "a mapping".
std::string_view name(NodeKind kind);

struct YamlKey {
  std::string text;
  Mark mark;
};

struct YamlNode {
  NodeKind kind = NodeKind::kNull;
  Mark mark;
  std::string text;     ///< kScalar
  bool quoted = false;  ///< kScalar: not plain, so never a number
  /// kScalar: where `text` begins if the file has it byte for byte on one line; 0 otherwise.
  int text_column = 0;
  std::vector<YamlKey> keys;    ///< kMap, in file order, each once
  std::vector<YamlNode> items;  ///< kList: items; kMap: the keys' values

  /// kMap: the value of a key, or null.
  const YamlNode* find(std::string_view key) const;
  /// kMap: the key's mark; the node's own where it lacks the key.
  Mark key_mark(std::string_view key) const;
};

/// The tree, or nullopt where the text is not YAML within the limits above. Both ways faults go to
/// the log: duplicate keys leave a tree (of the first of them).
std::optional<YamlNode> read_yaml(std::string_view text, DiagnosticLog& log);

}  // namespace muse::tuner
