/// Transfers, atomics and their order.
#include <signal.h>

#include <algorithm>
#include <thread>

#include "cases.hpp"
#include "gpu_memory.hpp"
#include "stopped.hpp"

namespace railyard::nvshmem::test {

template <typename Transport>
void Traffic<Transport>::transfers(const Start& start) {
  Host pe(start);
  EXPECT(pe.begin());
  const auto me = static_cast<std::uint64_t>(pe.pe());
  std::vector<std::byte> source(3 << 20);
  std::vector<std::byte> brought(source.size());
  const std::size_t room = Host::kData / static_cast<std::size_t>(pe.pes());
  for (const int queue : {kHost, kProxy}) {
    std::uint64_t round = 0;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{1000}, std::size_t{5000},
                                    std::size_t{70'001}, std::size_t{2'000'000}}) {
      ++round;
      const std::size_t slot = me * room + round;
      for (int to = 0; to < pe.pes(); ++to) {  // this PE too
        fill(std::span(source).first(bytes), 1000 * me + round);
        EXPECT(pe.put(to, 0, slot, source.data(), bytes, queue) == 0);
        EXPECT(pe.quiet(to, queue) == 0);
        EXPECT(pe.get(to, 0, slot, brought.data(), bytes, queue) == 0);
        EXPECT(pe.quiet(to, queue) == 0);
        EXPECT(std::memcmp(source.data(), brought.data(), bytes) == 0, "%zu bytes from PE %d", bytes, to);
      }
      EXPECT(pe.barrier());
      for (std::uint64_t from = 0; from < static_cast<std::uint64_t>(pe.pes()); ++from)
        EXPECT(is_filled(pe.chunk(0).subspan(from * room + round, bytes), 1000 * from + round), "%zu bytes from PE %d",
               bytes, static_cast<int>(from));
      EXPECT(pe.barrier());
    }
  }
  // Calls that wait: done when they return, without a quiet.
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{70'001}, std::size_t{2'000'000}}) {
    for (int to = 0; to < pe.pes(); ++to) {
      const std::size_t slot = me * room;
      fill(std::span(source).first(bytes), 7000 * me + bytes);
      EXPECT(pe.rma(abi::RmaOp::put, to, 0, slot, source.data(), bytes, kHost, true) == 0);
      std::ranges::fill(brought, std::byte{});
      EXPECT(pe.rma(abi::RmaOp::get, to, 0, slot, brought.data(), bytes, kHost, true) == 0);
      EXPECT(std::memcmp(source.data(), brought.data(), bytes) == 0, "%zu bytes from PE %d at once", bytes, to);
    }
  }
  EXPECT(pe.barrier());
  // Scalars: taken at the call, from a place that is gone after it.
  for (const std::size_t bytes : {1U, 2U, 4U, 8U}) {
    for (int to = 0; to < pe.pes(); ++to) {
      std::uint64_t value = 0x1122334455667788U + me;
      const std::size_t at = 8 * me;
      EXPECT(pe.rma(abi::RmaOp::p, to, 1, at, &value, bytes, kProxy) == 0);
      value = 0;
      EXPECT(pe.quiet(to) == 0);
      std::uint64_t back = 0;
      EXPECT(pe.rma(abi::RmaOp::g, to, 1, at, &back, bytes, kProxy) == 0);
      EXPECT(pe.quiet(to) == 0);
      const std::uint64_t sent = 0x1122334455667788U + me;
      EXPECT(std::memcmp(&back, &sent, bytes) == 0, "%zu bytes to PE %d", bytes, to);
    }
  }
  // Nothing at all, and a fence and a quiet after nothing.
  EXPECT(pe.put(0, 0, 0, nullptr, 0) == 0);
  for (int to = 0; to < pe.pes(); ++to) {
    EXPECT(pe.fence(to) == 0);
    EXPECT(pe.quiet(to) == 0);
  }
  // Puts on either side of a fence.
  EXPECT(pe.barrier());
  const int next = (pe.pe() + 1) % pe.pes();
  std::vector<std::byte> second(source.size());
  for (std::uint64_t round = 1; round <= 4; ++round) {
    fill(source, 2 * round);
    fill(second, 2 * round + 1);
    EXPECT(pe.put(next, 0, 0, source.data(), source.size()) == 0);
    EXPECT(pe.fence(next) == 0);
    EXPECT(pe.put(next, 0, 0, second.data(), second.size()) == 0);
    EXPECT(pe.quiet(next) == 0);
    EXPECT(pe.barrier());
    EXPECT(is_filled(pe.chunk(0).first(second.size()), 2 * round + 1), "fence, round %d", static_cast<int>(round));
    EXPECT(pe.barrier());
  }
}

template <typename Transport>
void Traffic<Transport>::atomics(const Start& start) {
  Host pe(start);
  EXPECT(pe.begin());
  using Op = abi::AmoOp;
  struct Step {
    Op op;
    std::uint64_t value, compare, after;
  };
  // One after the other on one word, which begins as 0.
  const Step steps[] = {
      {Op::set, 12, 0, 12},
      {Op::add, 5, 0, 17},
      {Op::increment, 0, 0, 18},
      {Op::bit_or, 5, 0, 23},
      {Op::bit_and, 0x16, 0, 22},
      {Op::bit_xor, 3, 0, 21},
      {Op::signal, 30, 0, 30},
      {Op::signal_set, 40, 0, 40},
      {Op::signal_add, 2, 0, 42},
      {Op::fetch, 0, 0, 42},
      {Op::fetch_increment, 0, 0, 43},
      {Op::fetch_add, 7, 0, 50},
      {Op::fetch_and, 0x30, 0, 48},
      {Op::fetch_or, 1, 0, 49},
      {Op::fetch_xor, 3, 0, 50},
      {Op::swap, 60, 0, 60},
      {Op::compare_swap, 70, 61, 60},
      {Op::compare_swap, 70, 60, 70},
      {Op::add, ~std::uint64_t{0}, 0, 69},
  };
  std::size_t at = 64 * static_cast<std::size_t>(pe.pe());
  for (const int bytes : {4, 8}) {
    for (int to = 0; to < pe.pes(); ++to) {  // this PE too
      std::uint64_t before = 0;
      std::uint64_t flag = 1;
      EXPECT(pe.amo(Op::set, {to, at, bytes}, 0) == 0);
      for (const Step& step : steps) {
        if (step.op < Op::fetch) {
          EXPECT(pe.amo(step.op, {to, at, bytes}, step.value, step.compare) == 0);
        } else {
          abi::FetchResult result{~std::uint64_t{0}, 0};
          EXPECT(pe.amo(step.op, {to, at, bytes}, step.value, step.compare, &result, flag) == 0);
          // As a kernel does: the flag alone tells.
          const bool told =
              pe.wait([&] { return std::atomic_ref(result.flag).load(std::memory_order_acquire) >= flag; });
          EXPECT(told && result.value == before, "atomic %d of %d bytes to PE %d: %llu", static_cast<int>(step.op),
                 bytes, to, static_cast<unsigned long long>(result.value));
          flag += 2;
        }
        before = step.after;
      }
      EXPECT(pe.quiet(to) == 0);
      std::uint64_t held = 0;
      EXPECT(pe.get(to, 1, at, &held, static_cast<std::size_t>(bytes)) == 0);
      EXPECT(pe.quiet(to) == 0);
      EXPECT(held == before, "%d bytes at PE %d", bytes, to);
    }
    at += 4096;
  }
  // Many at once from everybody on one word: each comes back, each counts once.
  EXPECT(pe.barrier());
  constexpr std::uint64_t kMany = 300;
  std::vector<abi::FetchResult> results(kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) EXPECT(pe.amo(Op::fetch_increment, {0, 32768}, 0, 0, &results[i], 9) == 0);
  EXPECT(pe.quiet(0) == 0);  // completes values too
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    EXPECT(results[i].flag == 9);
    EXPECT(i == 0 || results[i].value > last);
    last = results[i].value;
  }
  EXPECT(pe.barrier());
  if (pe.pe() == 0) EXPECT(pe.word(32768) == kMany * static_cast<std::uint64_t>(pe.pes()));
  EXPECT(pe.barrier());
}

/// A put and, as a call of its own, the atomic that says that it is there: the consumer looks at the data the moment
/// the flag shows.
template <typename Transport>
void Traffic<Transport>::order(const Start& start) {
  Host pe(start);
  EXPECT(pe.begin());
  std::uint64_t wrong = 0;
  std::uint64_t turn = 0;
  for (const std::size_t bytes : {std::size_t{256} << 10, std::size_t{1} << 20, std::size_t{8} << 20}) {
    const int rounds = given_long() ? 2000 : static_cast<int>((std::size_t{10} << 20) / bytes) + 4;
    std::vector<std::byte> sent(bytes);
    for (int round = 0; round < rounds; ++round) {
      ++turn;
      if (pe.pe() == 0) {
        std::memset(sent.data(), static_cast<int>(turn), bytes);
        EXPECT(pe.put(1, 0, 0, sent.data(), bytes) == 0);
        EXPECT(pe.amo(abi::AmoOp::signal_set, {1, 0}, turn) == 0);
        EXPECT(pe.wait([&] { return pe.word(64).load(std::memory_order_acquire) == turn; }));
      } else {
        EXPECT(pe.wait([&] { return pe.word(0).load(std::memory_order_acquire) == turn; }));
        // From the end, where a chunk that is late would be.
        const auto data = pe.chunk(0).first(bytes);
        for (std::size_t at = bytes; at > 0; --at) {
          if (data[at - 1] == static_cast<std::byte>(turn)) continue;
          ++wrong;
          break;
        }
        EXPECT(pe.amo(abi::AmoOp::signal_set, {0, 64}, turn) == 0);
      }
    }
  }
  EXPECT(wrong == 0, "%llu of %llu flags came before their data", static_cast<unsigned long long>(wrong),
         static_cast<unsigned long long>(turn));
  EXPECT(pe.quiet_all() == 0);
  EXPECT(pe.barrier());
}

template <typename Transport>
void Traffic<Transport>::signals(const Start& start) {
  Host pe(start);
  EXPECT(pe.begin());
  if constexpr (Host::kMajor >= 4) {
    const int next = (pe.pe() + 1) % pe.pes();
    const int before = (pe.pe() + pe.pes() - 1) % pe.pes();
    std::vector<std::byte> source(1 << 20);
    const auto send = [&](std::size_t segments, std::uint64_t round) {
      std::vector<abi::MemDesc> remote;
      std::vector<abi::MemDesc> local;
      std::vector<abi::BytesDesc> bytes;
      fill(source, 10 * round + static_cast<std::uint64_t>(pe.pe()));
      for (std::size_t i = 0; i < segments; ++i) {
        const std::size_t part = source.size() / segments;
        remote.push_back(pe.remote(next, 0, i * part));
        local.push_back({source.data() + i * part, 0, nullptr});
        bytes.push_back({part, 1, 1, 1});
      }
      abi::AmoMemDesc signal{};
      signal.remote = pe.remote(next, 1, 128);
      signal.value = 1;
      return pe.ops().put_signal(pe.transport(), next, {abi::RmaOp::put_signal, 1, 0, nullptr}, remote, local, bytes,
                                 {abi::AmoOp::signal_add, 0, 0, 0}, &signal, {0, 8}, kProxy);
    };
    std::uint64_t round = 0;
    for (const std::size_t segments : {1U, 4U, 0U, 16U, 64U}) {
      ++round;
      EXPECT(send(segments, round) == 0);
      EXPECT(pe.wait([&] { return pe.word(128).load(std::memory_order_acquire) == round; }));
      if (segments != 0)
        EXPECT(is_filled(pe.chunk(0).first(source.size()), 10 * round + static_cast<std::uint64_t>(before)), "%zu",
               segments);
      EXPECT(pe.quiet(next) == 0);
      EXPECT(pe.barrier());
    }
    // Lists that do not match.
    std::vector<abi::MemDesc> one(1);
    std::vector<abi::MemDesc> none;
    std::vector<abi::BytesDesc> bytes(1);
    EXPECT(pe.ops().put_signal(pe.transport(), next, {abi::RmaOp::put_signal, 1, 0, nullptr}, one, none, bytes,
                               {abi::AmoOp::signal_add, 0, 0, 0}, nullptr, {0, 8}, kProxy) == 1);
    // Further queue pairs: there are none, and the default does for all.
    int queues[3] = {-1, -1, -1};
    EXPECT(pe.ops().connect_endpoints(pe.transport(), nullptr, 0, queues, 3) == 0);
    for (const int queue : queues) EXPECT(queue == 1);
    EXPECT(pe.amo(abi::AmoOp::add, {next, 256}, 3, 0, nullptr, 0, queues[2]) == 0);
    EXPECT(pe.quiet(next, 0x7fffffff) == 0);
    EXPECT(pe.barrier());
    EXPECT(pe.word(256) == 3);
  }
  EXPECT(pe.barrier());
}

template <typename Transport>
void Traffic<Transport>::threads(const Start& start) {
  Host pe(start);
  EXPECT(pe.begin());
  const int next = (pe.pe() + 1) % pe.pes();
  constexpr std::uint64_t kRounds = 150;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  // The proxy: a stream of puts, signals and values, and progress.
  std::thread proxy([&] {
    std::vector<std::byte> sent(200'000);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      abi::FetchResult result{};
      if (pe.put(next, 0, 0, sent.data(), sent.size()) != 0) ++wrong;
      if (pe.amo(abi::AmoOp::fetch_add, {next, 0}, 1, 0, &result, 5) != 0) ++wrong;
      if (!pe.wait([&] { return std::atomic_ref(result.flag).load(std::memory_order_acquire) == 5; })) ++wrong;
      if (result.value != round - 1) ++wrong;
      if (round % 10 == 0 && pe.quiet_all() != 0) ++wrong;
    }
    while (!stop) {
      if (pe.progress() != 0) ++wrong;
      ::sched_yield();
    }
  });
  // A thread of the program: what it does goes apart.
  std::vector<std::byte> sent(100'000);
  std::vector<std::byte> back(sent.size());
  const std::size_t far = std::size_t{4} << 20;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    fill(sent, round);
    EXPECT(pe.put(next, 0, far, sent.data(), sent.size(), kHost) == 0);
    EXPECT(pe.quiet(next, kHost) == 0);
    EXPECT(pe.get(next, 0, far, back.data(), back.size(), kHost) == 0);
    EXPECT(pe.quiet(next, kHost) == 0);
    EXPECT(sent == back);
    if (round % 50 == 0) pe.add_chunk(100'000);
  }
  stop = true;
  // The peers' proxies may still need this one's.
  proxy.join();
  EXPECT(wrong == 0, "%d", wrong.load());
  EXPECT(pe.quiet_all() == 0);
  EXPECT(pe.barrier());
  EXPECT(pe.word(0) == kRounds);
  EXPECT(pe.barrier());
}

/// The proxy waits for a PE that is stopped. The program's own threads neither wait for the proxy's operations nor
/// behind them: not for another PE, and not for the one that is stopped.
template <typename Transport>
void Traffic<Transport>::stopped(const Start& start) {
  Host pe(start);
  EXPECT(pe.begin());
  auto& process = pe.board().notes[0];
  constexpr int kStopped = 1;
  constexpr int kOther = 2;
  if (pe.pe() == kStopped) process = static_cast<std::uint64_t>(::getpid());
  for (const int queue : {kHost, kProxy}) {  // links and windows are there
    for (int to = 0; to < pe.pes(); ++to) EXPECT(pe.amo(abi::AmoOp::add, {to, 0}, 1, 0, nullptr, 0, queue) == 0);
    for (int to = 0; to < pe.pes(); ++to) EXPECT(pe.quiet(to, queue) == 0);
  }
  EXPECT(pe.barrier());
  if (pe.pe() == 0) {
    std::vector<std::byte> sent(8 << 20);
    EXPECT(stop_process(static_cast<pid_t>(process.load())));
    EXPECT(pe.put(kStopped, 0, 0, sent.data(), sent.size(), kProxy) == 0);
    EXPECT(pe.quiet(kStopped, kHost) == 0);  // no operation of its own
    std::atomic<bool> over{false};
    int answer = -1;
    std::thread proxy([&] {
      answer = pe.quiet(kStopped, kProxy);
      over = true;
    });
    for (int i = 0; i < 100; ++i) {
      EXPECT(pe.put(kOther, 0, 0, sent.data(), 100'000, kHost) == 0);
      EXPECT(pe.amo(abi::AmoOp::add, {kOther, 512}, 1, 0, nullptr, 0, kHost) == 0);
      EXPECT(pe.quiet(kOther, kHost) == 0);
    }
    EXPECT(!over);  // nobody could have taken its bytes
    EXPECT(::kill(static_cast<pid_t>(process.load()), SIGCONT) == 0);
    proxy.join();
    EXPECT(answer == 0, "%d", answer);
  }
  EXPECT(pe.barrier());
  if (pe.pe() == kOther) EXPECT(pe.word(512) == 100);
  EXPECT(pe.barrier());
}

template <typename Transport>
void Traffic<Transport>::killed(const Start& start) {
  Host pe(start);
  EXPECT(pe.begin());
  const int victim = pe.pes() - 1;
  EXPECT(pe.amo(abi::AmoOp::add, {victim, 0}, 1) == 0);
  EXPECT(pe.quiet_all() == 0);
  EXPECT(pe.barrier());
  if (pe.pe() == victim) {
    ::kill(::getpid(), SIGKILL);
    return;
  }
  std::vector<std::byte> sent(1 << 20);
  abi::FetchResult result{};
  // Sooner or later an operation to it, or the wait for it, fails; and nothing hangs.
  int code = 0;
  for (int i = 0; i < 1000 && code == 0; ++i) {
    code = pe.put(victim, 0, 0, sent.data(), sent.size());
    if (code == 0) code = pe.amo(abi::AmoOp::fetch_add, {victim, 0}, 1, 0, &result, 3);
    if (code == 0) code = pe.quiet(victim);
  }
  EXPECT(code == 7, "code %d", code);
  // The others go on.
  for (int to = 0; to < victim; ++to) {
    EXPECT(pe.put(to, 0, 0, sent.data(), sent.size()) == 0);
    EXPECT(pe.amo(abi::AmoOp::add, {to, 512}, 1) == 0);
    EXPECT(pe.quiet(to) == 0);
  }
  // (A value that will never come is told of by progress, once.)
  EXPECT(pe.wait([&] { return pe.word(512).load() == static_cast<std::uint64_t>(victim); }, false));
  // The one that is gone cannot come to a barrier: the others count themselves.
  pe.board().notes[0].fetch_add(1);
  EXPECT(pe.wait([&] { return pe.board().notes[0].load() == static_cast<std::uint64_t>(victim); }, false));
}

/// Chunks of the heap, local buffers and the places of fetched values in memory of a GPU, which the processor never
/// touches. The words that atomics change are in host memory.
template <typename Transport>
void Traffic<Transport>::gpu(const Start& start) {
  const railyard::test::Gpu gpu;
  const railyard::test::GpuMemory heap(gpu, 1 << 20);
  const railyard::test::GpuMemory local(gpu, 1 << 20);
  const railyard::test::GpuMemory answers(gpu, 4096);
  Host pe(start);
  EXPECT(pe.begin());
  const std::size_t chunk = pe.add_chunk({heap.data(), heap.size()});
  pe.add_chunk({answers.data(), answers.size()});  // where kernels wait is symmetric memory too
  abi::MemHandle kept{};
  EXPECT(pe.get_mem_handle(kept, {local.data(), local.size()}, true) == 0);
  const auto me = static_cast<std::uint64_t>(pe.pe());
  for (int to = 0; to < pe.pes(); ++to) {  // this PE too
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{3000}, std::size_t{400'000}}) {
      std::vector<std::byte> sent(bytes);
      fill(sent, 10 * me + bytes);
      local.fill(sent);
      const std::size_t at = (me + 1) * 400'000 - bytes;
      EXPECT(pe.put(to, chunk, at, local.data(), bytes) == 0);
      EXPECT(pe.quiet(to) == 0);
      local.fill(std::vector<std::byte>(bytes));
      EXPECT(pe.get(to, chunk, at, local.data(), bytes) == 0);
      EXPECT(pe.quiet(to) == 0);
      EXPECT(local.read(0, bytes) == sent, "%zu bytes to PE %d", bytes, to);
    }
    std::uint64_t value = 77 + me;
    EXPECT(pe.rma(abi::RmaOp::p, to, chunk, 900'000 + 8 * me, &value, 8, kProxy) == 0);
    auto* const result = reinterpret_cast<abi::FetchResult*>(answers.data() + 16 * static_cast<std::size_t>(to));
    EXPECT(pe.amo(abi::AmoOp::fetch_add, {to, 64 * static_cast<std::size_t>(me)}, 5, 0, result, 3) == 0);
    abi::FetchResult held{};
    EXPECT(pe.wait([&] {
      const auto bytes = answers.read(16 * static_cast<std::size_t>(to), sizeof held);
      std::memcpy(&held, bytes.data(), sizeof held);
      return held.flag == 3;
    }));
    EXPECT(held.value == 0, "PE %d", to);
    EXPECT(pe.quiet(to) == 0);
  }
  EXPECT(pe.barrier());
  for (std::uint64_t from = 0; from < static_cast<std::uint64_t>(pe.pes()); ++from) {
    std::vector<std::byte> expected(400'000);
    fill(expected, 10 * from + expected.size());
    // The shorter ones came before: the longest lies over them.
    EXPECT(heap.read(from * 400'000, expected.size()) == expected, "from PE %d", static_cast<int>(from));
    std::uint64_t value = 0;
    const auto bytes = heap.read(900'000 + 8 * from, 8);
    std::memcpy(&value, bytes.data(), 8);
    EXPECT(value == 77 + from);
    EXPECT(pe.word(64 * from) == 5);
  }
  EXPECT(pe.release(kept) == 0);
  EXPECT(pe.barrier());
  pe.end();  // before its memory goes
}

template struct Traffic<abi::Transport3>;
template struct Traffic<abi::Transport4>;

}  // namespace railyard::nvshmem::test
