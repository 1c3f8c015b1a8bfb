/// Registered memory: what peers may read and write, by key.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "objects.hpp"

namespace railyard::provider {

struct Domain;
struct Counter;

struct Registration {
  fid_mr fid{};
  Domain* domain = nullptr;
  std::byte* memory = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t access = 0;
  std::uint64_t base = 0;  ///< what its first byte is called by peers
  bool enabled = true;
  const struct ::fid* endpoint = nullptr;  ///< the only one it serves, where the mode binds it
  Counter* counter = nullptr;              ///< of remote writes to it
};

class Registrations {
 public:
  /// `shared`: endpoints look in here from several threads at once.
  Registrations(int mode, bool shared) : mode_(mode), lock_(shared) {}
  int mode() const { return mode_; }

  /// Takes it in under its key; false when the key is taken.
  bool add(Registration& registration);
  void remove(const Registration& registration);
  /// The registration of `key`, if it holds the whole range, allows `access` and serves `endpoint`.
  Registration* find(std::uint64_t key, std::uint64_t address, std::uint64_t bytes, std::uint64_t access,
                     const struct ::fid* endpoint);
  std::uint64_t next_key() { return next_key_.fetch_add(1, std::memory_order_relaxed); }

 private:
  int mode_;
  Lock lock_;
  std::atomic<std::uint64_t> next_key_ = 1;
  std::unordered_map<std::uint64_t, Registration*> by_key_;
  std::uint64_t last_key_ = 0;
  Registration* last_ = nullptr;  ///< what the last search found: most programs use one region for long
};

extern fi_ops_mr registration_calls;

}  // namespace railyard::provider
