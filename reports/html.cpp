// SPDX-License-Identifier: Apache-2.0
// Escaping for element content, attributes and data blocks; reading of bytes as text.
#include "reports/html.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

namespace muse::reports {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Decoded {
  uint32_t point = 0;
  size_t bytes = 0;  ///< 0 = not UTF-8 here
};

/// The code point that starts at `at`: shortest form only, no surrogates, up to U+10FFFF.
Decoded decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || at + length > text.size()) return {};
  uint32_t point = lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {};
    point = point << 6 | (byte(at + i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (point < kLeast[length] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return {};
  return {point, length};
}

/// Controls that would move text about, or say nothing on paper.
bool unreadable(uint32_t point) {
  return (point >= 0x7F && point < 0xA0) || point == 0x061C || point == 0x200E || point == 0x200F ||
         (point >= 0x2028 && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069) ||
         point == 0xFEFF || (point & 0xFFFE) == 0xFFFE;
}

void escape(std::string& out, std::string_view data) {
  for (const char c : readable(data)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  throw std::logic_error("asset hash is not lower-case hex");
}

std::string base64_of_hex(std::string_view hex) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t byte = 0; byte < hex.size() / 2; byte += 3) {
    const size_t count = std::min<size_t>(3, hex.size() / 2 - byte);
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits <<= 8;
      if (i >= count) continue;
      bits |= static_cast<uint32_t>(hex_digit(hex[2 * (byte + i)]) << 4 |
                                    hex_digit(hex[2 * (byte + i) + 1]));
    }
    for (size_t i = 0; i < 4; ++i) out += i <= count ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

}  // namespace

std::string csp_hash(const Asset& asset) { return "'sha256-" + base64_of_hex(asset.sha256) + "'"; }

std::string readable(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Decoded decoded = decode(bytes, at);
    if (decoded.bytes == 0 || unreadable(decoded.point)) {
      out += kReplacement;
    } else if (decoded.point < 0x20 && decoded.point != '\t' && decoded.point != '\n') {
      out += "\xE2\x90";  // U+2400 + control
      out += static_cast<char>(0x80 + decoded.point);
    } else {
      out += bytes.substr(at, decoded.bytes);
    }
    at += std::max<size_t>(decoded.bytes, 1);
  }
  return out;
}

Html& Html::markup(Markup markup) {
  out_ += markup.text();
  return *this;
}

Html& Html::text(std::string_view data) {
  escape(out_, data);
  return *this;
}

Html& Html::attribute(Markup name, std::string_view data) {
  out_ += ' ';
  out_ += name.text();
  out_ += "=\"";
  escape(out_, data);
  out_ += '"';
  return *this;
}

Html& Html::code(std::string_view data) {
  out_ += "<code>";
  while (!data.empty()) {
    const size_t mark = data.find_first_of("_,:/");
    const size_t end = mark == std::string_view::npos ? data.size() : mark + 1;
    escape(out_, data.substr(0, end));
    data.remove_prefix(end);
    if (!data.empty()) out_ += "<wbr>";
  }
  out_ += "</code>";
  return *this;
}

Html& Html::number(double value, std::string_view shown) {
  return text(std::isfinite(value) ? shown : "\xE2\x80\x93");
}

Html& Html::data_block(Markup id, std::string_view json) {
  out_ += "<script type=\"application/json\"";
  attribute("id", id.text());
  out_ += '>';
  // Inside a JSON string, the only place where these can stand, an escape means the same.
  for (const char c : json) {
    switch (c) {
      case '<':
        out_ += "\\u003c";
        break;
      case '>':
        out_ += "\\u003e";
        break;
      case '&':
        out_ += "\\u0026";
        break;
      default:
        out_ += c;
    }
  }
  out_ += "</script>";
  return *this;
}

Html& Html::inline_style(const Asset& asset) {
  out_ += "<style>";
  out_ += asset.text;
  out_ += "</style>";
  return *this;
}

Html& Html::inline_script(const Asset& asset) {
  out_ += "<script>";
  out_ += asset.text;
  out_ += "</script>";
  return *this;
}

}  // namespace muse::reports
