/// What the driver asks libfabric for, and what an offer remembers of the answer.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/ofi/fid.hpp"
#include "railyard/result.hpp"

namespace railyard::fabric::ofi {

/// The interface version asked for: what Debian's 1.17 and every later release speak.
inline constexpr std::uint32_t kApiVersion = FI_VERSION(1, 17);
/// Immediate data is 32 bits on every rail.
inline constexpr std::size_t kImmediateBytes = 4;
/// Ways of registering memory that this driver honours, each where the provider wants it.
inline constexpr int kRegistrationModes =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
/// Demands on the caller that this driver meets: room in every context, a posted receive for each immediate.
inline constexpr std::uint64_t kModes = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;

/// Further demands of one query.
struct Query {
  std::string provider;  ///< empty: all of them
  fi_ep_type endpoints = FI_EP_RDM;
  std::uint64_t extra_caps = 0;
  std::uint64_t transmit_flags = 0;
  fi_progress data_progress = FI_PROGRESS_UNSPEC;
};

/// The providers that can carry a rail, in libfabric's order of preference; empty when there is none.
Result<Info> query(const Query& query);
/// Whether the entry offers connected endpoints that can carry a rail.
bool connects(const fi_info& info);
/// "tcp" for "tcp;ofi_rxm": the part that touches the hardware.
std::string_view core_name(std::string_view provider);
/// Names of all core providers that have anything to offer here, whether a rail can use it or not.
std::vector<std::string> providers_here();

/// What an offer carries from discovery to opening.
struct Choice {
  Info info;                       ///< one entry; its `next` is null
  bool delivery_complete = false;  ///< a write's completion can mean "visible at the target"
  std::string shown_address;       ///< an address for messages: "192.0.2.2"; may be empty
  std::string interface;           ///< the network interface to watch; empty: none
};

}  // namespace railyard::fabric::ofi
