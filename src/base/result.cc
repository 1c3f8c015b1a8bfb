#include "railyard/result.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace railyard {

namespace result_detail {

void no_value(const Error& error) noexcept {
  std::fprintf(stderr, "railyard: the value of a call that failed was used without a check. The call's error: %s\n",
               error.text().c_str());
  std::abort();
}

void no_error() noexcept {
  std::fputs("railyard: the error of a call that succeeded was asked for\n", stderr);
  std::abort();
}

}  // namespace result_detail

const char* to_string(Status status) noexcept {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::busy:
      return "busy";
    case Status::timeout:
      return "timeout";
    case Status::invalid:
      return "invalid";
    case Status::out_of_range:
      return "out of range";
    case Status::not_found:
      return "not found";
    case Status::unsupported:
      return "unsupported";
    case Status::refused:
      return "refused";
    case Status::version_mismatch:
      return "version mismatch";
    case Status::peer_lost:
      return "peer lost";
    case Status::rail_failed:
      return "rail failed";
    case Status::io:
      return "i/o error";
    case Status::no_memory:
      return "out of memory";
  }
  return "unknown status";
}

const std::string& Error::message() const noexcept {
  static const std::string empty;
  return detail_ ? detail_->message : empty;
}

std::string Error::text() const {
  std::string line = to_string(status_);
  if (!detail_) return line;
  if (!detail_->message.empty()) line += ": " + detail_->message;
  std::string place;
  const auto add = [&place](const std::string& part) {
    if (!place.empty()) place += ", ";
    place += part;
  };
  const Where& where = detail_->where;
  if (where.operation != nullptr && where.operation[0] != '\0') add(where.operation);
  if (where.peer >= 0) add(fmt::format("peer {}", where.peer));
  if (where.rail >= 0) add(fmt::format("rail {}", where.rail));
  if (where.sequence != 0) add(fmt::format("sequence {}", where.sequence));
  if (!place.empty()) line += " (" + place + ")";
  return line;
}

}  // namespace railyard
