/// A small JSON writer: commas, quotes and indentation in one place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::tool {

/// The text as a JSON string, with its quotes.
std::string json_quoted(std::string_view text);

/// Writes one JSON text front to back. Calls must nest as JSON does: a key before each value of an object.
class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag);
  /// Not a number and infinities have no JSON form: they are written as null.
  JsonWriter& value(double number);
  JsonWriter& value(std::uint64_t number);
  JsonWriter& value(std::int64_t number);
  JsonWriter& value(std::uint32_t number) { return value(std::uint64_t{number}); }
  JsonWriter& value(std::int32_t number) { return value(std::int64_t{number}); }
  JsonWriter& null();

  template <typename T>
  JsonWriter& field(std::string_view name, T content) {
    key(name);
    return value(content);
  }

  /// The finished text, ending in a newline.
  std::string finish();

 private:
  void before_value();
  void new_line();
  void open(char bracket);
  void close(char bracket);

  std::string text_;
  std::vector<bool> has_items_;  ///< one per open container
  bool after_key_ = false;
};

}  // namespace railyard::tool
