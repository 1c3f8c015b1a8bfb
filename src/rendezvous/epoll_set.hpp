/// The loop of a rendezvous: what watches all of its sockets, their alarms, and one socket. One thread at a time.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "railyard/result.hpp"
#include "rendezvous/handshake.hpp"

namespace railyard::rendezvous {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

inline constexpr std::size_t kBufferBytes = 64 * 1024;
/// What has arrived counts, however late this process looks: before somebody is called late, so many reads are made.
inline constexpr int kLastReads = 6;

/// One epoll set, the ids of what is in it, and an alarm for each. Its descriptor is readable when there is something
/// to do or an alarm has come, so nobody wakes up to look.
class EpollSet {
 public:
  static Result<std::unique_ptr<EpollSet>> open(const Clock& clock);

  /// Never 0, never given out twice; one of another set is none of these but by a chance of 1 in 2^40 or so.
  std::uint64_t new_id() { return ++last_id_; }
  std::int64_t now() const { return clock_.now(); }

  /// `operation`: EPOLL_CTL_ADD or EPOLL_CTL_MOD. A socket leaves the set by being closed. False: `errno` says why not.
  bool set(int socket, std::uint64_t id, std::uint32_t events, int operation);
  /// The sockets with something to do, at most `kMostEvents`.
  static constexpr int kMostEvents = 128;
  std::span<const epoll_event> poll(int timeout_ms);
  int descriptor() const { return epoll_.get(); }
  /// For a forked child: lets go of what the parent uses.
  void abandon() {
    epoll_.reset();
    timer_.reset();
  }

  /// Replaces the id's alarm; kNever: none.
  void set_alarm(std::uint64_t id, std::int64_t due_ns);
  bool has_alarm(std::uint64_t id) const { return due_.contains(id); }
  /// Whose alarm has come, one at a time; the alarm is gone then.
  std::optional<std::uint64_t> take_alarm(std::int64_t now_ns);

  /// What every read goes through.
  std::span<std::byte> buffer() { return buffer_; }

 private:
  EpollSet(const Clock& clock, Fd epoll, Fd timer, std::uint64_t first_id)
      : clock_(clock), epoll_(std::move(epoll)), timer_(std::move(timer)), last_id_(first_id) {}
  void arm_timer();

  const Clock& clock_;
  Fd epoll_;
  Fd timer_;                         ///< in the epoll set: at the first alarm
  std::int64_t timer_due_ = kNever;  ///< what it is set to
  std::uint64_t last_id_;
  std::set<std::pair<std::int64_t, std::uint64_t>> alarms_;
  std::unordered_map<std::uint64_t, std::int64_t> due_;
  std::array<epoll_event, kMostEvents> events_;
  std::array<std::byte, kBufferBytes> buffer_;
};

/// A non-blocking socket in the set. Closes it at its end.
class Socket {
 public:
  Socket() = default;
  /// `connecting`: waits until it can be written to.
  Socket(EpollSet& watch, Fd socket, std::uint64_t id, bool connecting);

  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_.reset(); }
  /// How a connection attempt ended: 0, or the system's error number. Nothing: it is under way.
  std::optional<int> connected();

  struct Read {
    enum class State : std::uint8_t { some, nothing, ended, broken };
    State state = State::nothing;
    std::span<const std::byte> bytes;
    int code = 0;  ///< of broken: the system's error number
  };
  /// At most one buffer, so that everybody gets a turn.
  Read read();
  /// Sends what goes. That a connection is broken shows in `read`, which may find the reason the other end gave before.
  void flush(Conversation& conversation);
  /// Nothing more will be sent; the other end sees that once it has read everything.
  void shut_down();

 private:
  void watch_for_writing(bool wanted);

  EpollSet* watch_ = nullptr;
  Fd socket_;
  std::uint64_t id_ = 0;
  bool writing_ = false;
};

}  // namespace railyard::rendezvous
