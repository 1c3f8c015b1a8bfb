/// Which rails this machine offers: one per NIC or interface of one provider.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/identity.hpp"
#include "base/nearest.hpp"
#include "base/shared_library.hpp"
#include "fabric/interface_filter.hpp"
#include "fabric/ofi/driver.hpp"
#include "fabric/ofi/info.hpp"
#include "fabric/ofi/interfaces.hpp"

namespace railyard::fabric {

namespace ofi {

namespace {

/// Never the default choice: they reach one host only, are test beds, or are older paths to what others do better.
/// Naming one in RAILYARD_PROVIDER uses it all the same.
constexpr std::array<std::string_view, 9> kOnlyByName = {"shm",  "sockets", "udp", "net", "psm",
                                                         "psm2", "psm3",    "ucx", "lnx"};

bool only_by_name(std::string_view provider) {
  return std::find(kOnlyByName.begin(), kOnlyByName.end(), core_name(provider)) != kOnlyByName.end();
}

/// Lower is better. libfabric lists providers in its own order of preference; this only moves those that name their
/// hardware before those that do not, and the kernel's own sockets last.
int rank_of(const fi_info& info) {
  if (core_name(info.fabric_attr->prov_name) == "tcp") return 2;
  return info.nic != nullptr ? 0 : 1;
}

bool matches(std::string_view provider, std::string_view asked) {
  return provider == asked || core_name(provider) == asked;
}

Error no_provider(const std::string& asked) {
  const std::vector<std::string> here = providers_here();
  const char* const filter = std::getenv("FI_PROVIDER");
  const std::string because = filter == nullptr ? "" : fmt::format(" (FI_PROVIDER={} limits them)", filter);
  if (here.empty())
    return Error(Status::not_found,
                 fmt::format("libfabric offers nothing at all on this machine{}: is its package complete?", because));
  if (asked.empty())
    return Error(
        Status::not_found,
        fmt::format("no libfabric provider here can carry a rail{}: it needs messages, RMA and 4 bytes of "
                    "immediate data on connected or reliable-datagram endpoints. Here are: {}. Bring up a network "
                    "interface, or name one in RAILYARD_PROVIDER",
                    because, fmt::join(here, ", ")));
  if (std::find(here.begin(), here.end(), core_name(asked)) != here.end())
    return Error(
        Status::unsupported,
        fmt::format("provider '{}' is here but cannot carry a rail: it needs messages, RMA and 4 bytes of "
                    "immediate data on connected or reliable-datagram endpoints. Try another in RAILYARD_PROVIDER: {}",
                    asked, fmt::join(here, ", ")));
  const std::vector<std::string_view> names(here.begin(), here.end());
  return Error(Status::not_found,
               fmt::format("no libfabric provider '{}' on this machine{}: here are {}. Set RAILYARD_PROVIDER to one of "
                           "them (nearest: {}) or leave it out",
                           asked, because, fmt::join(here, ", "), nearest_name(asked, names)));
}

bool can_carry_a_rail(const fi_info& info) { return info.ep_attr->type == FI_EP_RDM || connects(info); }

/// The full name of the provider to use; empty when none will do.
std::string choose_provider(const fi_info* found, const std::string& asked) {
  const fi_info* best = nullptr;
  for (const fi_info* info = found; info != nullptr; info = info->next) {
    const std::string_view name = info->fabric_attr->prov_name;
    if (!can_carry_a_rail(*info) || (asked.empty() ? only_by_name(name) : !matches(name, asked))) continue;
    if (best == nullptr || rank_of(*info) < rank_of(*best)) best = info;
  }
  return best == nullptr ? std::string() : std::string(best->fabric_attr->prov_name);
}

bool offered(const Result<Info>& found, std::string_view provider) {
  for (const fi_info* info = found ? found->get() : nullptr; info != nullptr; info = info->next)
    if (info->fabric_attr->prov_name == provider) return true;
  return false;
}

/// Progress as the provider itself likes it. One that moves by itself is taken so; one that is moved by calls is asked
/// for in so many words, which lets it drop its locks (FI_THREAD_COMPLETION). It is not asked to move by itself where
/// that is no habit of its own: libfabric would start a thread for it that fights the caller for the core.
Result<Info> query_by_progress(const std::string& provider, Info native) {
  bool manual = false;
  for (const fi_info* info = native.get(); info != nullptr; info = info->next)
    if (info->fabric_attr->prov_name == provider) manual = info->domain_attr->data_progress == FI_PROGRESS_MANUAL;
  if (!manual) return native;
  auto asked = query({.provider = provider, .data_progress = FI_PROGRESS_MANUAL});
  if (offered(asked, provider)) return asked;
  return native;
}

/// What the offers are made of.
struct Selection {
  std::string provider;
  fi_ep_type endpoints = FI_EP_RDM;
  Info found;
};

/// The connected endpoints of a provider; `provider` stays empty where it has none. They are asked for as moved by
/// calls: the tcp provider claims to move by itself, but its bytes reach memory only inside calls to it.
Result<Selection> select_connected(const std::string& asked) {
  auto found = query({.provider = asked, .endpoints = FI_EP_MSG, .data_progress = FI_PROGRESS_MANUAL});
  if (!found) return std::move(found.error());
  Selection selection;
  selection.provider = choose_provider(found->get(), asked);
  selection.endpoints = FI_EP_MSG;
  selection.found = std::move(*found);
  return selection;
}

/// Connected endpoints where the best provider has them, else datagrams; or what the settings say.
Result<Selection> select(const Settings& settings) {
  auto native = query({.provider = settings.provider});
  if (!native) return std::move(native.error());
  const std::string provider = choose_provider(native->get(), settings.provider);
  // A full name, "tcp;ofi_rxm", asks for the datagrams that its second part makes of connections.
  const bool layered = settings.provider.find(';') != std::string::npos;
  if (settings.endpoints != "datagram" && !layered) {
    auto connected = select_connected(provider.empty() ? settings.provider : std::string(core_name(provider)));
    if (!connected || !connected->provider.empty()) return connected;
  }
  if (provider.empty()) return no_provider(settings.provider);
  if (settings.endpoints == "connected")
    return Error(Status::unsupported,
                 fmt::format("RAILYARD_ENDPOINTS=connected, but provider '{}' has no connected endpoints with shared "
                             "receives: set it to auto, or choose another in RAILYARD_PROVIDER",
                             provider));
  auto found = query_by_progress(provider, std::move(*native));
  if (!found) return std::move(found.error());
  return Selection{provider, FI_EP_RDM, std::move(*found)};
}

/// IPv4 before IPv6 before an IPv6 address that is good on its own link only.
int address_rank(const fi_info& info) {
  if (info.addr_format != FI_SOCKADDR_IN6) return 0;
  if (info.src_addr == nullptr || info.src_addrlen < sizeof(sockaddr_in6)) return 1;
  return IN6_IS_ADDR_LINKLOCAL(&static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr) ? 2 : 1;
}

/// The best entry for each NIC, in the order found.
std::vector<const fi_info*> one_per_nic(const fi_info* found, const std::string& provider) {
  std::vector<const fi_info*> nics;
  for (const fi_info* info = found; info != nullptr; info = info->next) {
    if (info->fabric_attr->prov_name != provider || info->domain_attr->name == nullptr) continue;
    if (!can_carry_a_rail(*info)) continue;
    const auto same = std::find_if(nics.begin(), nics.end(), [&](const fi_info* other) {
      return std::strcmp(other->domain_attr->name, info->domain_attr->name) == 0;
    });
    if (same == nics.end())
      nics.push_back(info);
    else if (address_rank(*info) < address_rank(**same))
      *same = info;
  }
  return nics;
}

bool link_is_down(const fi_info& info) {
  return info.nic != nullptr && info.nic->link_attr != nullptr && info.nic->link_attr->state == FI_LINK_DOWN;
}

Result<RailOffer> make_offer(const fi_info& info, bool delivery_complete, const Interface* interface, bool host_only) {
  const bool loopback = interface != nullptr && interface->loopback;
  // One entry alone: fi_dupinfo copies no list.
  auto choice = std::make_shared<Choice>();
  choice->info.reset(library().dupinfo(&info));
  if (!choice->info) return Error(Status::no_memory, "no memory for a copy of a fi_info");
  choice->delivery_complete = delivery_complete;
  choice->shown_address = address_text(info);
  if (interface != nullptr && !loopback) choice->interface = info.domain_attr->name;
  RailOffer offer;
  offer.driver = "ofi";
  offer.provider = info.fabric_attr->prov_name;
  offer.domain = info.domain_attr->name;
  offer.fabric = info.fabric_attr->name == nullptr ? "" : info.fabric_attr->name;
  // Every machine has a 127.0.0.1 and a "shm": equal names there do not mean that they reach each other.
  if (loopback || host_only) offer.fabric += "@" + machine_word();
  offer.line_rate = line_rate(info);
  offer.loopback = loopback;
  offer.driver_data = std::move(choice);
  return offer;
}

Error no_interface(const Settings& settings, const std::string& provider, const std::vector<const fi_info*>& nics,
                   const std::vector<std::string>& down) {
  std::vector<std::string> names;
  names.reserve(nics.size());
  for (const fi_info* info : nics) names.emplace_back(info->domain_attr->name);
  const std::string state = down.empty() ? "" : fmt::format(" (down: {})", fmt::join(down, ", "));
  if (settings.interfaces.empty())
    return Error(Status::not_found, fmt::format("provider '{}' has no interface that is up{}: bring one up with `ip "
                                                "link set NAME up`",
                                                provider, state));
  return Error(Status::not_found, fmt::format("RAILYARD_INTERFACES={} leaves no rail: provider '{}' has {}{}",
                                              settings.interfaces, provider, fmt::join(names, ", "), state));
}

}  // namespace
}  // namespace ofi

Result<std::vector<RailOffer>> discover_ofi(const Settings& settings) {
  using namespace ofi;
  if (auto loaded = load_library(settings.libfabric); !loaded) return std::move(loaded.error());
  const KeepSignals keep;  // providers are loaded when they are first asked for
  auto selection = select(settings);
  if (!selection) return std::move(selection.error());
  const std::string& provider = selection->provider;
  const fi_ep_type endpoints = selection->endpoints;
  const bool delivery_complete =
      offered(query({.provider = provider, .endpoints = endpoints, .transmit_flags = FI_DELIVERY_COMPLETE}), provider);
  const bool host_only =
      !offered(query({.provider = provider, .endpoints = endpoints, .extra_caps = FI_REMOTE_COMM}), provider);

  const auto interfaces = list_interfaces();
  const InterfaceFilter filter(settings.interfaces);
  const std::vector<const fi_info*> nics = one_per_nic(selection->found.get(), provider);
  std::vector<RailOffer> offers;
  std::vector<std::string> down;
  for (const fi_info* info : nics) {
    const auto interface = interfaces.find(info->domain_attr->name);
    const bool is_interface = interface != interfaces.end();
    if (link_is_down(*info) || (is_interface && !interface->second.up)) {
      down.emplace_back(info->domain_attr->name);
      continue;
    }
    if (!filter.takes(info->domain_attr->name)) continue;
    auto offer = make_offer(*info, delivery_complete, is_interface ? &interface->second : nullptr, host_only);
    if (!offer) return std::move(offer.error());
    offers.push_back(std::move(*offer));
  }
  if (offers.empty()) return no_interface(settings, provider, nics, down);
  std::stable_partition(offers.begin(), offers.end(), [](const RailOffer& offer) { return !offer.loopback; });
  return offers;
}

}  // namespace railyard::fabric
