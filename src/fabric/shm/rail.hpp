/// A rail through shared memory, for processes of one user on one machine: the contract of fabric/rail.hpp on the
/// endpoints of src/shm. docs/shm.md, "The rail", has the protocol and why it is safe.
///
/// Two rules carry everything. *Only the owner stores into its memory*: a write is a record that the target's own poll
/// applies (short ones carry their bytes; long ones say where they lie and the target reads them there), after it has
/// looked up the key in its own table. So a key that is gone is refused, and a fence is exact: the target stops
/// applying. *Nothing waits in a ring for something that comes later in it* but a message without a receive: what takes
/// time (long writes, reads) is taken out of the ring as a job, and jobs are done a slice at a time.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fabric/base_rail.hpp"
#include "fabric/device_copies.hpp"
#include "fabric/inbound.hpp"
#include "fabric/shm/rail_limits.hpp"
#include "fabric/shm/rail_protocol.hpp"
#include "fabric/shm/rail_registrations.hpp"
#include "shm/endpoint.hpp"
#include "shm/single_copy.hpp"

namespace railyard::fabric::shm {

// What the rail takes from the core.
using railyard::shm::Arrival;
using railyard::shm::copy_bytes;
using railyard::shm::Endpoint;
using railyard::shm::Inbound;
using railyard::shm::kDefaultDirectory;
using railyard::shm::Listener;
using railyard::shm::Outbound;
using railyard::shm::PeerMemory;
using railyard::shm::prefetch_for_reading;
using railyard::shm::Record;
using railyard::shm::remove_dead_objects;
using railyard::shm::Reservation;
using railyard::shm::Word;

/// Device memory of this process that peers may be told of: an allocation.
struct DeviceMemory {
  accelerator::Allocation allocation;
  std::unique_ptr<accelerator::Shared> shared;  ///< once a peer was told
  std::uint32_t share = 0;
  std::size_t users = 0;  ///< registrations
};

class ShmRail final : public BaseRail, private Listener {
 public:
  struct Options {
    std::string directory = kDefaultDirectory;
    /// Bytes from which on they are read straight out of a peer's memory, where that is permitted; SIZE_MAX: never.
    std::size_t single_copy_from = kLeastSingleCopy;
  };
  static Result<std::unique_ptr<ShmRail>> open(const Options& options);
  ~ShmRail() override;
  ShmRail(const ShmRail&) = delete;
  ShmRail& operator=(const ShmRail&) = delete;

  std::vector<std::byte> address() const override;

  Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) override;
  void disconnect(RemoteId remote) override;
  bool fence(LinkTag tag) override;
  void forget(LinkName link) override { inbound_.forget(link); }
  Liveness liveness(RemoteId remote) override;
  OneSided one_sided() const override { return one_sided_; }
  std::optional<Delivery> delivery(RemoteId remote) override;

  Result<Registration> register_memory(std::span<std::byte> memory, Access access) override;
  void revoke(const Registration& registration) override;

  Post send(RemoteId remote, const LocalChunk& message, PostContext* context) override;
  Post receive(const LocalChunk& buffer, PostContext* context) override;
  Post write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) override;
  Post read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) override;
  std::size_t poll(std::span<Event> events) override;
  int descriptor() const override;
  bool arm() override;
  [[gnu::hot]] bool wake(RemoteId remote) override;
  void stop() override;

  std::string describe_error(int error) const override;

  /// Bytes that came straight out of a peer's memory.
  std::uint64_t bytes_copied_once() const { return bytes_copied_once_; }

 private:
  struct Peer;

  /// A way to a peer's rail.
  struct ShmLink : Link {
    bool read_by_peer = false;  ///< the peer gets long writes itself
    std::uint32_t waiting = 0;  ///< operations that are not done
    Peer* peer = nullptr;       ///< null once that is gone
    /// What the peer knows it by.
    std::uint64_t number() const { return std::uint64_t{generation} << 32U | remote; }
    /// A random word while the link lives, then 0. The peer reads it after it has read a long write's bytes: they count
    /// only if the link was still alive then, for afterwards their memory may have been used for something else.
    std::atomic<std::uint64_t> guard{0};
  };
  /// A peer's link to here.
  struct ShmInboundLink : Carrier {
    Peer* peer = nullptr;
    std::uint64_t number = 0;
    std::uint64_t guard_address = 0;
    std::uint64_t guard = 0;
    std::size_t landing = 0;        ///< bytes of the write whose chunks are arriving
    bool bad_write = false;         ///< one of them had a bad key
    Trouble bad_copy = kNoTrouble;  ///< one of its copies by a GPU failed

    bool same_peer(const ShmInboundLink& other) const { return peer == other.peer; }
  };
  /// What this rail was asked to do and has not done yet.
  struct Operation {
    enum class Kind : std::uint8_t {
      free,
      write,        ///< its bytes go into the ring as there is room
      pull,         ///< the peer is asked to get the bytes
      fetch,        ///< a read that the peer is asked to answer
      own_read,     ///< a read that this rail does itself, then has checked
      device_read,  ///< the same, out of the peer's device memory
    };
    Kind kind = Kind::free;
    bool ended = false;              ///< its link has gone: it fails when its copies are done
    std::uint32_t copying = 0;       ///< device copies under way that touch `local`
    DeviceMemory* device = nullptr;  ///< `local` is device memory
    std::uint64_t location = 0;      ///< of a device read: a DeviceLocation
    std::uint32_t index = 0;         ///< in the table
    std::uint32_t use = 1;           ///< how often that slot was used: with the index it is the operation's handle
    RemoteId link = 0;
    PostContext* context = nullptr;
    std::byte* local = nullptr;
    std::size_t bytes = 0;
    std::size_t moved = 0;
    RemoteChunk remote;
    WriteOptions options;
  };
  /// What a peer has asked for and takes time.
  struct Job {
    bool pull = false;         ///< else an answer to a read
    bool from_device = false;  ///< `source` is a DeviceLocation
    bool immediate_wanted = false;
    std::uint32_t immediate = 0;
    std::uint64_t number = 0;
    std::uint64_t handle = 0;
    std::uint64_t key = 0;
    std::uint64_t address = 0;
    std::uint64_t source = 0;  ///< of a pull, in the peer's memory
    std::size_t bytes = 0;
    std::size_t moved = 0;
  };
  /// A peer's device memory, as it was told of.
  struct PeerShare {
    accelerator::ShareHandle handle;
    std::uint64_t base = 0;
    std::shared_ptr<accelerator::Mapping> mapping;  ///< none yet, or none needed
    bool unusable = false;
  };
  /// A copy by a GPU that is under way, and what happens when it is done.
  struct DeviceCopy {
    DeviceCopies::Ticket ticket;
    std::shared_ptr<accelerator::Mapping> source;  ///< stays mapped until then
    std::byte* bounce = nullptr;
    std::byte* store_to = nullptr;  ///< host memory that gets the bytes of the bounce buffer
    std::size_t store_bytes = 0;
    bool last = true;  ///< of what was asked for
    Peer* peer = nullptr;
    // What a peer asked for:
    LinkTag link;
    std::uint64_t number = 0;
    std::uint64_t key = 0;
    std::uint64_t handle = 0;  ///< 0: it wants no answer
    std::uint64_t address = 0;
    bool guarded = false;  ///< the bytes came out of the peer's memory
    bool immediate_wanted = false;
    std::uint32_t immediate = 0;
    std::size_t bytes = 0;
    // What this side asked for:
    Operation* operation = nullptr;
  };
  /// A record without payload.
  struct Control {
    RailKind kind = kDone;
    std::uint8_t flags = 0;
    std::array<std::uint64_t, 2> arguments{};
    std::array<std::uint64_t, 4> more{};
  };
  /// A rail that this one has to do with: one ring each way.
  struct Peer {
    Identity identity;
    Outbound* out = nullptr;
    Inbound* in = nullptr;
    PeerMemory memory;
    std::vector<std::unique_ptr<ShmInboundLink>> inbound_links;
    std::deque<Control> owed;          ///< found no room in the ring
    std::deque<std::uint32_t> moving;  ///< operations with something to move
    std::deque<Job> jobs;
    std::set<std::uint32_t> told;               ///< which of our shares it knows
    std::map<std::uint32_t, PeerShare> shares;  ///< its device memory
    bool busy = false;                          ///< in `busy_`
  };
  struct Receive {
    LocalChunk buffer;
    PostContext* context = nullptr;
  };

  explicit ShmRail(const Options& options);
  Result<void> start();

  // rail.cc: links, inbound links, registrations
  void lose(ShmLink& link, int error);
  void lose_links_to(const Peer& peer, int error);
  Peer& peer_of(const Identity& identity);
  Peer& peer_of(Inbound& from);
  Result<void> reach(Peer& peer);
  void forget_if_gone(Peer& peer);
  /// Nothing more of it is applied, and its sender hears of that.
  void shut(ShmInboundLink& inbound_link, Trouble why);
  static void drop(ShmInboundLink& inbound_link);
  void left(Inbound& from, bool died) override;
  void lost(Outbound& to) override;
  void look_at_rings();

  // rail_datapath.cc: posts, and what moves on in poll
  void tell(const Event& event);
  void tell_done(Event::Kind kind, PostContext* context, std::size_t bytes);
  void tell_failed(PostContext* context, int error);
  Post refuse(const char* operation, RemoteId remote);
  Operation* take_operation(Operation::Kind kind, RemoteId link, const LocalChunk& local, const RemoteChunk& remote,
                            PostContext* context);
  static std::uint64_t handle_of(const Operation& operation);
  Operation* find(const Peer& peer, std::uint64_t handle);
  void release(Operation& operation);
  void complete(Operation& operation, Event::Kind kind);
  void fail_operation(Operation& operation, int error);
  void end(Operation& operation);
  Post write_long(ShmLink& link, const RemoteChunk& to, const LocalChunk& from, WriteOptions options,
                  PostContext* context);
  void begin(Peer& peer, Operation& operation);
  Control request_of(const Operation& operation) const;
  static bool put_chunk(Outbound& out, std::uint64_t number, const RemoteChunk& to, std::span<const std::byte> bytes,
                        std::uint64_t handle, const WriteOptions& options, bool last);
  static bool put_control(Outbound& out, const Control& control);
  void owe(Peer& peer, const Control& control);
  void list(Peer& peer);
  void queue(Peer& peer, const Operation& operation);
  void move_on();
  void move(Peer& peer);
  bool move(Peer& peer, Operation& operation, std::size_t& budget, std::size_t& copied);
  bool move_write(Peer& peer, Operation& operation, std::size_t& budget);
  bool move_own_read(Peer& peer, Operation& operation, std::size_t& copied);
  bool do_job(Peer& peer, Job& job, std::size_t& budget, std::size_t& copied);
  bool do_pull(Peer& peer, Job& job, std::byte* memory, std::size_t& copied);
  bool do_answer(Peer& peer, Job& job, const std::byte* memory, std::size_t& budget);
  static bool guard_holds(Peer& peer, std::uint64_t number);

  // rail_arrive.cc: what arriving records do
  bool take(Inbound& from, const Arrival& arrival);
  bool take_message(Peer& peer, const Arrival& arrival);
  void take_hello(Peer& peer, const Record& record);
  void take_welcome(Peer& peer, const Record& record);
  void take_shut(Peer& peer, const Record& record);
  void take_bye(Peer& peer, const Record& record);
  bool take_write(Peer& peer, const Arrival& arrival);
  void take_job(Peer& peer, const Arrival& arrival);
  void take_check(Peer& peer, const Record& record);
  bool take_answer(Peer& peer, const Arrival& arrival);
  void take_done(Peer& peer, const Record& record);
  void send_after_all(Peer& peer, Operation& operation);
  ShmLink* own_link(const Peer& peer, std::uint64_t number);
  static ShmInboundLink* inbound_link_of(Peer& peer, std::uint64_t number);
  void land(std::size_t bytes, bool with_immediate, std::uint32_t immediate);

  // rail_device.cc: memory of GPUs. The processor never touches it: the owner's GPU copies.
  struct DeviceSource {
    const std::byte* address = nullptr;
    std::shared_ptr<accelerator::Mapping> mapping;
    int device = -1;
  };
  Result<DeviceMemory*> device_memory(std::span<std::byte> memory);
  void release(DeviceMemory& memory);
  bool tell_share(Peer& peer, DeviceMemory& memory, Trouble& trouble);
  void tell_shares(Peer& peer);
  void take_share(Peer& peer, const Arrival& arrival);
  void take_unshare(Peer& peer, const Record& record);
  void take_answer_share(Peer& peer, const Record& record);
  std::optional<DeviceSource> resolve(Peer& peer, std::uint64_t location, std::size_t bytes, int device);
  static int device_of(const Operation& operation);
  bool begin_copy(int device, void* to, const void* from, std::size_t bytes, DeviceCopy copy);
  bool do_device_job(Peer& peer, Job& job, const Registrations::Found& found);
  bool move_device_read(Peer& peer, Operation& operation);
  bool write_from_ring(Peer& peer, ShmInboundLink& inbound_link, const Arrival& arrival,
                       const Registrations::Found& to);
  bool answer_from_ring(Operation& operation, const Arrival& arrival);
  void finish_copies();
  void finish(DeviceCopy& copy, bool good);
  void wait_for_copies(std::uint64_t key);
  void forget_copies(const Peer& peer);
  bool copies_of(const LinkTag& tag) const;

  Options options_;
  Identity identity_;
  bool armed_ = false;

  std::unique_ptr<Endpoint> core_;
  std::map<std::array<std::uint8_t, 16>, std::unique_ptr<Peer>> peers_;  ///< by identity
  std::vector<Peer*> busy_;                                              ///< have something to move
  Links<ShmLink> links_{pending_};                                       ///< peers look at their guards
  InboundLinks<ShmInboundLink> inbound_{pending_};
  Registrations registrations_;
  std::vector<std::unique_ptr<DeviceMemory>> device_memory_;
  std::uint32_t next_share_ = 1;
  DeviceCopies device_copies_;
  std::deque<DeviceCopy> copying_;
  std::deque<Operation> operations_;  ///< they do not move
  std::vector<std::uint32_t> free_operations_;
  std::vector<Receive> receives_;  ///< a ring
  std::size_t first_receive_ = 0;
  std::size_t receive_count_ = 0;
  std::span<Event> room_;  ///< of the poll that is running
  std::size_t told_ = 0;
  std::uint32_t turn_ = 0;
  std::uint64_t bytes_copied_once_ = 0;
  OneSided one_sided_;
};

}  // namespace railyard::fabric::shm
