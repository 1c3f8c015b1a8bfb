/// The memory of GPUs sees what the device has written before anybody hears of it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

using accelerator::NicWrites;

namespace {

/// The device has written them, perhaps to the memory of a GPU: its completions do not say where.
bool tells_of_bytes(const Event& event) { return event.kind == Event::Kind::landed || event.kind == Event::Kind::read; }

}  // namespace

/// All that a flush needs is made here: later a kernel may run, and calls of the driver that make something wait for
/// it.
Result<void> VerbsRail::prepare_flush(int device) {
  FlushedGpu* gpu = flush_.find(device);
  if (gpu == nullptr) {
    if (flush_.gpus.size() == Flush::kMostGpus)
      return Error(Status::no_memory, fmt::format("{}: memory of {} GPUs is the most", name_, Flush::kMostGpus));
    FlushedGpu fresh;
    fresh.device = device;
    fresh.way = accelerator::driver()->nic_writes(device);
    if (fresh.way == NicWrites::by_read)
      if (auto ready = open_flush_buffer(fresh); !ready) return ready;
    flush_.gpus.push_back(std::move(fresh));
    gpu = &flush_.gpus.back();
  }
  if (gpu->way != NicWrites::in_order && !flush_.active) {
    flush_.active = true;
    flush_.visible = pending_.mark();  // none of it is of this memory
  }
  ++gpu->registrations;
  return {};
}

Result<void> VerbsRail::open_flush_buffer(FlushedGpu& gpu) {
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (!gpu.region) {
    auto memory = accelerator::driver()->allocate(gpu.device, bytes);
    if (!memory) return std::move(memory.error());
    auto region = register_on_device((*memory)->memory().first(bytes), {.remote = true, .device = gpu.device},
                                     IBV_ACCESS_REMOTE_READ);
    if (!region) return std::move(region.error());
    gpu.memory = std::move(*memory);
    gpu.region = std::move(*region);
  }
  if (!flush_.target_region) {
    flush_.target.resize(bytes / sizeof(std::uint64_t));
    flush_.target_region =
        MemoryRegion(library_->reg_mr(domain_.get(), flush_.target.data(), bytes, IBV_ACCESS_LOCAL_WRITE), {library_});
    if (!flush_.target_region) return set_up_error("register a flush buffer", errno, limits_.max_mr);
  }
  if (!flush_.pair)
    if (const int code = open_flush_pair()) return set_up_error("make a queue pair for flushes", code, limits_.max_qp);
  return {};
}

int VerbsRail::open_flush_pair() {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = queue_.get();
  wanted.cap.max_send_wr = std::min(Flush::kMostGpus, depth_);
  wanted.cap.max_send_sge = 1;
  wanted.qp_type = IBV_QPT_RC;
  ++flush_.generation;
  flush_.pair = QueuePair(library_->create_qp(domain_.get(), &wanted), {library_});
  if (!flush_.pair) return errno;
  EndData itself;
  itself.queue_pair = flush_.pair->qp_num;
  itself.mtu = static_cast<std::uint8_t>(port_.mtu);
  itself.reads = reads_;
  int code = begin_pair(flush_.pair.get());
  if (code == 0) code = join(flush_.pair.get(), itself.first_packet, itself, own_address_);
  if (code != 0) flush_.pair.reset();
  return code;
}

std::size_t VerbsRail::poll_flushed(std::span<Event> events) {
  if (!gone_) {
    std::array<Event, kReadBatch> found;
    const std::size_t count = read_queue(found);
    for (std::size_t i = 0; i < count; ++i) pending_.push(found[i]);
    if (emptied_ && !closing_.empty()) sweep();
  }
  gone_ ? withhold() : advance_flush();
  const std::size_t count = pending_.take(events, flush_.visible);
  // Over, once all memory of GPUs has been taken back and what it held up is told.
  flush_.active = !pending_.empty() || flush_.under_way || std::ranges::any_of(flush_.gpus, [](const FlushedGpu& gpu) {
    return gpu.registrations != 0 && gpu.way != NicWrites::in_order;
  });
  return count;
}

void VerbsRail::advance_flush() {
  if (flush_.under_way) return;
  if (std::exchange(flush_.broken, false)) return flush_failed();
  flush_.covers = pending_.mark();
  bool written = false;
  pending_.change_from(flush_.visible, [&](const Event& event) { written |= tells_of_bytes(event); });
  if (written && !begin_flush()) return flush_failed();
  if (!flush_.under_way) flush_.visible = flush_.covers;
}

bool VerbsRail::begin_flush() {
  std::array<ibv_send_wr, Flush::kMostGpus> reads{};
  std::array<ibv_sge, Flush::kMostGpus> targets{};
  std::size_t count = 0;
  for (FlushedGpu& gpu : flush_.gpus) {
    if (gpu.registrations == 0 || gpu.way == NicWrites::in_order) continue;
    if (gpu.way == NicWrites::by_flush) {
      auto flushed = accelerator::driver()->flush_writes(gpu.device);
      if (flushed) continue;
      log_warn(in_log(), "{}", flushed.error().message());
      if (auto ready = open_flush_buffer(gpu); !ready) {
        log_error(in_log(), "{}", ready.error().message());
        return false;
      }
      gpu.way = NicWrites::by_read;
    }
    ibv_sge& target = targets[count];
    target = {reinterpret_cast<std::uint64_t>(&flush_.target[count]), sizeof(std::uint64_t),
              flush_.target_region->lkey};
    ibv_send_wr& read = reads[count];
    read.sg_list = &target;
    read.num_sge = 1;
    read.opcode = IBV_WR_RDMA_READ;
    read.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(gpu.memory->memory().data());
    read.wr.rdma.rkey = gpu.region->rkey;
    if (count != 0) reads[count - 1].next = &read;
    ++count;
  }
  if (count == 0) return true;
  if (!flush_.pair && open_flush_pair() != 0) return false;
  // One completion speaks for all of them.
  reads[count - 1].wr_id = Flush::kReads | flush_.generation;
  reads[count - 1].send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  flush_.under_way = ibv_post_send(flush_.pair.get(), reads.data(), &bad) == 0;
  return flush_.under_way;
}

void VerbsRail::take_flush(const ibv_wc& completion) {
  if (static_cast<std::uint32_t>(completion.wr_id) != flush_.generation || !flush_.under_way) return;
  flush_.under_way = false;
  if (completion.status == IBV_WC_SUCCESS)
    flush_.visible = flush_.covers;
  else
    flush_.broken = true;  // acted on when all that was found with it is pending
}

void VerbsRail::flush_failed() {
  log_warn(in_log(), "its links are made anew: {}", describe_error(kNotFlushed));
  flush_.pair.reset();
  flush_.under_way = false;
  withhold();
  for (Slot& slot : slots_)
    if (slot.pair) pair_failed(*slot.pair, kNotFlushed, false);
}

void VerbsRail::withhold() {
  pending_.change_from(flush_.visible, [](Event& event) {
    if (!tells_of_bytes(event)) return;
    event.kind = Event::Kind::failed;
    event.error = kNotFlushed;
    event.blame = Blame::link;
  });
  flush_.visible = pending_.mark();
}

}  // namespace railyard::fabric::verbs
