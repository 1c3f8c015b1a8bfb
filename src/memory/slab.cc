#include "memory/slab.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "memory/mapped.hpp"

namespace railyard::memory {

namespace {

constexpr std::size_t kLine = 64;

/// Whole cache lines; and not whole pages, or the first lines of all buffers would share a few cache sets.
std::size_t stride_of(std::size_t bytes) {
  const std::size_t stride = (bytes + kLine - 1) / kLine * kLine;
  return stride % 4096 == 0 ? stride + kLine : stride;
}

}  // namespace

/// Memory for some buffers and its registration, which goes first.
struct Slab::Block {
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    region.reset();
    if (!memory.empty()) ::munmap(memory.data(), memory.size());
  }

  std::span<std::byte> memory;
  std::shared_ptr<Region> region;
  std::vector<void*> descriptors;
  std::vector<Buffer> buffers;
};

Slab::Slab(Slab&& other) noexcept { *this = std::move(other); }

Slab& Slab::operator=(Slab&& other) noexcept {
  rails_ = std::move(other.rails_);
  buffer_bytes_ = std::exchange(other.buffer_bytes_, 0);
  per_block_ = std::exchange(other.per_block_, 0);
  most_ = std::exchange(other.most_, 0);
  size_ = std::exchange(other.size_, 0);
  outstanding_ = std::exchange(other.outstanding_, 0);
  free_ = std::exchange(other.free_, nullptr);
  blocks_ = std::exchange(other.blocks_, {});
  return *this;
}

Slab::~Slab() = default;

Result<Slab> Slab::open(std::span<fabric::Rail* const> rails, std::size_t buffer_bytes, std::size_t per_block,
                        std::size_t most) {
  if (buffer_bytes == 0 || buffer_bytes > UINT32_MAX || per_block == 0 || most == 0)
    return Error(Status::invalid,
                 fmt::format("a slab of {} x {} bytes in blocks of {} makes no sense", most, buffer_bytes, per_block));
  Slab slab;
  slab.rails_.assign(rails.begin(), rails.end());
  slab.buffer_bytes_ = buffer_bytes;
  slab.per_block_ = per_block;
  slab.most_ = most;
  if (auto added = slab.add_block(); !added) return std::move(added.error());
  return slab;
}

bool Slab::grow() noexcept {
  if (size_ >= most_) return false;
  const auto added = add_block();
  if (!added) log_error("no more message buffers: {}", added.error().text());
  return added.ok();
}

Result<void> Slab::add_block() {
  const std::size_t count = std::min(per_block_, most_ - size_);
  const std::size_t stride = stride_of(buffer_bytes_);
  const std::size_t bytes = (count * stride + page_bytes() - 1) / page_bytes() * page_bytes();
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return Error(Status::no_memory, fmt::format("no {} bytes for message buffers: {}", bytes, std::strerror(errno)));
  auto block = std::make_unique<Block>();
  block->memory = {static_cast<std::byte*>(memory), bytes};
  auto region = Region::open(rails_, block->memory, fabric::Access{.remote = false});
  if (!region) return std::move(region.error());
  block->region = std::move(*region);
  for (std::size_t rail = 0; rail < rails_.size(); ++rail)
    block->descriptors.push_back(block->region->on(rail).descriptor[static_cast<std::size_t>(fabric::Lane::control)]);
  block->buffers.resize(count);
  for (std::size_t i = count; i-- > 0;) {
    Buffer& buffer = block->buffers[i];
    buffer.data = block->memory.data() + i * stride;
    buffer.capacity = static_cast<std::uint32_t>(buffer_bytes_);
    buffer.descriptors = block->descriptors.data();
    buffer.next = free_;
    free_ = &buffer;
  }
  size_ += count;
  blocks_.push_back(std::move(block));
  return {};
}

}  // namespace railyard::memory
