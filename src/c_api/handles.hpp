/// What the C handles hold, and the one way every C call reports failure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "railyard/bootstrap.hpp"
#include "railyard/context.hpp"
#include "railyard/railyard.h"
#include "railyard/settings.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"

struct ry_settings {
  railyard::Settings settings;
};

struct ry_context {
  std::unique_ptr<railyard::Context> context;
};

struct ry_world {
  // In this order: the world uses the bootstrap until its end.
  std::unique_ptr<railyard::Bootstrap> bootstrap;
  railyard::World world;
};

struct ry_window {
  railyard::Window window;
  bool closed = false;  ///< only freeing is left
};

namespace railyard::c_api {

/// Keeps the error for ry_error_text of this thread and returns its status.
ry_status fail(const Error& error) noexcept;
/// The same for a mistake in the call itself.
ry_status fail_invalid(const char* call, const char* what) noexcept;

/// The same for a code that has no name.
ry_status fail_value(const char* call, const char* what, int value, const char* known) noexcept;

/// Whether calls may use the window: there is one, and it is not closed.
inline bool usable(const ry_window* window) noexcept { return window != nullptr && !window->closed; }
/// The error of a call that may not.
inline ry_status fail_unusable(const char* call, const ry_window* window) noexcept {
  return fail_invalid(call, window == nullptr ? "no window" : "the window is closed");
}

/// A C deadline in the library's terms; false for a number that is none.
bool to_deadline(int64_t milliseconds, Deadline& deadline) noexcept;

/// Runs the body of one C call. Only memory running out can throw below; it must not cross into C.
template <typename Body>
ry_status guarded(const char* call, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    fail_invalid(call, "out of memory");
    return RY_NO_MEMORY;
  } catch (const std::exception& error) {
    fail_invalid(call, error.what());
    return RY_IO;
  }
}

/// Into a field of a C structure: cut to fit, ended by a zero.
template <std::size_t kRoom>
void copy_text(char (&out)[kRoom], const std::string& text) noexcept {
  const std::size_t length = std::min(kRoom - 1, text.size());
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

inline ry_status status_of(Result<void>&& result) noexcept { return result.ok() ? RY_OK : fail(result.error()); }

}  // namespace railyard::c_api
