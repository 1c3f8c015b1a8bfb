/// What surrounds the traffic: the table, versions, memory, misuse, the end.
#include "cases.hpp"

namespace railyard::nvshmem::test {

template <typename Transport>
void SetUp<Transport>::table(const Start& start) {
  Host pe(start);
  EXPECT(pe.init());
  const Transport& made = *pe.transport();
  EXPECT(made.api_version == Host::kMajor * 10000, "%d", made.api_version);
  EXPECT(made.attr == 2);
  EXPECT(made.devices == 0);
  EXPECT(made.is_successfully_initialized && !made.no_proxy && !made.atomics_complete_on_quiet);
  EXPECT(made.device_pci_paths == nullptr && made.max_op_bytes == 0 && made.atomic_host_endian_min_size == 0);
  // As the host reads it: by offsets alone, those of its own header.
  const auto* const bytes = reinterpret_cast<const std::byte*>(pe.transport());
  const auto pointer = [bytes](std::size_t at) {
    void* found = nullptr;
    std::memcpy(&found, bytes + at, sizeof found);
    return found;
  };
  constexpr std::size_t kOps = Host::kMajor == 3 ? 16 : 128;
  constexpr std::size_t kSet = Host::kMajor == 3 ? 12 : 13;
  constexpr std::size_t kAll = Host::kMajor == 3 ? 14 : 15;
  for (std::size_t i = 0; i < kAll; ++i) EXPECT((pointer(kOps + 8 * i) != nullptr) == (i < kSet), "call %zu", i);
  // Members that newer hosts know of must read as null.
  for (std::size_t at = sizeof(Transport); at < 4096; at += 8) EXPECT(pointer(at) == nullptr, "offset %zu", at);
  pe.board().gathers = 0;
  EXPECT(pe.progress() == 0);  // the host's proxy may come early
  EXPECT(pe.ops().show_info(pe.transport(), 0) == 0);
}

template <typename Transport>
void SetUp<Transport>::versions(const Start& start) {
  Host pe(start);
  for (const int version : {0, 19999, 20000, 30000, 30405, 40000, 40100, 50000, 60000, -1, 1 << 30}) {
    void* made = &pe;
    const int code = pe.init_call()(&made, nullptr, version);
    if (version / 10000 == Host::kMajor) {
      EXPECT(code == 0 && made != nullptr, "%d", version);
      if (code == 0) EXPECT(static_cast<Transport*>(made)->host_ops.finalize(static_cast<Transport*>(made)) == 0);
    } else {
      EXPECT(code == 3 && made == nullptr, "version %d: code %d", version, code);
    }
  }
  EXPECT(pe.init_call()(nullptr, nullptr, Host::kMajor * 10000) == 1);
  ::setenv("RAILYARD_RAILS", "many", 1);
  void* made = nullptr;
  EXPECT(pe.init_call()(&made, nullptr, Host::kMajor * 10000) != 0 && made == nullptr);
}

template <typename Transport>
void SetUp<Transport>::memory(const Start& start) {
  for (const bool old_handles : {false, true}) {
    if (old_handles && Host::kMajor != 3) continue;
    Start mine = start;
    mine.old_handles = old_handles;
    Host pe(mine);
    EXPECT(pe.begin());
    const int next = (pe.pe() + 1) % pe.pes();
    // Local buffers may be anywhere; the host registers those that it is told of.
    std::vector<std::byte> local(200'000);
    abi::MemHandle own{};
    EXPECT(pe.get_mem_handle(own, local, true) == 0);
    EXPECT(own.bytes[0] != std::byte{0});
    for (std::uint64_t round = 1; round <= 3; ++round) {
      // The heap grows while it is used.
      const std::size_t chunk = pe.add_chunk(300'000);
      const auto seed = 100 * round + static_cast<std::uint64_t>(pe.pe());
      fill(local, seed);
      EXPECT(pe.put(next, chunk, 50, local.data(), local.size()) == 0);
      EXPECT(pe.quiet(next) == 0);
      EXPECT(pe.barrier());
      const int before = (pe.pe() + pe.pes() - 1) % pe.pes();
      EXPECT(is_filled(pe.chunk(chunk).subspan(50, local.size()), 100 * round + static_cast<std::uint64_t>(before)));
      EXPECT(pe.barrier());
      // And shrinks.
      EXPECT(pe.release(pe.handle(chunk, pe.pe())) == 0);
      EXPECT(pe.release(pe.handle(chunk, pe.pe())) != 0);  // once
      EXPECT(pe.release(pe.handle(chunk, next)) == 0);     // not ours: nothing to do
      pe.forget_chunk(chunk);
      EXPECT(pe.barrier());
    }
    EXPECT(pe.release(own) == 0);
    EXPECT(pe.barrier());
  }
}

template <typename Transport>
void SetUp<Transport>::misuse(const Start& start) {
  Host pe(start);
  EXPECT(pe.init());
  abi::MemHandle handle{};
  std::vector<std::byte> local(64);
  EXPECT(pe.get_mem_handle(handle, local, false) != 0);  // before connect_endpoints
  EXPECT(pe.quiet(0) != 0);
  int access = 0;
  abi::PeInfo info{};
  EXPECT(pe.ops().can_reach_peer(nullptr, &info, pe.transport()) != 0);
  EXPECT(pe.ops().can_reach_peer(&access, nullptr, pe.transport()) != 0);
  EXPECT(pe.ops().progress(nullptr) != 0);
  EXPECT(pe.connect());
  pe.add_chunk(Host::kData);
  pe.add_chunk(Host::kWords);
  const int next = (pe.pe() + 1) % pe.pes();

  EXPECT(pe.get_mem_handle(handle, {local.data(), 0}, false) != 0);
  EXPECT(pe.get_mem_handle(handle, {static_cast<std::byte*>(nullptr), 10}, false) != 0);
  for (const int wrong : {-1, pe.pes(), 32767}) {
    EXPECT(pe.quiet(wrong) == 1, "PE %d", wrong);
    EXPECT(pe.fence(wrong) == 1, "PE %d", wrong);
    abi::MemDesc there = pe.remote(next, 0, 0);
    abi::MemDesc here{local.data(), 0, nullptr};
    EXPECT(pe.ops().rma(pe.transport(), wrong, {abi::RmaOp::put, 1, 0, nullptr}, &there, &here, {8, 1, 1, 1}, kProxy) ==
           1);
  }
  const auto rma = [&](abi::RmaOp op, abi::MemDesc* there, abi::MemDesc* here, abi::BytesDesc bytes) {
    return pe.ops().rma(pe.transport(), next, {op, 1, 0, nullptr}, there, here, bytes, kProxy);
  };
  abi::MemDesc there = pe.remote(next, 0, 0);
  abi::MemDesc here{local.data(), 0, nullptr};
  for (const int op : {0, 3, 6, 7, 8, 99, -1})
    EXPECT(rma(static_cast<abi::RmaOp>(op), &there, &here, {8, 1, 1, 1}) == 3, "%d", op);
  EXPECT(rma(abi::RmaOp::put, nullptr, &here, {8, 1, 1, 1}) == 1);
  EXPECT(rma(abi::RmaOp::put, &there, nullptr, {8, 1, 1, 1}) == 1);
  EXPECT(rma(abi::RmaOp::put, &there, &here, {8, -1, 1, 1}) == 1);
  EXPECT(rma(abi::RmaOp::put, &there, &here, {SIZE_MAX / 2, 8, 1, 1}) == 1);
  EXPECT(rma(abi::RmaOp::p, &there, &here, {9, 1, 1, 1}) == 1);
  abi::MemDesc beyond = pe.remote(next, 0, Host::kData - 4);
  EXPECT(rma(abi::RmaOp::put, &beyond, &here, {8, 1, 1, 1}) == 1);
  abi::MemDesc before = pe.remote(next, 0, 0);
  before.address = static_cast<std::byte*>(before.address) - 8;
  EXPECT(rma(abi::RmaOp::put, &before, &here, {8, 1, 1, 1}) == 1);
  // Handles: none, all zero, of somebody else, of a later version, broken.
  abi::MemDesc none = there;
  none.handle = nullptr;
  EXPECT(rma(abi::RmaOp::put, &none, &here, {8, 1, 1, 1}) == 1);
  abi::MemHandle zero{};
  none.handle = &zero;
  EXPECT(rma(abi::RmaOp::put, &none, &here, {8, 1, 1, 1}) == 1);
  none.handle = &pe.handle(0, pe.pe());
  none.address = pe.chunk(0).data();  // where that memory is, so that nothing else is wrong with it
  EXPECT(rma(abi::RmaOp::put, &none, &here, {8, 1, 1, 1}) == 1);
  none.address = there.address;
  abi::MemHandle changed = pe.handle(0, next);
  changed.bytes[4] = std::byte{9};
  none.handle = &changed;
  EXPECT(rma(abi::RmaOp::put, &none, &here, {8, 1, 1, 1}) == 3);
  changed = pe.handle(0, next);
  changed.bytes[12] = std::byte{200};  // a registration that is not known yet, with a description that is none
  changed.bytes[24] = std::byte{5};
  none.handle = &changed;
  EXPECT(rma(abi::RmaOp::put, &none, &here, {8, 1, 1, 1}) == 1);
  abi::MemHandle kept{};
  EXPECT(pe.get_mem_handle(kept, local, true) == 0);
  std::vector<abi::MemHandle> all(static_cast<std::size_t>(pe.pes()));
  pe.board().gather(pe.pe(), &kept, all.data(), sizeof kept);
  none.handle = &all[static_cast<std::size_t>(next)];
  EXPECT(rma(abi::RmaOp::put, &none, &here, {8, 1, 1, 1}) == 1);  // local_only

  abi::FetchResult result{};
  for (const int op : {0, 1, 11, 20, -5}) EXPECT(pe.amo(static_cast<abi::AmoOp>(op), {next, 0}, 1) == 3, "%d", op);
  for (const int bytes : {0, 1, 2, 3, 16, -4}) EXPECT(pe.amo(abi::AmoOp::add, {next, 0, bytes}, 1) == 3, "%d", bytes);
  EXPECT(pe.amo(abi::AmoOp::add, {next, 4}, 1) == 1);  // not aligned
  EXPECT(pe.amo(abi::AmoOp::fetch_add, {next, 0}, 1, 0, nullptr) == 1);
  EXPECT(pe.release(zero) == 1);
  // After all that it works.
  EXPECT(pe.amo(abi::AmoOp::fetch_add, {next, 0}, 5, 0, &result, 7) == 0);
  EXPECT(pe.quiet_all() == 0);
  EXPECT(result.flag == 7 && result.value == 0);
  EXPECT(pe.barrier());
  EXPECT(pe.word(0) == 5);
  EXPECT(pe.release(kept) == 0);
  EXPECT(pe.barrier());
}

template <typename Transport>
void SetUp<Transport>::again(const Start& start) {
  for (std::uint64_t round = 1; round <= 3; ++round) {
    Host pe(start);
    EXPECT(pe.begin());
    const int next = (pe.pe() + 1) % pe.pes();
    EXPECT(pe.amo(abi::AmoOp::add, {next, 8}, round) == 0);
    EXPECT(pe.quiet_all() == 0);
    EXPECT(pe.barrier());
    EXPECT(pe.word(8) == round);
    EXPECT(pe.barrier());
    pe.end();
    EXPECT(!pe.is_loaded(), "the library stays in memory");
    EXPECT(pe.barrier());
  }
}

/// A program that forgets to finalize.
template <typename Transport>
void SetUp<Transport>::exit(const Start& start) {
  auto* const pe = new Host(start);  // nothing of it ends
  EXPECT(pe->begin());
  const int next = (pe->pe() + 1) % pe->pes();
  abi::FetchResult result{};
  EXPECT(pe->amo(abi::AmoOp::fetch_add, {next, 8}, 3, 0, &result, 1) == 0);
  EXPECT(pe->quiet_all() == 0);
  EXPECT(pe->barrier());
  std::fflush(nullptr);
  std::exit(failures == 0 ? 0 : 1);  // with its handlers, while threads of the library run
}

template struct SetUp<abi::Transport3>;
template struct SetUp<abi::Transport4>;

}  // namespace railyard::nvshmem::test
