#include "fabric/ofi/landing.hpp"

#include <functional>

namespace railyard::fabric::ofi {

void LandingReceives::open(fid_ep* endpoint, std::size_t count) {
  endpoint_ = endpoint;
  receives_.resize(count);
  idle_.reserve(count);
  for (PostContext& context : receives_) idle_.push_back(&context);
  post();
}

bool LandingReceives::take_back(void* context) {
  auto* const mine = static_cast<PostContext*>(context);
  const PostContext* const first = receives_.data();
  if (std::less<>()(mine, first) || !std::less<>()(mine, first + receives_.size())) return false;
  idle_.push_back(mine);
  return true;
}

void LandingReceives::post() {
  while (!idle_.empty()) {
    if (fi_recv(endpoint_, nullptr, 0, nullptr, FI_ADDR_UNSPEC, idle_.back()) != 0) return;
    idle_.pop_back();
  }
}

}  // namespace railyard::fabric::ofi
