/// The files behind the endpoints: made whole and locked before they have a name, found by identity or by name, told
/// alive from dead by their lock, and removed when their owner is dead.
///
/// One file per endpoint in /dev/shm, mode 0600, with one or two names: its identity, and the name its owner asked for.
/// The owner holds a lock on the open file until it ends, however it ends: a file that nobody has locked is dead, and
/// whoever takes its lock may remove its names. A live one is never removed by others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "base/identity.hpp"
#include "railyard/result.hpp"
#include "shm/layout.hpp"

namespace railyard::shm {

/// Part of a file in this process's memory.
class Mapping {
 public:
  Mapping() = default;
  static Result<Mapping> map(int fd, std::size_t offset, std::size_t bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Where the objects are. Tests use a directory of their own.
inline constexpr const char* kDefaultDirectory = "/dev/shm";

/// This endpoint's own object: everything mapped, locked, named.
class OwnObject {
 public:
  /// An empty name: the identity is the only one. A name in use by a live endpoint is refused with `busy`.
  static Result<OwnObject> create(const std::string& directory, std::string_view name, bool can_sleep);
  OwnObject(OwnObject&&) = default;
  OwnObject& operator=(OwnObject&&) = delete;
  /// Marks it closed and removes its names; peers keep what they have mapped.
  ~OwnObject();

  const Identity& identity() const { return *identity_; }
  /// False in a child that was forked without exec: the endpoint is its parent's, whatever the child destroys.
  bool own() const;
  ObjectHeader& header() const { return *reinterpret_cast<ObjectHeader*>(memory_.data()); }
  Owner* owners() const { return reinterpret_cast<Owner*>(memory_.data() + kOwnersOffset); }
  RingControl* controls() const { return reinterpret_cast<RingControl*>(memory_.data() + kControlsOffset); }
  std::byte* at(std::size_t offset) const { return memory_.data() + offset; }

 private:
  OwnObject() = default;
  std::string path_;
  std::string name_path_;
  Fd file_;
  Mapping memory_;
  std::unique_ptr<Identity> identity_;  ///< at a fixed address: peers look at it to see whether they can read us
};

/// A peer's object: the front part mapped, layout and version checked.
class PeerObject {
 public:
  /// `not_found`: nobody there, or a dead one, which is then removed. `version_mismatch`: another layout.
  static Result<PeerObject> open_name(const std::string& directory, std::string_view name);
  static Result<PeerObject> open_identity(const std::string& directory, const Identity& identity);

  ObjectHeader& header() const { return *reinterpret_cast<ObjectHeader*>(front_.data()); }
  Owner* owners() const { return reinterpret_cast<Owner*>(front_.data() + kOwnersOffset); }
  RingControl* controls() const { return reinterpret_cast<RingControl*>(front_.data() + kControlsOffset); }
  const Identity& identity() const { return identity_; }
  bool closed() const {
    return header().state.load(std::memory_order_acquire) != static_cast<std::uint32_t>(ObjectState::open);
  }
  /// Whether its owner still runs: asks the system.
  bool alive() const;
  /// Maps one of its rings, with memory behind it.
  Result<Mapping> map_ring(std::uint32_t ring) const;

 private:
  static Result<PeerObject> open_path(const std::string& path);
  Fd file_;
  Mapping front_;
  Identity identity_;
};

/// Whether an object of that identity exists and its owner runs. Removes a dead one.
bool identity_alive(const std::string& directory, const Identity& identity);
/// Removes every dead object of this user.
void remove_dead_objects(const std::string& directory);
/// Both words at once: `desired` is stored where `expected` was found; returns what was found.
Owner exchange_owner(Owner& owner, const Owner& expected, const Owner& desired);
Owner owner_of(const Identity& identity);
Identity identity_of(const Owner& owner);
/// The number of this process's pid namespace; 0 where it is not known.
std::uint64_t own_pid_namespace();
/// The name of an object's bell beside it.
std::string bell_path(const std::string& directory, const Identity& identity);

}  // namespace railyard::shm
