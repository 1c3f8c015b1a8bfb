/// A strict libfabric provider for tests, "strict": libstrict-fi.so, found through FI_PROVIDER_PATH.
///
/// It carries real traffic over tcp;ofi_rxm, but demands everything a provider may demand and lets nothing pass:
///  - registrations are bound to one endpoint and enabled (FI_MR_ENDPOINT), sources and destinations need a descriptor
///    (FI_MR_LOCAL), keys are the provider's and exist only after enabling (FI_MR_PROV_KEY);
///  - an operation whose descriptor is missing, closed, not enabled, bound to another endpoint, too small or without
///  the
///    access is refused; a remote key is valid only at the endpoint its registration is bound to. For that each
///    endpoint has a domain of its own below, so that a key of the other lane does not exist there;
///  - an endpoint does not close before its registrations, a registration not under a transmit, nothing twice;
///  - a context (FI_CONTEXT2) is scribbled over while it is in flight and may not be used twice at a time;
///  - every remote immediate uses up a posted receive (FI_RX_CQ_DATA);
///  - the end of a write may be told late, after what its target did with it: STRICT_FI_LATE says after how many reads
///    of the queue.
/// Each breach is recorded; the functions at the end tell a test about them, and STRICT_FI_LOG names a file that gets
/// them too.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace strict {

inline constexpr int kRegistrationModes = FI_MR_ENDPOINT | FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_ALLOCATED;
inline constexpr std::uint64_t kModes = FI_CONTEXT2 | FI_RX_CQ_DATA;
inline constexpr const char* kInner = "tcp;ofi_rxm";

/// One lock for everything: this is a test double, its own races would only hide those of others.
std::recursive_mutex& big_lock();
/// Records a breach and answers `code`.
int breach(int code, const std::string& text);
/// Objects that exist. A closed one is kept as memory, so that a late use is recognised and not a crash.
void born(const void* object);
bool alive(const void* object);
/// Strikes it off; false (and a breach) when it is not alive.
bool strike_off(const void* object, const char* kind);
void bury(std::shared_ptr<void> object);
template <typename T>
bool dies(T* object, const char* kind) {
  if (!strike_off(object, kind)) return false;
  bury(std::shared_ptr<void>(std::unique_ptr<T>(object)));
  return true;
}

struct Endpoint;

struct Fabric {
  fid_fabric fid{};
  fid_fabric* inner = nullptr;
};

struct Domain {
  fid_domain fid{};
  Fabric* fabric = nullptr;
  fi_info* inner_info = nullptr;
  int children = 0;
};

struct Registration {
  fid_mr fid{};
  Domain* domain = nullptr;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  std::uint64_t access = 0;
  Endpoint* endpoint = nullptr;  ///< what it is bound to
  fid_mr* inner = nullptr;       ///< there once it is enabled
  int transmits = 0;             ///< in flight with its descriptor
};

/// The completion of a write that is told late: until then the write is in flight.
struct LateWrite {
  Endpoint* endpoint = nullptr;
  fi_cq_data_entry entry{};
  std::size_t due = 0;  ///< at this read of the queue
};

struct Queue {
  fid_cq fid{};
  Domain* domain = nullptr;
  fi_cq_attr attributes{};
  std::vector<Endpoint*> endpoints;
  std::size_t next = 0;  ///< which endpoint's queue is read first; counts the reads
  std::deque<LateWrite> late;
  std::deque<fi_cq_err_entry> errors;
};

struct AddressVector {
  fid_av fid{};
  Domain* domain = nullptr;
  fi_av_attr attributes{};
  Endpoint* endpoint = nullptr;
};

/// One operation in flight.
struct Operation {
  Endpoint* endpoint = nullptr;
  void* context = nullptr;
  Registration* registration = nullptr;
  bool receive = false;
  bool used_up = false;  ///< a receive that an immediate took: what the inner provider still says of it is dropped
};

struct Endpoint {
  fid_ep fid{};
  Domain* domain = nullptr;
  fid_domain* inner_domain = nullptr;
  fid_ep* inner = nullptr;
  fid_cq* inner_queue = nullptr;
  fid_av* inner_addresses = nullptr;
  Queue* queue = nullptr;
  AddressVector* addresses = nullptr;
  int registrations = 0;  ///< bound to it and not closed
  std::unordered_map<Operation*, std::unique_ptr<Operation>> operations;
  std::unordered_map<void*, Operation*> contexts;
  std::list<Operation*> receives;  ///< oldest first
};

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context);
int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context);
int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** queue, void* context);
int open_addresses(fid_domain* domain, fi_av_attr* attributes, fid_av** addresses, void* context);
fi_ops_mr* registration_operations();

/// The registration behind a descriptor if it may be used so; null after recording why not.
Registration* check_descriptor(Endpoint& endpoint, const void* memory, std::size_t bytes, void* descriptor,
                               std::uint64_t access, const char* operation);
/// Takes the operation off the books; returns the application's context.
void* finish(Operation* operation);

template <typename Outer, typename FidType>
Outer* outer(FidType* inner_member) {
  return reinterpret_cast<Outer*>(inner_member);  // the fid is every object's first member
}

}  // namespace strict

extern "C" {
/// How many breaches there were, and the text of each.
unsigned strict_fi_violations(void);
const char* strict_fi_violation(unsigned index);
void strict_fi_forget_violations(void);
/// How many objects are open.
unsigned strict_fi_open_objects(void);
/// Immediates that found their receive, over all endpoints: shows that FI_RX_CQ_DATA was really exercised.
unsigned strict_fi_receives_used_up(void);
}
