/// Completion queue. It grows: a completion is never lost for lack of room.
#pragma once

#include <deque>
#include <vector>

#include "domain.hpp"
#include "waiting.hpp"

namespace railyard::provider {

class Endpoint;

struct Completion {
  void* context = nullptr;
  std::uint64_t flags = 0;
  std::size_t bytes = 0;
  void* buffer = nullptr;
  std::uint64_t data = 0;
  std::uint64_t tag = 0;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
};

/// Endpoints whose progress brings completions to one object, and how to sleep until they do.
class Watch {
 public:
  void add(Endpoint& endpoint);
  void remove(Endpoint& endpoint);
  /// Moves all endpoints on.
  void progress();
  /// False: there is something to do first. True: every endpoint rings its bell from now on.
  bool fall_asleep();
  void wake_up();

  Waiting waiting;

 private:
  std::vector<Endpoint*> endpoints_;
};

struct Queue {
  Queue(Domain& owner, fi_cq_format entry_format);
  fid_cq fid{};
  Domain& domain;
  const fi_cq_format format;
  Watch watch;
  References references;
  std::uint32_t idle_reads = 0;  ///< since the last that found something
  bool armed = false;            ///< somebody sleeps, or is about to
  bool signalled = false;        ///< fi_cq_signal was called

  bool empty() const { return head_ == tail_; }
  void push(const Completion& completion) {
    if (room_ != 0 && head_ == tail_) {
      // Whoever reads is waiting for it.
      put(completion);
      --room_;
      return;
    }
    keep(completion);
  }
  void push_error(const fi_cq_err_entry& error);
  ssize_t read(void* buffer, std::size_t count, fi_addr_t* sources);
  ssize_t read_error(fi_cq_err_entry& entry);

 private:
  static constexpr std::size_t kFirstEntries = 1024;
  /// Marks the place of an error among the completions.
  static constexpr std::uint64_t kError = ~std::uint64_t{0};
  void grow();
  void disarm();
  void keep(const Completion& completion) {
    if (tail_ - head_ == ring_.size()) [[unlikely]]
      grow();
    ring_[tail_++ & (ring_.size() - 1)] = completion;
    if (armed) [[unlikely]]
      disarm();
  }
  /// Into the program's buffer, which has room.
  void put(const Completion& from) {
    switch (format) {
      case FI_CQ_FORMAT_TAGGED:
        *static_cast<fi_cq_tagged_entry*>(into_) = {from.context, from.flags, from.bytes,
                                                    from.buffer,  from.data,  from.tag};
        break;
      case FI_CQ_FORMAT_DATA:
        *static_cast<fi_cq_data_entry*>(into_) = {from.context, from.flags, from.bytes, from.buffer, from.data};
        break;
      case FI_CQ_FORMAT_MSG:
        *static_cast<fi_cq_msg_entry*>(into_) = {from.context, from.flags, from.bytes};
        break;
      default:
        *static_cast<fi_cq_entry*>(into_) = {from.context};
    }
    into_ = static_cast<std::byte*>(into_) + entry_bytes_;
    if (sources_ != nullptr) *sources_++ = from.source;
  }

  // The buffer of the read that is under way.
  void* into_ = nullptr;
  fi_addr_t* sources_ = nullptr;
  std::size_t room_ = 0;
  const std::size_t entry_bytes_;
  std::vector<Completion> ring_ = std::vector<Completion>(kFirstEntries);
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
  std::deque<fi_cq_err_entry> errors_;
};

}  // namespace railyard::provider
