#include "transport/latency_sampler.hpp"

#include "telemetry/store.hpp"
#include "transport/flow.hpp"

namespace railyard::transport {

void LatencySampler::begin(Sample& sample, const Sample& wanted) {
  next_ = every_;
  if (clock_ == nullptr || sample.what != nullptr) return;
  sample = wanted;
  sample.since = clock_->now();
}

void LatencySampler::end(Sample& sample, const Flow* flow) {
  sample.what = nullptr;
  if (clock_ == nullptr) return;
  const auto kind = static_cast<std::size_t>(sample.kind);
  const auto time = static_cast<std::uint64_t>(clock_->now() - sample.since);
  if (histograms_[kind] != nullptr) telemetry::count_in(histograms_[kind], time);
  if (flow != nullptr) {
    for (Histogram* const histogram : {flow->latency, flow->inbox_latency})
      if (histogram != nullptr) telemetry::count_in<telemetry::Octaves>(histogram, time);
  }
  if (sample.submitter != nullptr && kind < sample.submitter->latency.size()) {
    if (Histogram* const histogram = sample.submitter->latency[kind])
      telemetry::count_in<telemetry::Octaves>(histogram, time);
  }
}

}  // namespace railyard::transport
