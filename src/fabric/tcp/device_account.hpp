/// Whether what tcp rails send leaves by the NIC that they name. Sockets are bound to their device, or routes are asked
/// for, before a byte is sent; but routes and rules change while a job runs. So what the rails of this process have
/// handed to a device's sockets is compared with what the kernel counted there.
///
/// Others send through the device, too, and headers count: the kernel's number may be larger by any amount, and is
/// never much smaller. It is read rarely, and only while there is traffic: see `kWindowBytes` and `kWindowNs`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace railyard::fabric::tcp {

class DeviceAccount {
 public:
  /// Bytes that a device has sent since it was made; nothing: unknown.
  using Source = std::function<std::optional<std::uint64_t>(const std::string& device)>;
  /// Two numbers that should agree.
  struct Disagreement {
    std::uint64_t ours = 0;
    std::uint64_t kernels = 0;
  };

  static constexpr std::uint64_t kWindowBytes = std::uint64_t{64} << 20U;  ///< least that is compared
  static constexpr std::int64_t kWindowNs = 5'000'000'000;                 ///< least time between two looks

  DeviceAccount(std::string device, Source source);
  /// The one of that device that all rails of the process share.
  static std::shared_ptr<DeviceAccount> of(const std::string& device);

  /// `bytes` more went into sockets of the device, of which a rail has `connections`. Something: for two windows in a
  /// row the device has sent much less than that. Said once.
  std::optional<Disagreement> add(std::uint64_t bytes, std::size_t connections, std::int64_t now_ns);
  /// What was added so far.
  std::uint64_t total() const;

 private:
  const std::string device_;
  const Source source_;
  mutable std::mutex mutex_;
  std::uint64_t total_ = 0;
  std::uint64_t window_total_ = 0;    ///< at the last look
  std::uint64_t window_kernels_ = 0;  ///< at the last look
  std::int64_t window_began_ = 0;
  bool begun_ = false;
  bool suspicious_ = false;  ///< the last window did not agree
  bool silent_ = false;      ///< said, or the kernel does not count
};

/// What the kernel counted, in the network namespace of this thread.
std::optional<std::uint64_t> bytes_sent_by(const std::string& device);

}  // namespace railyard::fabric::tcp
