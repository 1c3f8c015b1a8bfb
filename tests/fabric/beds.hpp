/// Rails for the contract tests: the same tests run over each of these.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "doubles/strict.hpp"
#include "doubles/verbs/verbs_double.hpp"
#include "fabric/rail.hpp"
#include "fabric/shm/rail.hpp"
#include "fabric/verbs/driver.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric {

struct Bed {
  const char* name;
  const char* provider;
  const char* interfaces;
  const char* endpoints;         ///< RAILYARD_ENDPOINTS; of our own shared memory: whether it copies once
  bool reports_bad_keys = true;  ///< libfabric's shm drops a write with a wrong key and tells nobody
  const char* driver = "ofi";

  bool tcp() const { return std::string_view(provider) == "tcp"; }
  bool fences_exactly() const { return std::string_view(endpoints) == "connected" || own_shared_memory(); }
  bool own_shared_memory() const { return std::string_view(driver) == "shm"; }
  bool verbs() const { return std::string_view(driver) == "verbs"; }
  /// On devices of the double rather than the machine's.
  bool doubled() const { return verbs() && std::string_view(interfaces) == "fake0"; }
};

inline Settings settings_for(const Bed& bed, std::uint32_t rails) {
  Settings settings;
  settings.driver = bed.driver;
  settings.shared_memory = "off";
  settings.provider = bed.provider;
  settings.interfaces = bed.interfaces;
  settings.endpoints = bed.endpoints;
  settings.rails = rails;
  return settings;
}

/// Our own rail through shared memory; there is one per process, so tests open it themselves.
inline const Bed kSingleCopy{"single_copy", "shared memory", "", "yes", true, "shm"};
inline const Bed kRingsOnly{"rings_only", "shared memory", "", "no", true, "shm"};

/// Our own sockets on loopback.
inline const Bed kSockets{"sockets", "tcp", "lo", "connected", true, "tcp"};

/// Queue pairs, on the double's devices, and on those of the machine where it has any (tests/lab/vm).
inline const Bed kVerbsDouble{"verbs_double", "", "fake0", "connected", true, "verbs"};
inline const Bed kVerbs{"verbs", "", "", "connected", true, "verbs"};

inline Result<std::vector<std::unique_ptr<Rail>>> open_bed(const Bed& bed, std::uint32_t count) {
  if (!bed.own_shared_memory()) return open_rails(settings_for(bed, count));
  std::vector<std::unique_ptr<Rail>> rails;
  while (rails.size() < count) {
    shm::ShmRail::Options options;
    if (std::string_view(bed.endpoints) == "no") options.single_copy_from = SIZE_MAX;
    auto rail = shm::ShmRail::open(options);
    if (!rail) return std::move(rail.error());
    rails.push_back(std::move(*rail));
  }
  return rails;
}

inline const std::vector<Bed>& beds() {
  static const std::vector<Bed> all = [] {
    std::vector<Bed> some = {{"tcp_connected", "tcp", "lo", "connected"},
                             {"tcp_datagram", "tcp", "lo", "datagram"},
                             {"shm", "shm", "", "auto", false},
                             {"strict", "strict", "lo", "auto"},
                             kSockets,
                             kSingleCopy,
                             kRingsOnly,
                             kVerbsDouble};
    if (discover_verbs(Settings())) some.push_back(kVerbs);
    return some;
  }();
  return all;
}

/// The strict provider's own account of what happened, from the object that libfabric loaded.
class StrictAccount {
 public:
  StrictAccount()
      : object_(::dlopen((std::string(RAILYARD_STRICT_PROVIDER_DIR) + "/libstrict-fi.so").c_str(),
                         RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {}
  ~StrictAccount() {
    if (object_ != nullptr) ::dlclose(object_);
  }
  StrictAccount(const StrictAccount&) = delete;
  StrictAccount& operator=(const StrictAccount&) = delete;

  bool loaded() const { return object_ != nullptr; }
  unsigned violations() const { return call<unsigned>("strict_fi_violations"); }
  unsigned open_objects() const { return call<unsigned>("strict_fi_open_objects"); }
  unsigned receives_used_up() const { return call<unsigned>("strict_fi_receives_used_up"); }
  void forget() const { call<void>("strict_fi_forget_violations"); }
  /// All breaches, one to a line.
  std::string text() const {
    std::string all;
    auto* const one = reinterpret_cast<const char* (*)(unsigned)>(::dlsym(object_, "strict_fi_violation"));
    for (unsigned i = 0; i < violations(); ++i) all += std::string(one(i)) + "\n";
    return all;
  }

 private:
  template <typename T>
  T call(const char* name) const {
    return reinterpret_cast<T (*)()>(::dlsym(object_, name))();
  }
  void* object_;
};

/// Polls until `done`; false when that takes absurdly long.
inline bool pump(const std::vector<Rail*>& rails, std::vector<std::pair<Rail*, Event>>& log,
                 const std::function<bool()>& done) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    for (Rail* rail : rails) {
      std::array<Event, 32> events;
      const std::size_t count = rail->poll(events);
      for (std::size_t i = 0; i < count; ++i) log.emplace_back(rail, events[i]);
    }
    if (std::chrono::steady_clock::now() > give_up) return false;
  }
  return true;
}

}  // namespace railyard::fabric
