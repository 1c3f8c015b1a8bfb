/// The objects behind the double's handles, and the network they are on. Everything here is under Core::lock, except
/// what queues.hpp lets posts and polls do without.
#pragma once

#include <array>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "doubles/verbs/queues.hpp"
#include "doubles/verbs/verbs_double.hpp"

namespace railyard::verbs_double {

using Clock = std::chrono::steady_clock;

struct DoubleContext;
struct QueuePair;
struct SharedReceiveQueue;

struct Gid {
  ibv_gid gid{};
  ibv_gid_type type = IBV_GID_TYPE_IB;
};

struct Port {
  bool active = true;
  std::uint16_t lid = 0;
  std::vector<Gid> gids;
};

struct Region : ibv_mr {
  Region() : ibv_mr{} {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();
  void unmap();

  std::byte* memory = nullptr;
  std::uint64_t iova = 0;
  unsigned access = 0;
  void* mapping = nullptr;  ///< of a descriptor
  std::size_t mapping_bytes = 0;
  void* gpu = nullptr;  ///< it is memory of a GPU
};

/// Where bytes lie: in memory of this process, or in that of a GPU, which nobody but the double of its driver reaches.
struct Location {
  std::byte* memory = nullptr;
  void* gpu = nullptr;  ///< the driver's name of the mapping
  std::size_t at = 0;   ///< in it

  explicit operator bool() const { return memory != nullptr || gpu != nullptr; }
};
void move_bytes(const Location& to, const Location& from, std::size_t bytes);

struct DatagramFaults {
  unsigned lose_next = 0;
  unsigned lose_every = 0;
  unsigned since_lost = 0;
  unsigned duplicate_next = 0;
  unsigned swap_next = 0;
  std::chrono::nanoseconds delay{0};
  bool record = false;
  std::vector<std::vector<std::byte>> recorded;
};

struct Device : ibv_device {
  std::size_t number = 0;
  DeviceOptions options;
  std::vector<Port> ports;
  std::vector<DoubleContext*> contexts;
  std::unordered_map<std::uint32_t, QueuePair*> pairs;
  std::vector<Region*> regions;  ///< by the upper bits of a key; null: no longer there
  std::array<Count, kKinds> counts{};
  Traffic traffic;
  DatagramFaults faults;
  std::uint32_t next_qp_num = 0x100;
  bool frozen = false;
  bool held = false;
  bool keeps_packets = false;
  unsigned pace = 0;  ///< work requests of a pair at a time; 0: all
  bool cut = false;
  bool dead = false;

  Port* port(std::uint32_t number_from_one) {
    return number_from_one >= 1 && number_from_one <= ports.size() ? &ports[number_from_one - 1] : nullptr;
  }
};

struct DoubleContext : ibv_context {
  DoubleContext() : ibv_context{} {}
  DoubleContext(const DoubleContext&) = delete;
  DoubleContext& operator=(const DoubleContext&) = delete;
  ~DoubleContext();

  Device* owner = nullptr;
  int children = 0;
  std::deque<ibv_async_event> events;
  std::unordered_map<const void*, int> unacknowledged;  ///< events handed out, by what they are about
};

struct Domain : ibv_pd {
  int children = 0;
};

struct CompletionQueue : ibv_cq {
  CompletionRing ring;
  Device* owner = nullptr;
  /// Alive, device alive, no fault asked for: a poll looks no further.
  std::atomic<bool> plain{true};
  bool overrun = false;
  int users = 0;
};

struct SharedReceiveQueue : ibv_srq {
  ReceiveQueue queue;
  Device* owner = nullptr;
  std::atomic<bool> plain{true};
  int users = 0;
};

struct AddressHandle : ibv_ah {
  ibv_ah_attr attributes{};
};

struct QueuePair : ibv_qp {
  SendQueue sends;
  ReceiveQueue receives;
  Device* owner = nullptr;
  /// Ready to send, device alive, no fault asked for: a post looks no further.
  std::atomic<bool> plain{false};
  std::atomic<ibv_qp_state> now{IBV_QPS_RESET};
  bool signals_all = false;
  bool queued = false;       ///< among Core::active
  bool heard = false;        ///< something came in
  std::uint32_t copied = 0;  ///< up to here, work requests are also among Core::stragglers
  ibv_qp_attr settings{};
  bool stalled = false;
  Clock::time_point stalled_since{};

  ReceiveQueue& receive_queue() { return srq == nullptr ? receives : static_cast<SharedReceiveQueue*>(srq)->queue; }
  CompletionQueue& send_completions() { return *static_cast<CompletionQueue*>(send_cq); }
  CompletionQueue& receive_completions() { return *static_cast<CompletionQueue*>(recv_cq); }
  bool connected() const { return qp_type == IBV_QPT_RC; }
};

/// One on its way.
struct Datagram {
  Device* from = nullptr;
  Gid source;
  std::uint16_t source_lid = 0;
  std::uint32_t source_qp = 0;
  ibv_ah_attr to{};
  std::uint32_t qp_num = 0;
  std::uint32_t queue_key = 0;
  bool with_immediate = false;
  __be32 immediate = 0;
  std::vector<std::byte> bytes;
  Clock::time_point due{};
  bool overtaken = false;  ///< goes right after the next one
};

/// A copy of a work request that is still in the network.
struct Straggler {
  QueuePair* pair = nullptr;
  std::vector<WorkRequest> request;  ///< with its bytes behind it
};

struct CallFault {
  unsigned after = 0;
  unsigned times = 0;
  int error = 0;
};

struct Core {
  mutable std::mutex lock;
  std::vector<std::unique_ptr<Device>> devices;
  std::atomic<bool> by_itself{true};
  /// Pairs and datagrams with something to do: a poll that reads zero need not take the lock.
  std::atomic<std::size_t> waiting{0};
  std::vector<QueuePair*> active;
  std::deque<Datagram> flying;
  std::deque<Straggler> stragglers;
  std::set<std::pair<std::size_t, std::size_t>> cut_paths;
  std::chrono::nanoseconds retry_time = std::chrono::milliseconds(20);

  std::unordered_map<const void*, std::shared_ptr<void>> living;
  std::vector<std::shared_ptr<void>> buried;  ///< kept as memory, so that a late use is recognised and not a crash
  std::array<Count, kKinds> totals{};
  std::vector<std::string> violations;
  std::map<std::string, CallFault, std::less<>> faults;
  std::unordered_set<CompletionQueue*> completion_queues;
  std::unordered_set<SharedReceiveQueue*> shared_queues;

  // record.cc
  void violation(const std::string& text);
  /// The error that a test wants from this call, or 0.
  int wanted_failure(std::string_view name);
  /// Whether the device's limit lets one more be made; if not, errno says so.
  bool admit(Device& device, Kind kind);
  template <typename Object>
  void born(Device& device, Kind kind, Object* object) {
    living.emplace(object, std::shared_ptr<Object>(object));
    count_one(device, kind);
  }
  void count_one(Device& device, Kind kind);
  /// False, and a violation, when it is not alive.
  bool known(const void* object, const char* call);
  void bury(Device& device, Kind kind, const void* object);
  /// Computes anew which queues need no closer look: one pair, or all.
  void look_closer(QueuePair& pair);
  void look_closer();

  // events.cc
  void tell(DoubleContext& context, ibv_event_type type, const void* about);
  void tell_pair(QueuePair& pair, ibv_event_type type);
  void tell_port(Device& device, ibv_event_type type, std::uint8_t port);
  /// The object is about to go.
  void forget_events(DoubleContext& context, const void* object, const char* what);

  // motion.cc
  void wake(QueuePair& pair);
  void ring(QueuePair& pair);
  void advance();
  void step(QueuePair& pair);
  /// All that was executed is complete.
  void acknowledge(QueuePair& pair);
  bool stalled_too_long(QueuePair& pair);

  // connected.cc
  struct Verdict {
    enum class Kind : std::uint8_t { done, waits, unanswered, failed } kind;
    ibv_wc_status status = IBV_WC_SUCCESS;
  };
  QueuePair* peer_of(QueuePair& pair);
  Verdict execute(QueuePair& pair, WorkRequest& request);

  // stragglers.cc
  void keep_packets(QueuePair& pair, std::uint32_t end);
  void deliver_stragglers(Device& from);

  // datagrams.cc
  Verdict launch(QueuePair& pair, WorkRequest& request);
  void land_datagrams();
  void land(const Datagram& datagram);

  // completions.cc
  void complete(CompletionQueue& queue, const Completion& completion);
  void complete_send(QueuePair& pair, std::uint32_t index, ibv_wc_status status);
  void complete_receive(QueuePair& pair, const ReceiveRequest& request, Completion completion);
  void remove_completions(CompletionQueue& queue, const QueuePair& pair);
  void to_error(QueuePair& pair);
  /// The work request in front fails, and with it the pair.
  void fail(QueuePair& pair, ibv_wc_status status);

  // devices.cc
  struct Destination {
    Device* device = nullptr;
    Port* port = nullptr;
  };
  Destination find(const ibv_ah_attr& address, const Device& from);
  bool path_open(const Device& from, std::uint8_t from_port, const Destination& to) const;

  void switch_port(Device& device, std::uint8_t port, bool active);

  // regions.cc
  Location local(const QueuePair& pair, std::uint32_t key, std::uint64_t address, std::size_t bytes, bool write);
  Location remote(const QueuePair& pair, std::uint32_t key, std::uint64_t address, std::size_t bytes, unsigned access);
};

/// The network that exists.
Core* core();
inline Core& here() { return *core(); }
inline Device& device_of(const ibv_context* context) { return *static_cast<const DoubleContext*>(context)->owner; }

/// Each file's part of the calls.
void add_device_calls(fabric::verbs::Library& calls);
void add_region_calls(fabric::verbs::Library& calls);
void add_queue_calls(fabric::verbs::Library& calls);
void add_pair_calls(fabric::verbs::Library& calls);
void add_state_calls(fabric::verbs::Library& calls);
void add_event_calls(fabric::verbs::Library& calls);
/// Posts and polls.
void add_datapath(ibv_context_ops& operations);

/// The ports follow the options when the device is first used.
void set_up_ports(Device& device);
bool address_valid(const Device& device, const ibv_ah_attr& address);

/// What every call that can fail begins with: an error a test asked for, or that of a dead device; 0: go on.
int refused(Device& device, std::string_view name);
/// For calls that answer a pointer: errno and null.
template <typename Object>
Object* no(int error) {
  errno = error;
  return nullptr;
}

}  // namespace railyard::verbs_double
