/// Fabric and domain.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "objects.hpp"
#include "registration.hpp"

namespace railyard::provider {

extern const char* const kProviderName;

struct Fabric {
  fid_fabric fid{};
  References references;
};

class Endpoint;
class Watch;

struct Domain {
  Domain(Fabric& fabric, const fi_info& info);
  fid_domain fid{};
  Fabric& fabric;
  /// One for the domain and all in it: an operation is short, and programs that want speed promise FI_THREAD_DOMAIN or
  /// FI_THREAD_COMPLETION, and pay nothing.
  Lock lock;
  /// What endpoints share even where a program keeps their threads apart: addresses and registrations. Taken inside
  /// `lock`, for a look-up.
  Lock tables;
  Registrations registrations;
  References references;

  /// A counter of a registration moves when any endpoint does: its watch has all of them.
  void watch_all(Watch& watch);
  void unwatch_all(Watch& watch);
  void joined(Endpoint& endpoint);
  void leaves(Endpoint& endpoint);

 private:
  std::vector<Endpoint*> endpoints_;  ///< that are enabled
  std::vector<Watch*> watches_;       ///< of counters that registrations are bound to, once for each
};

int open_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context);

// What a domain opens; each in its own file.
int open_addresses(fid_domain* domain, fi_av_attr* attributes, fid_av** addresses, void* context);
int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** queue, void* context);
int open_counter(fid_domain* domain, fi_cntr_attr* attributes, fid_cntr** counter, void* context);
int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context);
int open_poll_set(fid_domain* domain, fi_poll_attr* attributes, fid_poll** set);
int open_events(fid_fabric* fabric, fi_eq_attr* attributes, fid_eq** events, void* context);
int query_atomic(fid_domain* domain, fi_datatype datatype, fi_op operation, fi_atomic_attr* attributes,
                 std::uint64_t flags);
int try_wait(fid_fabric* fabric, fid** fids, int count);

}  // namespace railyard::provider
