/// Receives that remote immediates use up, where the provider wants that (FI_RX_CQ_DATA).
#pragma once

#include <rdma/fi_endpoint.h>

#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric::ofi {

class LandingReceives {
 public:
  /// Posts `count` receives to an endpoint or a shared receive context, which must outlive their use.
  void open(fid_ep* endpoint, std::size_t count);
  /// Takes a receive back that came with a completion; false: it is none of these.
  bool take_back(void* context);
  /// Posts what was taken back, as far as the provider has room.
  void post();
  /// Whether some wait to be posted.
  bool waiting() const { return !idle_.empty(); }

 private:
  fid_ep* endpoint_ = nullptr;
  std::vector<PostContext> receives_;
  std::vector<PostContext*> idle_;  ///< those not posted; never grows past its reserve
};

}  // namespace railyard::fabric::ofi
