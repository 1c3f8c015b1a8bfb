#include "fabric/tcp/device_account.hpp"

#include <fstream>
#include <map>
#include <sstream>
#include <utility>

namespace railyard::fabric::tcp {

namespace {

/// What a connection's socket may hold that the kernel has taken and not sent yet, or never will as it is closed.
constexpr std::uint64_t kHeldByConnection = std::uint64_t{4} << 20U;
/// One part in so many may be missing beyond that.
constexpr std::uint64_t kTolerance = 10;

}  // namespace

DeviceAccount::DeviceAccount(std::string device, Source source)
    : device_(std::move(device)), source_(std::move(source)) {}

std::shared_ptr<DeviceAccount> DeviceAccount::of(const std::string& device) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<DeviceAccount>> accounts;
  const std::scoped_lock lock(mutex);
  auto account = accounts[device].lock();
  if (!account) accounts[device] = account = std::make_shared<DeviceAccount>(device, &bytes_sent_by);
  return account;
}

std::optional<DeviceAccount::Disagreement> DeviceAccount::add(std::uint64_t bytes, std::size_t connections,
                                                              std::int64_t now_ns) {
  const std::scoped_lock lock(mutex_);
  total_ += bytes;
  if (silent_) return std::nullopt;
  const std::uint64_t ours = total_ - window_total_;
  if (begun_ && (ours < kWindowBytes || now_ns - window_began_ < kWindowNs)) return std::nullopt;
  const auto counted = source_(device_);
  silent_ = !counted;
  if (silent_) return std::nullopt;
  const std::uint64_t kernels = *counted - window_kernels_;
  const bool first = !std::exchange(begun_, true);
  window_total_ = total_;
  window_kernels_ = *counted;
  window_began_ = now_ns;
  if (first) return std::nullopt;
  const std::uint64_t allowed = ours / kTolerance + kHeldByConnection * (1 + connections);
  // A device that came back counts from 0 again: that window says nothing.
  const bool agrees = kernels + allowed >= ours || kernels > (std::uint64_t{1} << 63U);
  if (!std::exchange(suspicious_, !agrees) || agrees) return std::nullopt;
  silent_ = true;
  return Disagreement{ours, kernels};
}

std::uint64_t DeviceAccount::total() const {
  const std::scoped_lock lock(mutex_);
  return total_;
}

/// /proc/net/dev: "  eth0: bytes packets errs drop fifo frame compressed multicast bytes ...", received before sent.
/// (/sys/class/net shows the namespace that it was mounted in, which may be another.)
std::optional<std::uint64_t> bytes_sent_by(const std::string& device) {
  constexpr int kReceiveColumns = 8;
  std::ifstream file("/proc/thread-self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::size_t begin = line.find_first_not_of(' ');
    const std::size_t colon = line.find(": ");
    if (begin == std::string::npos || colon == std::string::npos || line.substr(begin, colon - begin) != device)
      continue;
    std::istringstream numbers(line.substr(colon + 1));
    std::uint64_t value = 0;
    for (int i = 0; i < kReceiveColumns; ++i) numbers >> value;
    return numbers >> value ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace railyard::fabric::tcp
