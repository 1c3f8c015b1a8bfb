/// Rail: the one contract between the transport and every driver. Read this page first.
///
/// A rail is one local way into the network. It moves bytes and says when they moved; sequence numbers,
/// acknowledgements, retries and health are the transport's. Rules that hold for every call:
///  - nothing here blocks; a full queue is `busy`, never an error, and leaves nothing behind;
///  - calls come from one thread at a time (the transport holds the engine's progress lock);
///  - a PostContext belongs to the rail from a `posted` answer until its completion came out of `poll`.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "railyard/result.hpp"
#include "railyard/settings.hpp"

namespace railyard::fabric {

/// Two lanes to every remote: small messages never queue behind bulk data. A driver may map both to one endpoint.
enum class Lane : std::uint8_t { control, data };
inline constexpr std::size_t kLanes = 2;

enum class Post : std::uint8_t {
  posted,  ///< accepted: exactly one completion will follow
  busy,    ///< no room now: nothing happened
  failed,  ///< this link is broken: nothing happened; `failure()` says why
};

/// A link from this rail to a remote one, made by `connect`. Free for another link after `disconnect`.
using RemoteId = std::uint32_t;

/// What a link is called: 128 bits, so that no two links of a job ever have the same name. Opaque to drivers.
struct LinkName {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  constexpr LinkName() = default;
  /// Small ones, in tests.
  constexpr LinkName(std::uint64_t number)  // NOLINT(google-explicit-constructor)
      : low(number) {}
  constexpr LinkName(std::uint64_t first, std::uint64_t second) : high(first), low(second) {}
  auto operator<=>(const LinkName&) const = default;  // NOLINT(modernize-use-nullptr): the compiler wrote it
};

struct LinkNameHash {
  std::size_t operator()(const LinkName& name) const { return name.high ^ (name.low * 0x9e3779b97f4a7c15ULL); }
};

/// How a link is known at its target: the sender's name for it, the same in all its epochs, and which epoch this is.
struct LinkTag {
  LinkName id = {};
  std::uint32_t epoch = 0;
  LinkName facing = {};            ///< the name of the peer's link that leads back over the same two rails; 0: none
  std::uint8_t traffic_class = 0;  ///< of its packets, as IP has it (DSCP times 4); 0: the rail's own
};

/// What a rail's `fence` is worth.
enum class Fencing : std::uint8_t {
  exact,  ///< the target itself shuts the link out: what has not landed by then never does
  timed,  ///< the target cannot: once the sender has disconnected, `packet_lifetime` must go by
};

/// Room that some drivers need for each operation in flight. The poster's own structures derive from it.
struct PostContext {
  std::array<void*, 8> driver{};
  std::array<PostContext*, 2> neighbours{};  ///< the driver's own: what is in flight on one link
  RemoteId link = 0;                         ///< the driver's own: which link that is
  std::uint8_t tag = 0;                      ///< the poster's own: which of its structures this is the head of
};

/// What a rail can do: asked once, never guessed from a name.
struct Capabilities {
  std::string driver;                     ///< "tcp", "ofi", "verbs", "shm", "sim"
  std::string provider;                   ///< "tcp;ofi_rxm", "verbs;ofi_rxm", ...
  bool delivery_complete = false;         ///< a write's completion can mean "visible in the target's memory"
  bool needs_local_registration = false;  ///< sources and destinations need a descriptor
  bool binds_registrations = false;       ///< each registration is bound to one endpoint and enabled
  bool virtual_addresses = false;         ///< remote addresses are the owner's pointers (else offsets into the region)
  bool progresses_alone = false;          ///< the rail moves data without `poll` being called
  bool landings_use_receives = false;     ///< a write's immediate uses up a posted receive: more are wanted
  bool chains_posts = false;              ///< posts leave with the next `ring` or `poll`
  bool native_atomics = false;            ///< `atomic` works
  bool sees_one_sided = false;            ///< every byte that peers write or read here is counted (`one_sided`)
  bool device_memory = false;             ///< `register_memory` takes memory of GPUs; of one it may say `unsupported`
  std::size_t max_message = 0;            ///< longest `send`
  std::size_t max_write = 0;              ///< longest `write` or `read`
  std::size_t inject_bytes = 0;           ///< `send` up to this size copies at once
  std::size_t depth = 0;                  ///< operations that fit in flight
  double line_rate = 0;                   ///< bytes per second; 0: unknown
  Fencing fencing = Fencing::timed;
  std::int64_t packet_lifetime = 0;  ///< nanoseconds, for a timed fence
};

/// Memory as one rail knows it: a view for each lane. Where the rail binds nothing, both views are one registration.
struct Registration {
  std::array<void*, kLanes> descriptor{};  ///< local access, by lane
  std::uint64_t key = 0;                   ///< remote access, data lane
  std::uint64_t remote_base = 0;           ///< what offset 0 is called in a write to it
  std::array<std::uint64_t, kLanes> id{};  ///< the driver's own
};

struct Access {
  bool remote = false;  ///< peers may read and write it
  bool bulk = false;    ///< only completions tell of bytes in it: they may reach memory in any order
  int device = -1;      ///< it is memory of this GPU: the processor never touches it
  int dma_buf = -1;     ///< the descriptor of device memory; the span given is then its address there
  std::uint64_t dma_buf_offset = 0;
};

/// An operation of the target's NIC on eight aligned bytes. If its link is lost, it may or may not have been done.
struct AtomicRequest {
  enum class Kind : std::uint8_t { add, compare_swap };
  Kind kind = Kind::add;
  std::uint64_t value = 0;    ///< what is added, or put in place
  std::uint64_t compare = 0;  ///< for a swap: what must be there
};

/// One chunk of local memory, with its descriptor for the lane used.
struct LocalChunk {
  void* address = nullptr;
  std::size_t bytes = 0;
  void* descriptor = nullptr;
};

/// One place in a remote region.
struct RemoteChunk {
  RemoteId remote = 0;
  std::uint64_t address = 0;
  std::uint64_t key = 0;
};

struct WriteOptions {
  bool with_immediate = false;
  bool delivery_complete = false;  ///< only where the capability says so
  std::uint16_t unused = 0;        ///< no padding: they are passed, and looked at, as one word
  std::uint32_t immediate = 0;

  /// None of them is chosen.
  bool none() const { return std::bit_cast<std::uint64_t>(*this) == 0; }
};

/// What is at fault when an operation fails.
enum class Blame : std::uint8_t {
  link,       ///< the link broke, or was disconnected: the operation may be done again on another
  operation,  ///< this operation alone: the target has no such key or range, or the source cannot be read. Done again
              ///< it would fail again. The link may break with it (a `lost` event says so)
  unknown,    ///< one of the two, and the driver cannot tell
};

/// What the machine that a link leads to says of the process there.
enum class Liveness : std::uint8_t {
  unknown,  ///< the driver has no way to tell, or got no answer lately
  alive,    ///< its kernel holds the process's end of a connection: it may be stopped or busy, but it is there
  gone,     ///< its machine answers that no such process is there
};

/// What the machine that a link leads to has taken of the bytes sent there, with or without its process's help.
struct Delivery {
  std::uint64_t taken = 0;  ///< grows with them
  bool waits = false;       ///< some are on their way, or lost on it
};

/// Bytes that peers moved with no event here, as far as the driver sees them: it cannot where the NIC does it alone.
struct OneSided {
  std::uint64_t written = 0;  ///< placed here by writes without an immediate
  std::uint64_t read = 0;     ///< taken from here by reads
};

/// What `poll` reports.
struct Event {
  enum class Kind : std::uint8_t {
    sent,       ///< a send's buffer is free again
    written,    ///< a write is done with its source; with delivery_complete also visible at the target
    read,       ///< a read's bytes are in place, visible to the GPU too whose memory they are in
    received,   ///< a message arrived in the buffer of `context`; `bytes` long
    landed,     ///< a remote write with immediate arrived; its bytes are visible, to kernels too where they are in the
                ///< memory of a GPU. `context` is null, or a receive it used up
    failed,     ///< the operation of `context` failed; `error` says why
    lost,       ///< the link to `remote` is broken: to be disconnected. `refused`, `unverified` and `unwanted` say more
    left,       ///< a peer's link to here, `link`, has ended without being fenced
    rail_down,  ///< this rail's interface cannot carry anything now
    rail_up,    ///< it can again
  };
  Kind kind = Kind::failed;
  std::uint32_t immediate = 0;
  std::size_t bytes = 0;
  PostContext* context = nullptr;
  int error = 0;              ///< the driver's code, for `describe_error`
  Blame blame = Blame::link;  ///< of a `failed` or `lost`: not `link` where something that the link carried may be why
  bool refused = false;       ///< its machine answers, nobody is there: proof that the process is gone
  bool unverified =
      false;              ///< somebody refuses, and nothing shows that it is the peer's machine: this way leads nowhere
  bool unwanted = false;  ///< the peer's rail is there and does not take this epoch
  RemoteId remote = 0;
  LinkTag link = {};
};

/// What the fabric of a rail through this machine's memory begins with: who shares one needs no other.
inline constexpr std::string_view kSharedMemoryFabric = "shared memory ";

class Rail {
 public:
  virtual ~Rail() = default;

  virtual const Capabilities& capabilities() const = 0;
  /// "tcp eth0": for tables and messages. Differs among the rails of a process.
  virtual std::string name() const = 0;
  /// Which of its process's rails this is; -1: nobody has said.
  int number() const { return number_; }
  void set_number(int number) { number_ = number; }
  /// What log messages about this rail begin with.
  LogRail in_log() const { return {number_, name()}; }
  /// Rails of equal fabric reach each other (a subnet, a switch plane).
  virtual std::string fabric() const = 0;
  /// What a peer needs for `connect`. Opaque.
  virtual std::vector<std::byte> address() const = 0;
  /// Such an address in words, for the log: "10.0.0.1 port 4711". Empty: the driver has none.
  virtual std::string describe_address(std::span<const std::byte> /*address*/) const { return {}; }

  /// Begins a link. Posts to it answer `busy` until it stands; an attempt that fails is a `lost` event, like a link
  /// that breaks later.
  virtual Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) = 0;
  /// Ends a link, also one that was lost. The contexts it still holds come out of `poll` as `failed`, all of them; when
  /// the last one has, local memory that they named is no longer touched.
  virtual void disconnect(RemoteId remote) = 0;
  /// At the target: shuts out what a peer sent on the link `tag.id` in its epochs up to `tag.epoch`, and refuses such
  /// epochs from now on. True once nothing of them can land any more and all that did has come out of `poll`; false:
  /// ask again after a poll. Where fencing is timed it only says the latter.
  virtual bool fence(LinkTag tag) = 0;
  /// At the target: a peer's link of that name, which was not fenced for good, will not be heard of again.
  virtual void forget(LinkName /*link*/) {}

  /// `rail_failed`: its device is gone, and nothing will ever be carried by this rail again. `unsupported`: this memory
  /// of a GPU cannot be reached by this rail; others may.
  virtual Result<Registration> register_memory(std::span<std::byte> memory, Access access) = 0;
  /// Takes the memory back. When this returns, no peer reads or writes a byte of it through this rail, whatever the
  /// peers do and whatever was under way: the key is invalid, and what is half-way lands nowhere. A peer's operation
  /// that names the key fails at its origin with `Blame::operation`. Unrelated links stay up where the driver can do
  /// that; a driver that cannot closes the inbound links that might still land there. No post of our own that names it
  /// may be in flight.
  virtual void revoke(const Registration& registration) = 0;
  /// The same where the caller knows that no peer has anything under way to or from it (all that it allowed has
  /// happened): a driver whose `revoke` closes links need not. A key used later fails all the same.
  virtual void deregister(const Registration& registration) { revoke(registration); }

  /// A message to the remote's control lane. Each takes one posted receive there.
  virtual Post send(RemoteId remote, const LocalChunk& message, PostContext* context) = 0;
  /// Offers a buffer for one message on the control lane.
  virtual Post receive(const LocalChunk& buffer, PostContext* context) = 0;
  /// Data lane: local memory to the remote region.
  virtual Post write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) = 0;
  /// Data lane: the remote region to local memory.
  virtual Post read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) = 0;

  /// Data lane: a native atomic; what was there before goes to `result`. Its completion is that of a read.
  virtual Post atomic(const RemoteChunk& /*at*/, AtomicRequest /*request*/, const LocalChunk& /*result*/,
                      PostContext* /*context*/) {
    return Post::failed;
  }
  /// The doorbell: what was posted leaves now. Called after a burst of posts.
  virtual void ring() {}

  /// Fills `events` with what happened; returns how many. Also moves the driver on where it needs that.
  virtual std::size_t poll(std::span<Event> events) = 0;
  /// Nothing has moved for so many polls, and nothing waits to: while other rails have traffic, a poll now and then
  /// will do. False where a poll costs next to nothing.
  virtual bool quiet() const { return false; }

  /// A file descriptor that becomes readable when `poll` may have something to do, for a thread that sleeps in the
  /// kernel; -1: the rail has none and must be polled now and then.
  virtual int descriptor() const { return -1; }
  /// Called before sleeping on `descriptor`. True: nothing waits, and whatever happens from now on makes it readable.
  /// False: poll first.
  virtual bool arm() { return true; }
  /// Touches what a small message to that remote, and one from it, goes through (base/touch.hpp): whoever calls this
  /// has slept.
  virtual void warm_up(RemoteId /*remote*/) const {}
  /// Makes the descriptor of the rail at the other end readable, if that is armed. False: this rail cannot.
  virtual bool wake(RemoteId /*remote*/) { return false; }
  /// Whether the process at the other end lives, as far as this rail can tell without that process's help. Costs a
  /// system call or a few: asked only about a silent peer.
  virtual Liveness liveness(RemoteId /*remote*/) { return Liveness::unknown; }

  /// What the kernel or the NIC knows of the way there. A peer that gets no processor time reads nothing, but its
  /// kernel acknowledges; over a path that is dead, nobody does. Asked only about a suspected link; nothing: unknown.
  virtual std::optional<Delivery> delivery(RemoteId /*remote*/) { return std::nullopt; }

  /// Counted since the rail opened.
  virtual OneSided one_sided() const { return {}; }

  /// For shutdown: after this the rail touches no memory any more, posted receives included; posts fail, poll is empty.
  /// Closes registrations, then endpoints; a later `revoke` finds nothing left to do. A rail that moves only
  /// inside `poll` has nothing to stop.
  virtual void stop() {}

  virtual std::string describe_error(int error) const = 0;
  /// Why the last `failed` answer came.
  virtual std::string failure() const = 0;

 private:
  int number_ = -1;
};

/// A rail that could be opened.
struct RailOffer {
  std::string driver;
  std::string provider;
  std::string domain;  ///< the NIC's or interface's name
  std::string fabric;
  double line_rate = 0;
  bool loopback = false;
  bool device_memory = false;  ///< a rail on it takes the memory of GPUs
  std::string detail;          ///< what else the driver knows of it, for people
  std::shared_ptr<void> driver_data;
  int number = -1;  ///< of the rail that is opened on it
  int twin = -1;    ///< which of several rails on this NIC; -1: it is the only one

  /// `device` as rails on it are called: "eth0", or "eth0#1" for the second of several.
  std::string label(const std::string& device) const { return twin < 0 ? device : device + "#" + std::to_string(twin); }
};

/// What the settings' driver offers on this machine. An empty machine is an error naming what to install or set.
Result<std::vector<RailOffer>> discover(const Settings& settings);
/// Those of them that rails are opened on: loopback only where there is nothing else, or where it is asked for by name.
Result<std::vector<RailOffer>> chosen_offers(const Settings& settings);
/// Opens `settings.rails` rails (0: one per chosen offer), spreading over those; and after them, unless the settings
/// say no, the one through this machine's memory. Where that cannot be had, a warning says why.
Result<std::vector<std::unique_ptr<Rail>>> open_rails(const Settings& settings);

}  // namespace railyard::fabric
