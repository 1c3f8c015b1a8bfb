/// Which numbers of a sender have been here, so that a recorded message is of no use: the window of IPsec (RFC 4303).
/// Numbers may come out of order, as connections do; one that is too old to be remembered counts as seen.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>

namespace railyard::fabric::ofi {

class ReplayWindow {
 public:
  /// How far a message may be overtaken: far more connections than two rails make at the same time.
  static constexpr std::uint32_t kNumbers = 1024;

  /// Whether the number comes for the first time.
  bool take(std::uint32_t number) {
    if (number > newest_) advance(number);
    if (newest_ - number >= kNumbers || seen_[number % kNumbers]) return false;
    seen_.set(number % kNumbers);
    return true;
  }

 private:
  void advance(std::uint32_t newest) {
    if (newest - newest_ >= kNumbers) seen_.reset();
    for (std::uint32_t i = 0; i < kNumbers && newest_ != newest; ++i) seen_.reset(++newest_ % kNumbers);
    newest_ = newest;
  }

  std::uint32_t newest_ = 0;
  std::bitset<kNumbers> seen_;
};

}  // namespace railyard::fabric::ofi
