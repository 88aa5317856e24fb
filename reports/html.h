// SPDX-License-Identifier: Apache-2.0
// HTML by types: markup is known at compile time, everything else is escaped for where it stands.
#pragma once

#include <string>
#include <string_view>

namespace muse::reports {

/// Text of the program itself. Only a string literal becomes markup; data cannot.
class Markup {
 public:
  consteval Markup(const char* literal) : text_(literal) {}
  constexpr std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

/// A file of assets/ built into the binary.
struct Asset {
  std::string_view text;
  std::string_view sha256;  ///< 64 hex digits, made by the build
};
extern const Asset kStyle, kScript;

/// "'sha256-<base64>'", as a content security policy names inline text.
std::string csp_hash(const Asset& asset);

/// Valid UTF-8 that shows what it holds: bytes that are none, controls of direction and C1 become
/// U+FFFD, C0 controls other than tab and newline their control pictures.
std::string readable(std::string_view bytes);

class Html {
 public:
  Html& markup(Markup markup);
  /// Content of an element.
  Html& text(std::string_view data);
  /// ` name="data"`, inside a tag.
  Html& attribute(Markup name, std::string_view data);
  /// A name as <code>, with places where a long one may break.
  Html& code(std::string_view data);
  /// Where the number is missing (not finite) a dash.
  Html& number(double value, std::string_view shown);
  /// A data block: <script type="application/json" id=...>. `json` is ASCII JSON text.
  Html& data_block(Markup id, std::string_view json);
  Html& inline_style(const Asset& asset);
  Html& inline_script(const Asset& asset);

  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

}  // namespace muse::reports
