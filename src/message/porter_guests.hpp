/// The listening side of a porter: its doors, and those who knock. One thread at a time; hosts are called by others,
/// who take the calls from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/log.hpp"
#include "message/handle.hpp"
#include "message/porter.hpp"
#include "message/porter_line.hpp"
#include "message/porter_wire.hpp"
#include "railyard/result.hpp"

namespace railyard::message {

/// A call that a host is owed.
struct HostCall {
  enum class Kind : std::uint8_t { hello, ready, gone };
  Kind kind = Kind::gone;
  Host* host = nullptr;
  std::uint64_t door = 0;
  std::uint64_t meeting = 0;
  std::vector<std::byte> letter;
};

/// Nobody is trusted before the proof: a stranger gets short frames, a few seconds, and a place among a bounded number.
class Guests {
 public:
  static constexpr std::size_t kMostStrangers = 1024;
  static constexpr std::int64_t kStrangerNs = 10'000'000'000;
  /// A stranger who has had so long makes room for another when all places are taken.
  static constexpr std::int64_t kLeastStayNs = 1'000'000'000;

  /// `interfaces`: the setting. `timeout_ns`: from a guest's hello until it is ready.
  Guests(Watch& watch, std::uint64_t machine, std::string interfaces, std::int64_t timeout_ns)
      : watch_(watch), machine_(machine), interfaces_(std::move(interfaces)), timeout_ns_(timeout_ns) {}

  Result<Handle> open_door(Host& host);
  /// The host of the door that was closed; null: there is none.
  Host* close_door(const Handle& handle);

  /// The socket of that id has something to do. False: the id is none of these.
  bool serve(std::uint64_t id);
  /// Its alarm has come.
  bool ring(std::uint64_t id);

  /// The next call to make, if any.
  std::optional<HostCall> take_call();
  /// What the host said to a hello.
  void answered(std::uint64_t meeting, const Result<std::vector<std::byte>>& answer);

  bool idle() const { return doors_.empty() && guests_.empty() && calls_.empty(); }
  bool anything_outgoing() const;
  const PorterCounts& counts() const { return counts_; }

 private:
  struct Door {
    Host* host = nullptr;
    Secret secret{};
  };
  enum class Standing : std::uint8_t {
    stranger,  ///< its hello is not complete
    waiting,   ///< for the host to be called
    in_call,   ///< the host is deciding
    accepted,  ///< the host knows it; its last letter is to come
    closing,   ///< it is told why, then closed
  };
  struct Guest {
    Guest(std::uint64_t name, std::string from, const bootstrap::Nonce& nonce, std::int64_t now_ns)
        : id(name), peer(std::move(from)), talk(nonce), since_ns(now_ns) {}
    const std::uint64_t id;
    const std::string peer;
    Line line;
    GuestTalk talk;
    const std::int64_t since_ns;
    Standing standing = Standing::stranger;
    bool lost = false;  ///< while the host was deciding
  };

  Result<void> open_listener();
  void accept_some();
  bool make_room(std::int64_t now_ns, std::int64_t least_stay_ns);
  void admit(Fd socket, const std::string& peer);
  void listen(Guest& guest);
  void hear(Guest& guest);
  void turn_away(Guest& guest);
  void begin_closing(Guest& guest);
  void finish_closing(Guest& guest);
  void lose(Guest& guest);
  void call(HostCall::Kind kind, const Guest& guest, std::vector<std::byte> letter = {});
  void erase(std::uint64_t id);
  void count(GuestTalk::Fault fault);

  Watch& watch_;
  const std::uint64_t machine_;
  const std::string interfaces_;
  const std::int64_t timeout_ns_;

  Fd listener_;  ///< open while there is a door
  std::uint64_t listener_id_ = 0;
  std::uint16_t port_ = 0;
  std::vector<IpAddress> addresses_;

  std::unordered_map<std::uint64_t, Door> doors_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Guest>> guests_;
  std::set<std::uint64_t> strangers_;  ///< and those being closed; ids grow, so the oldest is first
  std::deque<HostCall> calls_;
  PorterCounts counts_;
  LogLimit complaints_;
};

}  // namespace railyard::message
