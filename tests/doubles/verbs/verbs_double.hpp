/// Verbs devices for tests, without any: the calls of libibverbs that rails use, on a network inside this process.
///
/// A Network puts itself in the place of libibverbs as long as it exists:
///
///   verbs_double::Network network({.devices = 2});
///   ...open rails on "fake0" and "fake1", or call network.library() and ibv_post_send() as a program would...
///   EXPECT_EQ(network.violations(), std::vector<std::string>());
///   EXPECT_EQ(network.alive(), 0u);
///
/// It behaves as devices do where it matters to a driver: queues are rings with an end, a work request that asked for
/// no completion leaves its queue only when a later one's was polled, a completion queue that runs over is dead, keys
/// and bounds are checked, a peer that is gone is found out by a timeout, a pair in error flushes what it holds, and
/// objects that others need cannot be destroyed. What a program must never do is recorded as a violation.
///
/// Bytes move when the work request is posted, so that tests are the same each time; freeze() and hold_completions()
/// keep things under way for as long as a test looks. With Motion::by_hand they move in advance() alone: a post and
/// a poll then cost what they cost on a device (a work queue entry of 64 bytes and a doorbell; a completion of 64 bytes
/// read), and no lock is taken.
///
/// Threads: as for devices, but each queue (a pair's two, a shared receive queue, a completion queue) is used by one
/// thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/verbs/library.hpp"

namespace railyard::verbs_double {

struct Core;

struct Limits {
  int max_qp = 4096;  ///< of both kinds together
  int max_qp_wr = 8192;
  int max_cq = 1024;
  int max_cqe = 1 << 20;
  int max_srq = 256;
  int max_srq_wr = 16384;
  int max_pd = 256;
  int max_mr = 1 << 20;
  int max_ah = 4096;
  int max_sge = 30;  ///< told to who asks; a work request that brings more than one is a violation
  int max_rd_atomic = 16;
  std::uint32_t max_inline_data = 220;
};

struct DeviceOptions {
  Limits limits = {};
  std::uint8_t ports = 1;
  bool infiniband = false;  ///< local identifiers and one GID, rather than Ethernet with the four GIDs of an address
  ibv_mtu max_mtu = IBV_MTU_4096;
  ibv_mtu active_mtu = IBV_MTU_1024;
  std::uint8_t active_width = 2;   ///< 4 lanes
  std::uint8_t active_speed = 32;  ///< 25 Gbit/s each
  bool port_active = true;
  bool ece = true;      ///< has connection options to agree on
  bool dma_buf = true;  ///< registers what a descriptor can map
  bool atomics = true;
  /// Completions of a pair vanish with it, receives that they took are lost; else they stay to be polled.
  bool removes_completions = false;
  /// Of the third and fourth GID of each port, on Ethernet; empty: 127.0.x.y.
  std::string address = {};
  /// Under /sys/class/infiniband in a machine; empty: /sys/class/infiniband/NAME, which is not there.
  std::string system_path = {};
};

struct NetworkOptions {
  std::size_t devices = 1;
  DeviceOptions device = {};  ///< for all of them; Network::options() changes one
};

/// What can be alive at a device.
enum class Kind : std::uint8_t {
  context,
  domain,
  region,
  completion_queue,
  shared_receive_queue,
  connected_pair,
  datagram_pair,
  address_handle,
};
inline constexpr std::size_t kKinds = 8;

struct Count {
  std::size_t created = 0;
  std::size_t alive = 0;
  std::size_t peak = 0;
};

/// What a device has done.
struct Traffic {
  std::uint64_t doorbells = 0;  ///< posts to send queues that brought something
  std::uint64_t work_requests = 0;
  std::uint64_t signalled = 0;
  std::uint64_t inlined = 0;
  std::uint64_t completions = 0;     ///< put into completion queues, of all kinds
  std::uint64_t receiver_waits = 0;  ///< work requests that found no receive at the other end and had to wait
  std::uint64_t datagrams_sent = 0;
  std::uint64_t datagrams_received = 0;
  std::uint64_t datagrams_lost = 0;     ///< as a test wanted it
  std::uint64_t datagrams_refused = 0;  ///< nobody there, wrong queue key, no receive, too short a receive
  std::uint32_t peak_send_queue = 0;    ///< work requests not yet retired, in any pair
  std::uint32_t peak_completions = 0;   ///< completions not yet polled, in any queue
  std::uint32_t peak_receives = 0;      ///< receives in any shared receive queue
};

enum class Motion : std::uint8_t {
  by_itself,  ///< in posts, and in polls for what had to wait
  by_hand,    ///< in advance() alone
};

/// One at a time. Devices are named by their number: 0 is "fake0".
class Network {
 public:
  explicit Network(const NetworkOptions& options = {});
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// The calls, as rails see them while this exists. A test may null the optional ones.
  fabric::verbs::Library& library() { return library_; }
  /// For changes before the device is opened.
  DeviceOptions& options(std::size_t device);

  void motion(Motion motion);
  /// Moves all that can move.
  void advance();
  /// Nothing goes out or in, no clock runs.
  void freeze(std::size_t device);
  void thaw(std::size_t device);
  /// What the device sends arrives, its own completions of it do not come before this is off again.
  void hold_completions(std::size_t device, bool hold);

  /// A slow device: a post moves nothing, each poll of anybody moves that many work requests of each pair. 0: all at
  /// once, in the post.
  void pace(std::size_t device, unsigned work_requests);
  /// What the device's connected pairs send stays in the network from now on. Pairs that gave up by the time it is let
  /// go, or were destroyed, have ghosts: their writes and messages arrive if the other end still listens to them.
  void keep_packets(std::size_t device);
  void release_packets(std::size_t device);

  /// With the event, also when it was so before: devices repeat themselves.
  void port_down(std::size_t device, std::uint8_t port = 1);
  void port_up(std::size_t device, std::uint8_t port = 1);
  /// Packets get lost without an event: all of a device's, or those between two.
  void cut(std::size_t device);
  void mend(std::size_t device);
  void cut_path(std::size_t one, std::size_t other);
  void mend_path(std::size_t one, std::size_t other);
  /// How long an unanswered work request is tried.
  void retry_time(std::chrono::nanoseconds time);
  /// The device is gone: the event, then every call fails with EIO and completions stop; objects can still be
  /// destroyed.
  void kill(std::size_t device);
  /// A pair fails by itself (IBV_EVENT_QP_FATAL).
  void break_pair(std::size_t device, std::uint32_t qp_num);

  /// Datagrams that the device sends from now on.
  void lose_datagrams(std::size_t device, unsigned next);
  void lose_every(std::size_t device, unsigned every);  ///< 0: none
  void duplicate_datagrams(std::size_t device, unsigned next);
  void swap_datagrams(std::size_t device, unsigned next);  ///< each of them is overtaken by the one after it
  void delay_datagrams(std::size_t device, std::chrono::nanoseconds time);
  /// As somebody on the wire sees them, from now on.
  void record_datagrams(std::size_t device);
  std::vector<std::vector<std::byte>> recorded_datagrams(std::size_t device) const;

  /// The nth call (1: the next) of that name, "create_qp" or "post_send", on any device fails with `error`, and the
  /// `times` - 1 after it.
  void fail_call(std::string_view name, unsigned nth, int error, unsigned times = 1);

  Count count(std::size_t device, Kind kind) const;
  /// Over all devices. The peak is that of the sum.
  Count count(Kind kind) const;
  /// Objects of every kind.
  std::size_t alive() const;
  Traffic traffic(std::size_t device) const;
  /// Registrations alive whose writes may pass each other.
  std::size_t relaxed_regions() const;

  std::vector<std::string> violations() const;
  void forget_violations();

 private:
  std::unique_ptr<Core> core_;
  fabric::verbs::Library library_;
};

}  // namespace railyard::verbs_double
