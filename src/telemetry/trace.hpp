/// Trace: records what a process does, for `railyard trace`. Off unless RAILYARD_TRACE asks for it.
///
/// Never a reason for a program to fail: where no file can be made, nothing is recorded and the log says so. Unlike the
/// telemetry, the file stays when its process ends: it is what the process was run for.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "railyard/settings.hpp"
#include "telemetry/process_file.hpp"
#include "telemetry/trace_layout.hpp"

namespace railyard::telemetry {

class Trace {
 public:
  /// The process's one trace while any context is open. Null: it is off, or no file can be made.
  static std::shared_ptr<Trace> of_process(const Settings& settings);
  /// One of its own, with room for as many entries as fit in `bytes`.
  static std::shared_ptr<Trace> open(const std::string& directory, std::size_t bytes);

  /// A number for a context, which entries carry.
  std::uint16_t add_context(std::string_view name);
  void name_rail(std::uint16_t context, std::uint16_t rail, std::string_view name);
  void set_rank(int rank, int size);
  /// Any thread.
  void record(const TraceRecord& record);

  const std::string& path() const { return file_.path(); }

 private:
  Trace() = default;
  void fill(std::size_t bytes);
  void add_name(const TraceName& name, std::string_view text);
  TraceHeader& header() const { return *reinterpret_cast<TraceHeader*>(file_.data()); }

  ProcessFile file_;
  TraceEntry* entries_ = nullptr;
  std::uint64_t capacity_ = 0;
  std::mutex mutex_;  ///< of the names
  std::uint16_t contexts_ = 0;
};

}  // namespace railyard::telemetry
