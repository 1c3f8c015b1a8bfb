#include "window/direct_use.hpp"

#include <algorithm>

namespace railyard {

std::size_t DirectUse::next_line() { return std::min(threads.fetch_add(1, std::memory_order_relaxed), kLines - 1); }

void DirectUse::add_to(WorldStatistics& statistics) const {
  const auto sum = [this](auto member, What what) {
    // Lines of threads that do not exist hold nothing.
    const std::size_t used = std::min(threads.load(std::memory_order_relaxed), kLines);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < used; ++i)
      total += (lines_[i].*member)[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
    return total;
  };
  statistics.direct_puts += sum(&Line::operations, What::put);
  statistics.direct_gets += sum(&Line::operations, What::get);
  statistics.direct_atomics += sum(&Line::operations, What::atomic);
  statistics.direct_bytes_put += sum(&Line::bytes, What::put);
  statistics.direct_bytes_got += sum(&Line::bytes, What::get);
}

}  // namespace railyard
