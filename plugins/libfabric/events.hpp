/// Event queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "domain.hpp"
#include "waiting.hpp"

namespace railyard::provider {

struct Events {
  explicit Events(Fabric& owner) : fabric(owner) {}
  struct Entry {
    std::uint32_t event;
    std::vector<std::byte> content;
  };
  fid_eq fid{};
  Fabric& fabric;
  bool writable = false;
  Waiting waiting;
  std::mutex mutex;
  std::deque<Entry> entries;
  std::deque<fi_eq_err_entry> errors;

  bool pending();
};

}  // namespace railyard::provider
