#include "fabric/ofi/admission.hpp"

#include "base/entropy.hpp"

namespace railyard::fabric::ofi {

Result<void> Admission::open(std::span<const std::byte> job_key) {
  if (auto filled = fill_random(rail_); !filled) return filled;
  if (auto filled = fill_random(secret_); !filled) return filled;
  job_key_.assign(job_key.begin(), job_key.end());
  key_ = admission_key(secret_, job_key_);
  return {};
}

std::array<std::byte, LinkRequest::kBytes> Admission::request(const OfiRailAddress& peer, Lane lane,
                                                              const LinkTag& tag) {
  return LinkRequest{lane, tag, rail_, ++made_[peer.rail]}.pack(admission_key(peer.secret, job_key_));
}

/// A replay would take the place of a link that stands, or come in as one that its peer has ended.
std::optional<LinkRequest> Admission::admit(std::span<const std::byte> request) {
  const auto link = LinkRequest::parse(request, key_);
  if (link && seen_[link->from].take(link->number)) return link;
  ++rejected_;
  return std::nullopt;
}

}  // namespace railyard::fabric::ofi
