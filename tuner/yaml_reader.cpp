// SPDX-License-Identifier: Apache-2.0
// yaml-cpp's event interface behind limits. Its node interface drops second documents, expands
// aliases without bound and keeps the last of two equal keys in silence.
#include "tuner/yaml_reader.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <sstream>
#include <utility>

namespace muse::tuner {
namespace {

/// Ends the parse: what follows could not be trusted.
struct Fatal {
  Mark mark;
  std::string message;
};

Mark to_mark(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

Mark mark_at(std::string_view text, size_t offset) {
  Mark mark{1, 1};
  for (const char c : text.substr(0, offset)) {
    mark = c == '\n' ? Mark{mark.line + 1, 1} : Mark{mark.line, mark.column + 1};
  }
  return mark;
}

/// Bytes of the UTF-8 sequence at the front; 0 where it is not valid (overlong, surrogate, cut,
/// above U+10FFFF).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xC2   ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool beyond = (first == 0xED && byte(1) >= 0xA0) || (first == 0xF4 && byte(1) >= 0x90);
  return overlong || beyond ? 0 : length;
}

/// What yaml-cpp would misread in silence: it takes 0x04 for the end of the text, NUL for UTF-16,
/// and passes invalid UTF-8 on.
std::optional<Fatal> byte_fault(std::string_view text) {
  if (text.size() > kMaxConfigBytes)
    return Fatal{{}, fmt::format("larger than 1 MiB ({} bytes); a config is small", text.size())};
  if (text.starts_with("\xEF\xBB\xBF"))
    return Fatal{{1, 1}, "starts with a byte order mark; save it as UTF-8 without one"};
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F)
      return Fatal{mark_at(text, i), fmt::format("control character 0x{:02x}; remove it", c)};
    const size_t length = utf8_length(text.substr(i));
    if (length == 0)
      return Fatal{mark_at(text, i), fmt::format("byte 0x{:02x} is not valid UTF-8", c)};
    i += length;
  }
  return std::nullopt;
}

/// Builds the tree; `stack_` holds the lists and mappings that are still open.
class Builder final : public YAML::EventHandler {
 public:
  Builder(std::string_view text, DiagnosticLog& log) : text_(text), log_(log) {}

  std::optional<YamlNode> root;

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ == 0) return;
    const bool marker = rest(mark).starts_with("---") || before(mark).ends_with("---");
    throw Fatal{to_mark(mark), marker ? "a second document; a config is one document"
                                      : "text after the end of the document"};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_decoration(mark, "", anchor);
    YamlNode node;
    node.mark = to_mark(mark);
    // An absent value has the mark of whatever comes next; its key says better where it is absent.
    if (wants_value() && !is_null_word(mark)) node.mark = stack_.back().keys.back().mark;
    add(std::move(node));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Fatal{to_mark(mark), "aliases (*name) are not allowed; write the value out"};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_decoration(mark, tag, anchor);
    YamlNode node;
    node.kind = NodeKind::kScalar;
    node.mark = to_mark(mark);
    node.text = value;
    node.quoted = tag == "!";
    const bool one_line = value.find('\n') == value.npos;
    if (one_line && rest(mark).substr(node.quoted ? 1 : 0).starts_with(value))
      node.text_column = node.mark.column + (node.quoted ? 1 : 0);
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(NodeKind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(NodeKind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  std::string_view rest(const YAML::Mark& mark) const {
    const auto offset = static_cast<size_t>(mark.pos < 0 ? 0 : mark.pos);
    return offset < text_.size() ? text_.substr(offset) : std::string_view{};
  }
  /// The text before the mark without the blanks at its end.
  std::string_view before(const YAML::Mark& mark) const {
    std::string_view head = text_.substr(0, text_.size() - rest(mark).size());
    while (!head.empty() && std::string_view(" \t\r\n").find(head.back()) != std::string_view::npos)
      head.remove_suffix(1);
    return head;
  }
  bool is_null_word(const YAML::Mark& mark) const {
    const std::string_view here = rest(mark);
    for (const std::string_view word : {"~", "null", "Null", "NULL"})
      if (here.starts_with(word)) return true;
    return false;
  }
  bool wants_key() const {
    return !stack_.empty() && stack_.back().kind == NodeKind::kMap &&
           stack_.back().keys.size() == stack_.back().items.size();
  }
  bool wants_value() const {
    return !stack_.empty() && stack_.back().kind == NodeKind::kMap && !wants_key();
  }

  void refuse_decoration(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor || rest(mark).starts_with('&'))
      throw Fatal{to_mark(mark), "anchors (&name) are not allowed; write the value out"};
    // yaml-cpp's own marks: "?" for plain, "!" for quoted.
    const bool tagged = !tag.empty() && tag != "?" && tag != "!";
    if (tagged || rest(mark).starts_with('!'))
      throw Fatal{to_mark(mark), "tags (!name) are not allowed"};
  }

  void count(const Mark& mark) {
    if (++nodes_ > kMaxYamlNodes)
      throw Fatal{mark, fmt::format("more than {} keys and values", kMaxYamlNodes)};
  }

  void add(YamlNode node) {
    count(node.mark);
    if (wants_key()) {
      if (node.kind != NodeKind::kScalar)
        throw Fatal{node.mark, fmt::format("a key must be a name, got {}", name(node.kind))};
      stack_.back().keys.push_back({std::move(node.text), node.mark});
    } else if (stack_.empty()) {
      root = std::move(node);
    } else {
      stack_.back().items.push_back(std::move(node));
    }
  }

  void open(NodeKind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    refuse_decoration(mark, tag, anchor);
    if (wants_key())
      throw Fatal{to_mark(mark), fmt::format("a key must be a name, got {}", name(kind))};
    if (stack_.size() == kMaxYamlDepth)
      throw Fatal{to_mark(mark), fmt::format("nested more than {} deep", kMaxYamlDepth)};
    YamlNode node;
    node.kind = kind;
    node.mark = to_mark(mark);
    stack_.push_back(std::move(node));
  }

  void close() {
    YamlNode node = std::move(stack_.back());
    stack_.pop_back();
    if (node.kind == NodeKind::kMap) drop_duplicates(node);
    add(std::move(node));
  }

  void drop_duplicates(YamlNode& map) {
    std::map<std::string, Mark, std::less<>> seen;
    YamlNode kept;
    for (size_t i = 0; i < map.keys.size(); ++i) {
      const auto [first, fresh] = seen.emplace(map.keys[i].text, map.keys[i].mark);
      if (fresh) {
        kept.keys.push_back(std::move(map.keys[i]));
        kept.items.push_back(std::move(map.items[i]));
      } else {
        log_.error(map.keys[i].mark, fmt::format("duplicate key {}; it is given on line {} already",
                                                 in_quotes(map.keys[i].text), first->second.line));
      }
    }
    map.keys = std::move(kept.keys);
    map.items = std::move(kept.items);
  }

  std::string_view text_;
  DiagnosticLog& log_;
  int documents_ = 0;
  size_t nodes_ = 0;
  std::vector<YamlNode> stack_;
};

/// At most two documents are begun: the handler throws at the second, which also ends a text such
/// as
/// "," that yaml-cpp never consumes.
std::optional<YamlNode> parse(std::string_view text, DiagnosticLog& log) {
  std::istringstream stream{std::string(text)};
  YAML::Parser parser(stream);
  Builder builder(text, log);
  while (parser.HandleNextDocument(builder)) {
  }
  return std::move(builder.root);
}

}  // namespace

std::string_view name(NodeKind kind) {
  switch (kind) {
    case NodeKind::kNull:
      return "nothing";
    case NodeKind::kScalar:
      return "a scalar";
    case NodeKind::kList:
      return "a list";
    case NodeKind::kMap:
      return "a mapping";
  }
  return "";
}

const YamlNode* YamlNode::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i].text == key) return &items[i];
  return nullptr;
}

Mark YamlNode::key_mark(std::string_view key) const {
  for (const YamlKey& candidate : keys)
    if (candidate.text == key) return candidate.mark;
  return mark;
}

std::optional<YamlNode> read_yaml(std::string_view text, DiagnosticLog& log) {
  if (const auto fault = byte_fault(text)) {
    log.error(fault->mark, fault->message);
    return std::nullopt;
  }
  try {
    auto root = parse(text, log);
    if (root && root->kind != NodeKind::kNull) return root;
    log.error({}, "empty; `muse-tune init FILE` writes a config to start from");
  } catch (const Fatal& fault) {
    log.error(fault.mark, fault.message);
  } catch (const YAML::Exception& error) {
    log.error(to_mark(error.mark), fmt::format("not valid YAML: {}", printable(error.msg)));
  }
  return std::nullopt;
}

}  // namespace muse::tuner
