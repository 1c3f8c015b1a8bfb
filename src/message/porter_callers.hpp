/// The connecting side of a porter: meetings that this process began. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "message/handle.hpp"
#include "message/porter_dial.hpp"
#include "message/porter_line.hpp"
#include "message/porter_wire.hpp"
#include "railyard/result.hpp"

namespace railyard::message {

class Callers {
 public:
  /// `machine`: the hash that handles of this machine carry.
  Callers(Watch& watch, std::uint64_t machine, std::int64_t timeout_ns)
      : watch_(watch), machine_(machine), timeout_ns_(timeout_ns) {}

  bool begun(const Handle& handle) const;
  Result<void> begin(Handle& handle, std::vector<std::byte> hello);
  Result<std::optional<std::vector<std::byte>>> welcome(Handle& handle);
  Result<void> finish(Handle& handle, std::vector<std::byte> ready);
  void abandon(Handle& handle);

  /// The socket of that id has something to do. False: the id is none of these.
  bool serve(std::uint64_t id);
  /// Its alarm has come.
  bool ring(std::uint64_t id);

  std::size_t size() const { return callers_.size(); }
  /// Whether a last letter is still on its way out.
  bool anything_outgoing() const;

 private:
  enum class Stage : std::uint8_t {
    connecting,  ///< to the dial's current address
    pausing,     ///< before another round
    talking,     ///< up to the welcome
    welcomed,    ///< the caller has it, or may fetch it
    leaving,     ///< the caller is done; the last letter goes out
    failed,      ///< until the caller asks
  };
  struct Caller {
    Caller(std::uint64_t name, const Handle& of, Dial way) : id(name), handle(of), dial(std::move(way)) {}
    const std::uint64_t id;
    const Handle handle;
    Secret secret{};
    std::uint64_t door = 0;
    Dial dial;
    bootstrap::SharedBytes hello;  ///< kept until the welcome: another address needs it again
    std::int64_t deadline_ns = kNever;
    Stage stage = Stage::connecting;
    bool welcome_taken = false;
    Line line;
    std::optional<CallerTalk> talk;
    std::optional<Error> error;
  };

  Caller* find(const Handle& handle);
  const Caller* find(const Handle& handle) const { return const_cast<Callers*>(this)->find(handle); }
  void erase(std::uint64_t id);
  void dial(Caller& caller);
  /// One attempt at the current address. False: it failed at once, and is noted.
  bool try_address(Caller& caller, Dial::Next& next);
  void move_on(Caller& caller, Finality finality, Status status, std::string why);
  void settle(Caller& caller, Dial::Next next);
  void check_connected(Caller& caller);
  void start_talking(Caller& caller);
  void listen(Caller& caller);
  void talk_advanced(Caller& caller);
  void line_lost(Caller& caller, std::string_view why);
  void leave(Caller& caller);
  void fail(Caller& caller, Error error);
  void fail_at_deadline(Caller& caller);

  Watch& watch_;
  const std::uint64_t machine_;
  const std::int64_t timeout_ns_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Caller>> callers_;
};

}  // namespace railyard::message
