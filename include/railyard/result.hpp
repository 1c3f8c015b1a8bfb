/// Result and Error: how every call of the library reports failure. No exceptions cross the API.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace railyard {

/// What went wrong, in the terms a caller can act on.
enum class Status : std::uint8_t {
  ok,
  busy,              ///< back-pressure: nothing happened, try again later
  timeout,           ///< a deadline passed
  invalid,           ///< the call or a setting makes no sense
  out_of_range,      ///< rank, offset, index or size outside what was agreed
  not_found,         ///< no such provider, rail, window, host
  unsupported,       ///< this rail or provider cannot do it
  refused,           ///< authentication or permission
  version_mismatch,  ///< the peer speaks another wire version
  peer_lost,         ///< the named peer is gone
  rail_failed,       ///< the named rail failed
  io,                ///< the system refused: see the message
  no_memory,
};

/// The status as a word, for messages and logs.
const char* to_string(Status status) noexcept;

/// A failure with everything needed to act on it. Cheap to move; the detail is allocated on the error path only.
class [[nodiscard]] Error {
 public:
  /// Where the failure happened. Fields stay at their defaults where they do not apply.
  struct Where {
    int peer = -1;
    int rail = -1;
    const char* operation = "";
    std::uint64_t sequence = 0;
  };

  Error() = default;
  explicit Error(Status status) : status_(status) {}
  Error(Status status, std::string message) : Error(status, std::move(message), Where{}) {}
  Error(Status status, std::string message, Where where)
      : status_(status), detail_(std::make_unique<Detail>(Detail{std::move(message), where})) {}

  Status status() const noexcept { return status_; }
  /// The bare message, without the place.
  const std::string& message() const noexcept;
  Where where() const noexcept { return detail_ ? detail_->where : Where{}; }
  /// One line: status, message and the place, ready to print.
  std::string text() const;
  /// A second Error with the same content (an Error itself only moves).
  Error copy() const { return detail_ ? Error(status_, detail_->message, detail_->where) : Error(status_); }

 private:
  struct Detail {
    std::string message;
    Where where;
  };
  Status status_ = Status::ok;
  std::unique_ptr<Detail> detail_;
};

namespace result_detail {
/// Writes what went wrong to stderr and ends the process: see Result.
[[noreturn]] void no_value(const Error& error) noexcept;
[[noreturn]] void no_error() noexcept;
}  // namespace result_detail

/// A value or an Error. Check before use. To take the value of a failed call, or the error of one that succeeded, is a
/// mistake in the program that no return value could tell of: the error's text goes to stderr and the process is
/// aborted. This is the only place where Railyard ends a process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : content_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  Status status() const noexcept { return ok() ? Status::ok : error().status(); }

  T& value() & noexcept { return *checked(content_); }
  const T& value() const& noexcept { return *checked(content_); }
  T&& value() && noexcept { return std::move(*checked(content_)); }
  T& operator*() & noexcept { return value(); }
  const T& operator*() const& noexcept { return value(); }
  T* operator->() noexcept { return checked(content_); }
  const T* operator->() const noexcept { return checked(content_); }

  Error& error() noexcept { return *checked_error(content_); }
  const Error& error() const noexcept { return *checked_error(content_); }

 private:
  template <typename Content>
  static auto* checked(Content& content) noexcept {
    auto* const value = std::get_if<0>(&content);
    if (value == nullptr) [[unlikely]]
      result_detail::no_value(*std::get_if<1>(&content));
    return value;
  }
  template <typename Content>
  static auto* checked_error(Content& content) noexcept {
    auto* const error = std::get_if<1>(&content);
    if (error == nullptr) [[unlikely]]
      result_detail::no_error();
    return error;
  }

  std::variant<T, Error> content_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return error_.status() == Status::ok; }
  explicit operator bool() const noexcept { return ok(); }
  Status status() const noexcept { return error_.status(); }
  Error& error() noexcept { return error_; }
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

}  // namespace railyard
