/// Just enough of a JSON reader to check what the commands write: strict about form, so that it finds bad output.
#pragma once

#include <cctype>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace railyard::testing {

struct Json {
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json>;
  std::variant<std::nullptr_t, bool, double, std::string, Array, Object> value = nullptr;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value); }
  bool is_number() const { return std::holds_alternative<double>(value); }
  double number() const { return std::get<double>(value); }
  const std::string& text() const { return std::get<std::string>(value); }
  bool flag() const { return std::get<bool>(value); }
  const Array& array() const { return std::get<Array>(value); }
  const Object& object() const { return std::get<Object>(value); }
  /// A member; throws where there is none, which fails the test.
  const Json& operator[](const std::string& name) const { return object().at(name); }
  std::vector<std::string> keys() const {
    std::vector<std::string> names;
    for (const auto& [name, ignored] : object()) names.push_back(name);
    return names;
  }
};

class JsonReader {
 public:
  /// The value of the whole text; nothing if it is no JSON.
  static std::optional<Json> read(std::string_view text) {
    JsonReader reader(text);
    auto value = reader.value();
    reader.skip();
    return reader.good_ && reader.at_ == text.size() ? std::optional<Json>(std::move(value)) : std::nullopt;
  }

 private:
  explicit JsonReader(std::string_view text) : text_(text) {}

  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  Json fail() {
    good_ = false;
    return {};
  }
  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }

  Json value() {
    skip();
    if (!good_ || at_ >= text_.size()) return fail();
    if (text_[at_] == '{') return object();
    if (text_[at_] == '[') return array();
    if (text_[at_] == '"') return Json{string()};
    if (word("null")) return Json{nullptr};
    if (word("true")) return Json{true};
    if (word("false")) return Json{false};
    double number = 0;
    const auto [end, failure] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (failure != std::errc()) return fail();
    at_ = static_cast<std::size_t>(end - text_.data());
    return Json{number};
  }

  std::string string() {
    std::string out;
    good_ = good_ && take('"');
    while (good_ && at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_++];
      if (c != '\\') {
        out += c;
      } else if (at_ < text_.size()) {
        const char escaped = text_[at_++];
        if (escaped == 'n') {
          out += '\n';
        } else if (escaped == 't') {
          out += '\t';
        } else if (escaped == 'u') {
          unsigned code = 0;
          std::from_chars(text_.data() + at_, text_.data() + std::min(at_ + 4, text_.size()), code, 16);
          out += static_cast<char>(code);
          at_ += 4;
        } else {
          out += escaped;
        }
      }
    }
    good_ = good_ && take('"');
    return out;
  }

  Json array() {
    Json::Array items;
    take('[');
    if (take(']')) return Json{items};
    do {
      items.push_back(value());
    } while (good_ && take(','));
    return take(']') ? Json{items} : fail();
  }

  Json object() {
    Json::Object members;
    take('{');
    if (take('}')) return Json{members};
    do {
      skip();
      std::string name = string();
      if (!good_ || !take(':')) return fail();
      members.emplace(std::move(name), value());
    } while (good_ && take(','));
    return take('}') ? Json{members} : fail();
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool good_ = true;
};

}  // namespace railyard::testing
