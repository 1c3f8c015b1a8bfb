/// The endpoint: messages, remote memory access and atomics over the rings of fabric/shm.
///
/// Everything here runs under the domain's lock. Sending never blocks: what fits in one record goes out at once or is
/// refused with -FI_EAGAIN; what takes several records is queued and moves on in `progress`.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "addresses.hpp"
#include "counter.hpp"
#include "domain.hpp"
#include "io_vector.hpp"
#include "protocol.hpp"
#include "queue.hpp"
#include "receives.hpp"
#include "shm/endpoint.hpp"

namespace railyard::provider {

using shm::Arrival;
using shm::Inbound;
using shm::Outbound;
using shm::Record;
using shm::Word;

struct Transfer;

/// A mark in Order::flags: the call never makes a completion.
inline constexpr std::uint64_t kQuiet = std::uint64_t{1} << 63;

/// The way to one peer: its ring, and what waits for room in it.
struct Path {
  struct Control {
    Kind kind;
    std::uint8_t flags;
    std::array<std::uint64_t, 2> arguments;
    std::array<std::uint64_t, 2> more;
  };
  Outbound* out = nullptr;
  std::deque<Transfer*> queue;   ///< in order; the first one is being sent
  std::deque<Control> controls;  ///< answers, and reads of several places, ahead of the queue
  bool listed = false;           ///< among the busy ones

  bool idle() const { return queue.empty() && controls.empty(); }
  /// Something waits: nothing may overtake it. (What is not listed is idle.)
  bool blocked() const { return listed && !idle(); }
};

/// A write or read of several places: one operation to the program, a transfer for each place.
struct Group {
  std::size_t left = 0;  ///< transfers that are not over
  int error = 0;         ///< of the first that failed
};

/// One operation that did not end with its call. Found again by its handle in the peer's answers.
struct Transfer {
  std::uint64_t handle = 0;
  Path* path = nullptr;
  Kind kind = kMessage;
  std::uint8_t flags = 0;
  bool queued = false;
  bool completes = false;  ///< a completion queue entry follows
  IoVector iov;
  std::vector<std::byte> own;  ///< bytes that have no other home: results on their way back
  std::size_t total = 0;
  std::size_t sent = 0;
  std::size_t allowed = 0;   ///< what may be sent before the peer's grant
  std::size_t received = 0;  ///< of a read or fetch
  std::array<std::uint64_t, 2> arguments{};
  std::uint64_t data = 0;
  std::uint64_t announced = 0;      ///< the handle that its first record named
  std::uint64_t remote_handle = 0;  ///< of an answer
  std::uint64_t key = 0;            ///< of an answer out of registered memory
  std::uint64_t address = 0;
  void* context = nullptr;
  std::uint64_t operation = 0;  ///< completion flags: FI_SEND | FI_TAGGED, ...
  Counter* counter = nullptr;
  std::shared_ptr<Group> group;  ///< what it is a part of
};

/// Options of one send, write or atomic, from whichever call.
struct Order {
  Kind kind = kMessage;
  std::uint64_t flags = 0;      ///< FI_COMPLETION, FI_INJECT, FI_DELIVERY_COMPLETE, FI_REMOTE_CQ_DATA
  std::uint64_t operation = 0;  ///< completion flags
  fi_addr_t to = FI_ADDR_UNSPEC;
  std::array<std::uint64_t, 2> arguments{};
  std::uint64_t data = 0;
  void* context = nullptr;
};

/// An atomic operation's own part.
struct AtomicOrder {
  fi_datatype datatype = FI_INT8;
  fi_op operation = FI_SUM;
  std::size_t elements = 0;
  IoVector compare;
  IoVector result;
  bool fetches = false;
  bool compares = false;
};

/// A level of completion that the peer must confirm.
inline constexpr std::uint64_t kNeedsDone = FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;

class Endpoint final : private shm::Listener {
 public:
  Endpoint(Domain& domain, const fi_info& info);
  ~Endpoint() override;

  fid_ep* fid() { return &fid_; }
  static Endpoint& of(fid_ep* fid) { return *reinterpret_cast<Shell*>(fid)->endpoint; }
  static Endpoint& of(struct fid* fid) { return *reinterpret_cast<Shell*>(fid)->endpoint; }

  Domain& domain;
  std::uint64_t transmit_flags;  ///< of calls without flags of their own
  std::uint64_t receive_flags;

  int bind(struct fid* to, std::uint64_t flags);
  int enable();
  int get_name(void* address, std::size_t* bytes) const;
  int set_name(const void* address, std::size_t bytes);
  int cancel(void* context);
  std::size_t& least_multi_receive() { return least_multi_receive_; }

  // Sending.
  ssize_t send(const Order& order, const IoVector& from);
  /// `send` of one buffer, without remote data or an answer: most of all messages and writes.
  ssize_t send_buffer(Kind kind, std::uint64_t operation, const void* from, std::size_t bytes, fi_addr_t to,
                      const std::array<std::uint64_t, 2>& arguments, void* context, std::uint64_t flags);
  ssize_t read(const Order& order, const IoVector& to);
  /// A write or read whose remote side is in several entries.
  ssize_t write_remote_iov(const Order& order, const IoVector& from, const fi_rma_iov* remote_iov, std::size_t count);
  ssize_t read_remote_iov(const Order& order, const IoVector& to, const fi_rma_iov* remote_iov, std::size_t count);
  ssize_t atomic(const Order& order, const AtomicOrder& how, const IoVector& operands);

  // Receiving.
  ssize_t receive(Receives& receives, const IoVector& to, fi_addr_t named_sender, std::uint64_t tag,
                  std::uint64_t ignore, void* context, std::uint64_t flags);
  Receives messages;
  Receives tagged;

  // Progress.
  void progress();
  int bell() const { return core_ ? core_->bell() : -1; }
  bool fall_asleep();
  void wake_up();
  /// Whether one of its own queues or counters has this watch.
  bool watched_by(const Watch& watch) const;

 private:
  /// What the program's pointer points to: the fid first, then the way back to the object.
  struct Shell {
    fid_ep fid;
    Endpoint* endpoint;
  };

  struct Bindings {
    Addresses* addresses = nullptr;
    Queue* transmit = nullptr;
    Queue* receive = nullptr;
    bool transmit_selective = false;
    bool receive_selective = false;
    Counter* send = nullptr;
    Counter* recv = nullptr;
    Counter* read = nullptr;
    Counter* write = nullptr;
    Counter* remote_read = nullptr;
    Counter* remote_write = nullptr;
  };

  // endpoint.cc
  void left(Inbound& from, bool died) override;
  void lost(Outbound& to) override;
  void lose(Path& path);
  void abort(Incoming& incoming);
  int bind_counter(Counter& counter, std::uint64_t flags);
  std::vector<Watch*> watches() const;

  // transmit.cc
  Path* path_to(fi_addr_t number, ssize_t& code);
  Path* open_path(fi_addr_t number, ssize_t& code);
  Path* path_back(Source& source);
  Path* adopt(Outbound& out);
  bool wants_completion(std::uint64_t flags) const {
    return bound_.transmit != nullptr && (flags & kQuiet) == 0 &&
           (!bound_.transmit_selective || (flags & FI_COMPLETION) != 0);
  }
  Counter* counter_of(std::uint64_t operation) const {
    if ((operation & FI_SEND) != 0) return bound_.send;
    return (operation & FI_WRITE) != 0 ? bound_.write : bound_.read;
  }
  ssize_t send_in_first_line(Path& path, const Order& order, const IoVector& from);
  ssize_t send_in_one_record(Path& path, const Order& order, const IoVector& from);
  ssize_t send_cut(Path& path, const Order& order, const std::byte* from, std::size_t bytes);
  /// A send, write or atomic ended with its call.
  void sent(std::uint64_t operation, void* context, std::uint64_t flags) {
    if (wants_completion(flags)) bound_.transmit->push({context, operation});
    if (Counter* const counter = counter_of(operation)) counter->add(1);
  }
  ssize_t send_in_several(Path& path, const Order& order, const IoVector& from);
  Transfer* new_transfer(Path& path, const Order& order, const IoVector& iov);
  Transfer* find_transfer(const Source& source, std::uint64_t handle);
  Transfer& new_part(Path& path, const Order& order, const IoVector& iov, const fi_rma_iov& remote,
                     const std::shared_ptr<Group>& group);
  Path* path_for_parts(const Order& order, std::size_t count, ssize_t& code);
  void free_transfer(Transfer& transfer);
  void late_error(std::uint64_t operation, int error);
  void refuse_source(Source& source, std::uint64_t handle, std::uint64_t why);
  void finish(Transfer& transfer, int error);
  void sent_all(Transfer& transfer);
  void pump(Path& path);
  bool push_controls(Path& path);
  bool push_chunk(Path& path, Transfer& transfer);
  bool source_still_registered(Transfer& transfer);
  void list_busy(Path& path);
  void control(Source& source, Kind kind, std::uint64_t handle, std::uint64_t value);

  // arrive.cc
  bool take(Inbound& from, const Arrival& arrival);
  Source& source_of(Inbound& from);
  fi_addr_t number_of(Source& source);
  bool take_message(Source& source, const Arrival& arrival, Receives& receives);
  bool take_message_slowly(Source& source, const Arrival& arrival, Receives& receives, Receive* match);
  bool take_more(Source& source, const Arrival& arrival);
  void take_answer(const Source& source, const Arrival& arrival);
  void take_grant(const Source& source, std::uint64_t handle);
  void take_refused(const Source& source, std::uint64_t handle, std::uint64_t why);
  void take_done(const Source& source, std::uint64_t handle, std::uint64_t error);
  void give(Incoming& incoming, Receive& receive);
  void continue_incoming(Incoming& incoming);
  void complete(Incoming& incoming);
  void complete_receive(Receive& receive, std::size_t base, Source& source, Receives& receives, std::uint64_t tag,
                        std::uint64_t data, bool has_data, std::size_t total);
  void fail_receive(Receive& receive, int error, std::uint64_t operation);
  void claim_or_peek(Receives& receives, const IoVector& to, fi_addr_t from, std::uint64_t tag, std::uint64_t ignore,
                     void* context, std::uint64_t flags);
  void take_unexpected(Receives& receives, Receive& receive);
  void hand_over(Incoming& incoming);
  void discard(Incoming& incoming);

  // remote.cc
  bool take_write(Source& source, const Arrival& arrival);
  bool take_read(Source& source, const Arrival& arrival);
  bool take_atomic(Source& source, const Arrival& arrival);
  void wrote(Source& source, std::uint64_t key, std::uint64_t address, bool has_data, std::uint64_t data,
             std::size_t bytes);
  void answer(Source& source, std::uint64_t handle, std::uint64_t key, std::uint64_t address, const IoVector& from);
  std::byte* registered(std::uint64_t key, std::uint64_t address, std::size_t bytes, std::uint64_t access);

  Shell shell_{};
  fid_ep& fid_ = shell_.fid;
  Bindings bound_;
  std::string wanted_name_;
  std::string own_address_;
  std::size_t least_multi_receive_ = 64;
  std::unique_ptr<shm::Endpoint> core_;
  bool asleep_ = false;
  const bool directed_;  ///< receives may name their sender
  const bool sourced_;   ///< completions name their sender

  std::vector<Path*> by_number_;
  std::uint64_t known_generation_ = 0;
  std::unordered_map<std::string, Path*> by_address_;
  std::unordered_map<Outbound*, std::unique_ptr<Path>> paths_;
  std::vector<Path*> busy_;

  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<std::uint32_t> free_transfers_;
  std::size_t transfers_in_use_ = 0;
  std::uint64_t cut_messages_ = 0;

  std::vector<std::unique_ptr<Source>> sources_;
  ReceivePool pool_;
};

inline Path* Endpoint::path_to(fi_addr_t number, ssize_t& code) {
  if (bound_.addresses->generation == known_generation_ && number < by_number_.size()) [[likely]] {
    Path* const path = by_number_[number];
    if (path != nullptr && !path->out->gone()) [[likely]]
      return path;
  }
  return open_path(number, code);
}

inline ssize_t Endpoint::send_buffer(Kind kind, std::uint64_t operation, const void* from, std::size_t bytes,
                                     fi_addr_t to, const std::array<std::uint64_t, 2>& arguments, void* context,
                                     std::uint64_t flags) {
  ssize_t code = 0;
  Path* const path = path_to(to, code);
  if (path == nullptr) [[unlikely]]
    return code;
  if (path->blocked()) return -FI_EAGAIN;
  const auto* const source = static_cast<const std::byte*>(from);
  Word word{.bytes = static_cast<std::uint32_t>(bytes), .kind = kind};
  if (bytes <= Record::kShort) {
    Record* const record = path->out->reserve_line();
    if (record == nullptr) return -FI_EAGAIN;
    record->arguments = arguments;
    shm::copy_bytes(record->payload.data(), source, bytes);
    word.flags = Word::kInFirst;
  } else {
    if (bytes > kOneBufferChunk)
      return send_cut(*path, {kind, flags, operation, to, arguments, 0, context}, source, bytes);
    const auto [record, payload] = path->out->reserve(bytes);
    if (record == nullptr) return -FI_EAGAIN;
    // The record last, all at once: the consumer is watching its line and would take it back in between.
    path->out->write(payload, source, bytes);
    record->arguments = arguments;
  }
  path->out->publish(word);
  sent(operation, context, flags);
  return 0;
}

extern fi_ops_msg message_calls;
extern fi_ops_tagged tagged_calls;
extern fi_ops_rma remote_calls;
extern fi_ops_atomic atomic_calls;

}  // namespace railyard::provider
