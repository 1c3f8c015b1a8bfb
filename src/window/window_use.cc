#include "window/window_use.hpp"

#include <fmt/format.h>

namespace railyard {

void WindowUse::publish(telemetry::Store& store, const std::string& context) {
  using What = transport::Submitter::What;
  namespace field = telemetry::window_field;
  WorldStatistics direct;
  add_direct(direct);
  const auto& put = submitter_.of(What::put);
  const auto& put_signal = submitter_.of(What::put_signal);
  const auto& get = submitter_.of(What::get);
  const auto& signal = submitter_.of(What::signal);
  const auto& atomic = submitter_.of(What::atomic);
  if (!record_) {
    if (put.operations + put_signal.operations + get.operations + signal.operations + atomic.operations +
            direct.direct_puts + direct.direct_gets + direct.direct_atomics ==
        0)
      return;
    record_ = store.add(telemetry::Group::window,
                        {{"context", context}, {"window", fmt::format("{}", submitter_.number - 1)}});
    for (std::uint32_t kind = 0; kind < submitter_.latency.size(); ++kind)
      submitter_.latency[kind] = record_.histogram<telemetry::Octaves>(field::put_latency + kind, field::put_latency);
  }
  const std::pair<std::uint32_t, std::uint64_t> values[] = {
      {field::bytes, bytes},
      {field::puts, put.operations + put_signal.operations},
      {field::gets, get.operations},
      {field::signals, signal.operations},
      {field::atomics, atomic.operations},
      {field::bytes_put, put.bytes + put_signal.bytes},
      {field::bytes_got, get.bytes},
      {field::direct_puts, direct.direct_puts},
      {field::direct_gets, direct.direct_gets},
      {field::direct_atomics, direct.direct_atomics},
      {field::direct_bytes_put, direct.direct_bytes_put},
      {field::direct_bytes_got, direct.direct_bytes_got},
  };
  for (const auto& [name, value] : values) record_.set(name, value);
}

void WindowUse::end_publishing() {
  submitter_.latency = {};
  record_ = telemetry::Record();
}

}  // namespace railyard
