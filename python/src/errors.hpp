/// How failures of the library become exceptions: railyard.Error and its kinds, which are in railyard/_errors.py.
#pragma once

#include <string>
#include <utility>

#include "railyard/result.hpp"

namespace railyard::python {

[[noreturn]] void raise(const Error& error);
/// `after`: said behind the message.
[[noreturn]] void raise(const Error& error, const std::string& after);
[[noreturn]] void raise_closed(const std::string& message);
[[noreturn]] void raise_busy(const std::string& message);

/// The value, or the exception.
template <typename T>
T take(Result<T>&& result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace railyard::python
