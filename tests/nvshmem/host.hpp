/// A host of our own: what libnvshmem_host does with a transport, in the same order, on memory of the processor.
///
/// `Pe<Transport>` is one PE: it loads the library, makes the transport, asks whether peers can be reached, connects,
/// registers its heap chunk by chunk and passes the handles round. The calls that follow are those of the host's
/// threads (queue 0) and of its proxy (queue 1).
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "board.hpp"

namespace railyard::nvshmem::test {

inline int failures = 0;

#define EXPECT(condition, ...)                                           \
  do {                                                                   \
    if (!(condition)) {                                                  \
      ++::railyard::nvshmem::test::failures;                             \
      std::fprintf(stderr, "%s:%d: %s", __FILE__, __LINE__, #condition); \
      ::railyard::nvshmem::test::say_more(__VA_ARGS__);                  \
    }                                                                    \
  } while (false)

inline void say_more() { std::fputc('\n', stderr); }
[[gnu::format(printf, 1, 2)]] inline void say_more(const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  std::fputs(": ", stderr);
  std::vfprintf(stderr, format, rest);
  std::fputc('\n', stderr);
  va_end(rest);
}

inline constexpr int kHost = 0;
inline constexpr int kProxy = 1;

struct Start {
  std::string library;
  Board* board = nullptr;
  int pe = 0;
  bool old_handles = false;  ///< as NVSHMEM before 3.3 registers memory
};

template <typename Transport>
class Pe {
 public:
  static constexpr int kMajor = std::is_same_v<Transport, abi::Transport3> ? 3 : 4;
  static constexpr std::size_t kData = std::size_t{9} << 20;  ///< bytes of chunk 0
  static constexpr std::size_t kWords = 65536;                ///< bytes of chunk 1

  explicit Pe(const Start& start) : start_(start), board_(*start.board) { load(); }
  ~Pe() { end(); }
  Pe(const Pe&) = delete;
  Pe& operator=(const Pe&) = delete;

  /// From init to the heap. False: something answered an error, which was expected or not.
  bool begin() {
    if (!init() || !connect()) return false;
    add_chunk(kData);
    add_chunk(kWords);
    return true;
  }
  bool init() {
    if (init_ == nullptr) return false;
    return init_(reinterpret_cast<void**>(&transport_), nullptr, kMajor * 10000) == 0 && share();
  }
  bool connect() {
    for (int pe = 0; pe < board_.pes(); ++pe) {
      abi::PeInfo info{};
      info.gpu = {0, pe, 0};
      info.pe = pe;
      int access = 0;
      EXPECT(ops().can_reach_peer(&access, &info, transport_) == 0);
      EXPECT(access == (16 | 32 | 64), "%d", access);
    }
    int none = -1;
    int code = 0;
    if constexpr (kMajor == 3) {
      code = ops().connect_endpoints(transport_, &none, 1);
    } else {
      code = ops().connect_endpoints(transport_, &none, 1, nullptr, 0);
    }
    return code == 0 && barrier();
  }
  /// More of the heap, on all PEs at once; its number.
  std::size_t add_chunk(std::size_t bytes) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const std::size_t number = add_chunk({static_cast<std::byte*>(memory), bytes});
    chunks_[number].mapped = true;
    return number;
  }
  /// The same of memory that is there, and stays the caller's.
  std::size_t add_chunk(std::span<std::byte> memory) {
    Chunk chunk;
    chunk.memory = memory;
    EXPECT(get_mem_handle(chunk.mine, chunk.memory, false) == 0);
    const auto pes = static_cast<std::size_t>(board_.pes());
    chunk.handles.resize(pes);
    chunk.bases.resize(pes);
    std::byte* const base = memory.data();
    board_.gather(pe(), &chunk.mine, chunk.handles.data(), sizeof chunk.mine);
    board_.gather(pe(), &base, chunk.bases.data(), sizeof base);
    chunks_.push_back(std::move(chunk));
    return chunks_.size() - 1;
  }
  int get_mem_handle(abi::MemHandle& handle, std::span<std::byte> memory, bool local_only) {
    handle = {};
    if constexpr (kMajor == 3) {
      const auto call = reinterpret_cast<void*>(ops().get_mem_handle);
      if (start_.old_handles) {
        using Old = int (*)(abi::MemHandle*, abi::MemHandle*, void*, std::size_t, Transport*, bool);
        return reinterpret_cast<Old>(call)(&handle, nullptr, memory.data(), memory.size(), transport_, local_only);
      }
      using New = int (*)(abi::MemHandle*, void*, std::size_t, Transport*, bool);
      return reinterpret_cast<New>(call)(&handle, memory.data(), memory.size(), transport_, local_only);
    } else {
      return ops().get_mem_handle(&handle, memory.data(), memory.size(), transport_, local_only);
    }
  }
  int release(abi::MemHandle handle) { return ops().release_mem_handle(&handle, transport_); }

  // What the host passes for a place in a peer's chunk. It knows the peer's addresses.
  abi::MemDesc remote(int pe, std::size_t chunk, std::size_t offset) {
    Chunk& at = chunks_[chunk];
    return {at.bases[static_cast<std::size_t>(pe)] + offset, offset, &at.handles[static_cast<std::size_t>(pe)]};
  }
  /// `waits`: as the host's own calls that return when it is done, without a quiet.
  int rma(abi::RmaOp op, int pe, std::size_t chunk, std::size_t offset, void* local, std::size_t bytes, int queue,
          bool waits = false) {
    abi::MemDesc there = remote(pe, chunk, offset);
    abi::MemDesc here{local, 0, nullptr};
    return ops().rma(transport_, pe, {op, waits ? 0 : 1, 0, nullptr}, &there, &here, {bytes, 1, 1, 1}, queue);
  }
  int put(int pe, std::size_t chunk, std::size_t offset, const void* from, std::size_t bytes, int queue = kProxy) {
    return rma(abi::RmaOp::put, pe, chunk, offset, const_cast<void*>(from), bytes, queue);
  }
  int get(int pe, std::size_t chunk, std::size_t offset, void* to, std::size_t bytes, int queue = kProxy) {
    return rma(abi::RmaOp::get, pe, chunk, offset, to, bytes, queue);
  }
  struct Word {
    int pe = 0;
    std::size_t offset = 0;  ///< in chunk 1
    int bytes = 8;
  };
  /// `result`: where a fetched value goes.
  int amo(abi::AmoOp op, const Word& word, std::uint64_t value, std::uint64_t compare = 0,
          abi::FetchResult* result = nullptr, std::uint64_t flag = 0, int queue = kProxy) {
    abi::AmoMemDesc target{};
    target.remote = remote(word.pe, 1, word.offset);
    target.value = value;
    target.compare = compare;
    target.result = result;
    target.result_flag = flag;
    // The proxy leaves the rest of the verb unset.
    return ops().amo(transport_, word.pe, nullptr, {op, -77, -77, -77}, &target, {-77, word.bytes}, queue);
  }
  int fence(int pe, int queue = kProxy) {
    if constexpr (kMajor == 3) {
      return ops().fence(transport_, pe, queue);
    } else {
      return ops().fence(transport_, pe, queue, 0);
    }
  }
  int quiet(int pe, int queue = kProxy) { return ops().quiet(transport_, pe, queue); }
  /// What nvshmem_quiet does in the proxy.
  int quiet_all(int queue = kProxy) {
    for (int pe = 0; pe < pes(); ++pe)
      if (const int code = quiet(pe, queue); code != 0) return code;
    return ops().enforce_cst(transport_);
  }
  int progress() { return ops().progress(transport_); }
  bool barrier() { return board_.gather(pe(), nullptr, nullptr, 0) == 0; }

  std::span<std::byte> chunk(std::size_t number) { return chunks_[number].memory; }
  std::atomic_ref<std::uint64_t> word(std::size_t offset) {
    return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(chunk(1).data() + offset));
  }
  /// As a kernel waits: the proxy goes on meanwhile, and an error of its ends the wait if it is strict.
  template <typename Done>
  bool wait(Done&& done, bool strict = true) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(200);
    while (!done()) {
      if ((progress() != 0 && strict) || std::chrono::steady_clock::now() > until) return false;
      ::sched_yield();
    }
    return true;
  }

  int pe() const { return start_.pe; }
  int pes() const { return board_.pes(); }
  Board& board() { return board_; }
  Transport* transport() { return transport_; }
  auto& ops() { return transport_->host_ops; }
  abi::MemHandle& handle(std::size_t chunk, int pe) { return chunks_[chunk].handles[static_cast<std::size_t>(pe)]; }
  using Init = int (*)(void** transport, void* cuda, int version);
  Init init_call() const { return init_; }

  /// Releases, finalizes and unloads, as the host does. Once.
  void end() {
    if (transport_ != nullptr) {
      for (Chunk& chunk : chunks_)
        if (chunk.mine.bytes[0] != std::byte{0}) EXPECT(release(chunk.mine) == 0);
      EXPECT(ops().finalize(transport_) == 0);
      transport_ = nullptr;
    }
    for (const Chunk& chunk : chunks_)
      if (chunk.mapped) ::munmap(chunk.memory.data(), chunk.memory.size());
    chunks_.clear();
    if (library_ != nullptr) EXPECT(::dlclose(library_) == 0);
    library_ = nullptr;
  }
  void forget_chunk(std::size_t number) { chunks_[number].mine = {}; }
  bool is_loaded() const {
    void* const found = ::dlopen(start_.library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (found != nullptr) ::dlclose(found);
    return found != nullptr;
  }

 private:
  struct Chunk {
    std::span<std::byte> memory;
    bool mapped = false;
    abi::MemHandle mine{};
    std::vector<abi::MemHandle> handles;
    std::vector<std::byte*> bases;
  };

  void load() {
    library_ = ::dlopen(start_.library.c_str(), RTLD_NOW);
    EXPECT(library_ != nullptr, "%s", ::dlerror());
    if (library_ != nullptr) init_ = reinterpret_cast<Init>(::dlsym(library_, "nvshmemt_init"));
    EXPECT(init_ != nullptr);
  }
  /// What the host fills in after init.
  bool share() {
    boot_.version = 1;
    boot_.rank = boot_.rank_on_node = start_.pe;
    boot_.size = boot_.size_of_node = board_.pes();
    boot_.allgather = [](const void* mine, void* all, int bytes, abi::Bootstrap* self) {
      auto* const pe = static_cast<Pe*>(self->comm_state);
      return pe->board_.gather(pe->start_.pe, mine, all, static_cast<std::size_t>(bytes));
    };
    boot_.barrier = [](abi::Bootstrap* self) { return static_cast<Pe*>(self->comm_state)->barrier() ? 0 : 1; };
    boot_.global_exit = [](int status) { ::_exit(status); };
    boot_.comm_state = this;
    transport_->bootstrap = &boot_;
    transport_->pe = start_.pe;
    transport_->pes = board_.pes();
    return true;
  }

  Start start_;
  Board& board_;
  void* library_ = nullptr;
  Init init_ = nullptr;
  Transport* transport_ = nullptr;
  abi::Bootstrap boot_{};
  std::vector<Chunk> chunks_;
};

/// Bytes that say where and when they were made.
inline void fill(std::span<std::byte> to, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (std::byte& byte : to) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    byte = static_cast<std::byte>(state);
  }
}
inline bool is_filled(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::vector<std::byte> expected(bytes.size());
  fill(expected, seed);
  return std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0;
}

/// Whether a case may repeat for long (`./test --long`).
inline bool given_long() {
  const char* const word = std::getenv("TEST_LONG");
  return word != nullptr && *word == '1';
}

}  // namespace railyard::nvshmem::test
