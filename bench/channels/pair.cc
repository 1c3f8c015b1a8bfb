#include "pair.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>

namespace railyard::bench {
namespace {

constexpr int kLineTrips = 2000;
constexpr std::int64_t kMostWait = 20'000'000'000;  ///< nanoseconds for one channel or for the end
constexpr std::int64_t kMostDisconnectWait = 2'000'000'000;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Lets the context's thread go on, which may share this core.
template <typename Done>
void wait_until(const char* what, Done&& done) {
  const std::int64_t until = now() + kMostWait;
  while (!done()) {
    if (now() > until) fail(fmt::format("{} did not come about", what));
    sched_yield();
  }
}

}  // namespace

void fail(const std::string& text) {
  fmt::print(stderr, "channels: {}\n", text);
  std::exit(1);
}

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

Settings settings_of(const Options& options) {
  Settings settings = must(Settings::from_environment());
  if (settings.interfaces.empty()) must(settings.set("RAILYARD_INTERFACES", "lo"));
  if (settings.provider.empty() && settings.driver == "auto") must(settings.set("RAILYARD_DRIVER", "tcp"));
  must(settings.set("RAILYARD_RAILS", fmt::format("{}", options.rails)));
  must(settings.set("RAILYARD_SHARED_MEMORY", options.over == "memory" ? "on" : "off"));
  for (const std::string& text : options.settings) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) fail(fmt::format("--set {}: NAME=VALUE is wanted", text));
    must(settings.set(text.substr(0, equals), text.substr(equals + 1)));
  }
  return settings;
}

Side::Side(const Options& options, Shared& shared, int rank) : options_(options), shared_(shared), rank_(rank) {}

void Side::meet() {
  const auto me = static_cast<std::size_t>(rank_);
  shared_.arrivals[me].store(++barriers_);
  wait_until("a barrier", [&] { return shared_.arrivals[1 - me].load() >= barriers_; });
}

double Side::line() {
  meet();
  const std::int64_t begin = now();
  for (int i = 0; i < kLineTrips; ++i) {
    const std::uint64_t mine = lines_ + static_cast<std::uint64_t>(rank_);
    while (shared_.line.load(std::memory_order_acquire) != mine) {
    }
    shared_.line.store(mine + 1, std::memory_order_release);
    lines_ += 2;
  }
  const double taken = static_cast<double>(now() - begin) / (2.0 * kLineTrips);
  meet();
  return taken;
}

void Side::open_context() { context_ = must(Context::open(settings_of(options_))); }

std::unique_ptr<Channel> Side::connect_one() {
  Handle handle = shared_.handle;
  std::unique_ptr<Channel> channel;
  wait_until("a channel", [&] {
    channel = must(context_->connect(handle));
    return channel != nullptr;
  });
  const std::uint32_t before = static_cast<std::uint32_t>(channels_.size());
  wait_until("the other end", [&] { return shared_.accepted.load() > before; });
  return channel;
}

std::unique_ptr<Channel> Side::accept_one(Listener& listener) {
  std::unique_ptr<Channel> channel;
  wait_until("a channel", [&] {
    channel = must(listener.accept());
    return channel != nullptr;
  });
  shared_.accepted.fetch_add(1);
  return channel;
}

double Side::connect() {
  std::unique_ptr<Listener> listener;
  if (rank_ == 1) {
    listener = must(context_->listen());
    shared_.handle = listener->handle();
  }
  meet();
  std::vector<double> taken;
  for (std::uint32_t i = 0; i < options_.channels; ++i) {
    const std::int64_t begin = now();
    auto channel = rank_ == 0 ? connect_one() : accept_one(*listener);
    channels_.push_back(std::move(channel));
    taken.push_back(static_cast<double>(now() - begin) * 1e-3);
  }
  meet();
  return median(std::move(taken));
}

double Side::close_channels() {
  meet();
  const std::int64_t begin = now();
  channels_.clear();
  return static_cast<double>(now() - begin) * 1e-3;
}

void Side::wait_for_end() {
  wait_until("the end of all routes", [&] { return context_->statistics().routes == 0; });
  // What the peer had connected ends when its word of it is here.
  const std::int64_t until = now() + kMostDisconnectWait;
  while (fabric_objects().endpoints != 0 && now() < until) sched_yield();
  meet();
}

}  // namespace railyard::bench
