/// What the library's objects call of libfmt, compiled into the plugin: machines that run NCCL need not have it. A
/// newer libfmt may want other names here; the linker says which.
#ifndef FMT_HEADER_ONLY
#error "this file makes libfmt's functions out of its headers: build it with FMT_HEADER_ONLY"
#endif
#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace railyard::nccl {

// Inline functions are emitted where their address is taken.
[[gnu::used]] std::string (*const fmt_vformat)(fmt::string_view, fmt::format_args) = &fmt::vformat;
[[gnu::used]] void (*const fmt_throw_format_error)(const char*) = &fmt::detail::throw_format_error;
[[gnu::used]] bool (*const fmt_is_printable)(std::uint32_t) = &fmt::detail::is_printable;
[[gnu::used]] fmt::detail::thousands_sep_result<char> (*const fmt_thousands_sep)(fmt::detail::locale_ref) =
    &fmt::detail::thousands_sep_impl<char>;

}  // namespace railyard::nccl
