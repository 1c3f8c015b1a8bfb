#include "log.hpp"

#include <atomic>

#include "base/log.hpp"

namespace railyard::nccl {

namespace {

// Relaxed: the pointer publishes nothing but itself; NCCL gives the same one to every communicator.
std::atomic<nccl_logger> host_logger{nullptr};

int level_of(LogLevel level) {
  switch (level) {
    case LogLevel::error:
    case LogLevel::warn:
      return NCCL_LEVEL_WARN;
    case LogLevel::info:
      return NCCL_LEVEL_INFO;
    case LogLevel::debug:
      return NCCL_LEVEL_TRACE;
  }
  return NCCL_LEVEL_WARN;
}

/// `call` is what it happened in; "": nothing in particular.
void say(int level, const char* call, std::string_view text) {
  const nccl_logger logger = host_logger.load(std::memory_order_relaxed);
  if (logger == nullptr) return;
  constexpr unsigned long kSubsystems = NCCL_SUBSYSTEM_INIT | NCCL_SUBSYSTEM_NET;
  logger(level, kSubsystems, "railyard", 0, "NET/Railyard: %s%s%.*s", call, *call == 0 ? "" : ": ",
         static_cast<int>(text.size()), text.data());
}

/// Lines of the library begin with its name, which NCCL's line has already.
void pass_on(LogLevel level, std::string_view line) {
  constexpr std::string_view kPrefix = "railyard: ";
  if (line.starts_with(kPrefix)) line.remove_prefix(kPrefix.size());
  say(level_of(level), "", line);
}

nccl_result code_for(Status status) {
  switch (status) {
    case Status::ok:
      return NCCL_OK;
    case Status::peer_lost:
    case Status::timeout:
    case Status::refused:
    case Status::version_mismatch:
      return NCCL_REMOTE_ERROR;
    case Status::invalid:
    case Status::out_of_range:
    case Status::not_found:
    case Status::unsupported:
      return NCCL_INVALID_USAGE;
    case Status::rail_failed:
    case Status::io:
    case Status::no_memory:
      return NCCL_SYSTEM_ERROR;
    case Status::busy:
      return NCCL_INTERNAL_ERROR;
  }
  return NCCL_INTERNAL_ERROR;
}

}  // namespace

void set_logger(nccl_logger logger) {
  host_logger.store(logger, std::memory_order_relaxed);
  set_log_sink(logger == nullptr ? LogSink() : LogSink(&pass_on));
}

void inform(std::string_view line) { say(NCCL_LEVEL_INFO, "", line); }

nccl_result fail(const char* call, const Error& error) noexcept {
  try {
    say(NCCL_LEVEL_WARN, call, error.text());
  } catch (...) {  // no memory for the whole line: the word alone
    say(NCCL_LEVEL_WARN, call, to_string(error.status()));
  }
  return code_of(error);
}

nccl_result code_of(const Error& error) noexcept { return code_for(error.status()); }

nccl_result misuse(const char* call, const char* what) noexcept {
  say(NCCL_LEVEL_WARN, call, what);
  return NCCL_INTERNAL_ERROR;
}

}  // namespace railyard::nccl
