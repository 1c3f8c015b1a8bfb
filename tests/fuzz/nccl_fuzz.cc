/// A host that calls the NCCL plugin with whatever the fuzzer makes up: handles of any bytes, comms of the wrong kind,
/// sizes, tags and counts out of range, null in every place, in any order, between calls that make sense. What is
/// refused must be refused by an answer, must write its results, and must leave the connection as it was.
#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "abi.h"
#include "message/handle.hpp"

extern "C" {
extern const nccl_net_v8 ncclNetPlugin_v8;
extern const nccl_net_v12 ncclNetPlugin_v12;
}

namespace {

void require(bool good) {
  if (!good) std::abort();
}

void ignore(int /*level*/, unsigned long /*subsystems*/, const char* /*where*/, int /*line*/, const char* /*format*/,
            ...) {}

constexpr std::size_t kArena = 1 << 16;

/// A process connected to itself, for all inputs.
class Host {
 public:
  Host() {
    ::setenv("RAILYARD_INTERFACES", "lo", 1);
    ::setenv("RAILYARD_LOG", "error", 1);
    nccl_comm_config config{NCCL_UNDEFINED};
    require(net.init(&context, 1, &config, &ignore, nullptr) == NCCL_OK);
    open();
  }

  void open() {
    require(net.listen(context, 0, handle.data(), &listener) == NCCL_OK);
    auto copy = handle;
    while (sender == nullptr || receiver == nullptr) {
      if (sender == nullptr) require(net.connect(context, 0, copy.data(), &sender, nullptr) == NCCL_OK);
      if (receiver == nullptr) require(net.accept(listener, &receiver, nullptr) == NCCL_OK);
    }
  }
  void close() {
    for (void* memory : memories) (void)net.deregMr(sender, memory);
    memories.clear();
    require(net.closeSend(sender) == NCCL_OK && net.closeRecv(receiver) == NCCL_OK &&
            net.closeListen(listener) == NCCL_OK);
    sender = receiver = listener = nullptr;
    requests.clear();
  }

  const nccl_net_v12& net = ncclNetPlugin_v12;
  void* context = nullptr;
  void* listener = nullptr;
  void* sender = nullptr;
  void* receiver = nullptr;
  std::array<unsigned char, NCCL_HANDLE_BYTES> handle{};
  std::vector<void*> requests;
  std::vector<void*> memories;
  std::array<std::byte, kArena> arena{};
};

class Player {
 public:
  Player(Host& host, FuzzedDataProvider& input) : host_(host), input_(input) {}

  void call() {
    switch (input_.ConsumeIntegralInRange(0, 11)) {
      case 0:
        return connect();
      case 1:
        return send();
      case 2:
        return send_old();
      case 3:
        return receive();
      case 4:
        return test();
      case 5:
        return register_memory();
      case 6:
        return (void)host_.net.deregMr(comm(), input_.ConsumeBool() ? nullptr : &host_);
      case 7:
        return (void)host_.net.finalize(input_.ConsumeBool() ? nullptr : &host_);
      case 8:
        return properties();
      case 9:
        return flush();
      case 10:
        return accept();
      default:
        return listen();
    }
  }

 private:
  void* comm() {
    const std::array<void*, 4> all = {nullptr, host_.sender, host_.receiver, host_.listener};
    return all[input_.ConsumeIntegralInRange<std::size_t>(0, 3)];
  }
  int device() { return input_.ConsumeBool() ? 0 : input_.ConsumeIntegral<int>(); }
  /// Somewhere in the arena, with as many bytes as are there; or nowhere.
  std::byte* place(std::size_t& bytes) {
    const auto begin = input_.ConsumeIntegralInRange<std::size_t>(0, kArena);
    bytes = input_.ConsumeIntegralInRange<std::size_t>(0, kArena - begin);
    return input_.ConsumeIntegralInRange(0, 7) == 0 ? nullptr : host_.arena.data() + begin;
  }
  void keep(nccl_result answer, void* request) {
    require(request != stale());
    if (answer != NCCL_OK) require(request == nullptr);
    if (request != nullptr) host_.requests.push_back(request);
  }
  static void* stale() { return reinterpret_cast<void*>(0xbad); }

  void connect() {
    std::array<unsigned char, NCCL_HANDLE_BYTES> handle = host_.handle;
    const std::string bytes = input_.ConsumeRandomLengthString(NCCL_HANDLE_BYTES);
    std::copy(bytes.begin(), bytes.end(), handle.begin());
    // One that would be taken leads somewhere: only to ourselves, and that was tried.
    railyard::Handle read;
    std::memcpy(read.bytes.data(), handle.data(), handle.size());
    if (railyard::message::read_handle(read)) return;
    void* made = stale();
    const nccl_result answer = host_.net.connect(host_.context, device(), handle.data(), &made, nullptr);
    require(answer != NCCL_OK && made == nullptr);
  }
  void send() {
    std::size_t bytes = 0;
    std::byte* const data = place(bytes);
    void* request = stale();
    const nccl_result answer =
        host_.net.isend(comm(), data, bytes, input_.ConsumeIntegral<int>(), nullptr, nullptr, &request);
    keep(answer, request);
  }
  void send_old() {
    void* request = stale();
    const int bytes = input_.ConsumeIntegralInRange(-5, 5);
    keep(ncclNetPlugin_v8.isend(comm(), host_.arena.data(), bytes, 1, nullptr, &request), request);
  }
  void receive() {
    std::array<void*, 8> data{};
    std::array<std::size_t, 8> sizes{};
    std::array<int, 8> tags{};
    const int n = input_.ConsumeIntegralInRange(-1, 12);
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = place(sizes[i]);
      tags[i] = input_.ConsumeIntegralInRange(0, 3);
    }
    void* request = input_.ConsumeBool() ? stale() : NCCL_OPTIONAL_COMPLETION;
    const nccl_result answer =
        host_.net.irecv(comm(), n, input_.ConsumeIntegralInRange(0, 7) == 0 ? nullptr : data.data(), sizes.data(),
                        input_.ConsumeIntegralInRange(0, 7) == 0 ? nullptr : tags.data(), nullptr, nullptr, &request);
    require(request != NCCL_OPTIONAL_COMPLETION);
    keep(answer, request);
  }
  void test() {
    int done = 7;
    std::array<int, 8> sizes{};
    if (host_.requests.empty()) return require(host_.net.test(nullptr, &done, nullptr) != NCCL_OK && done == 0);
    const auto which = input_.ConsumeIntegralInRange<std::size_t>(0, host_.requests.size() - 1);
    const nccl_result answer =
        host_.net.test(host_.requests[which], &done, input_.ConsumeBool() ? sizes.data() : nullptr);
    require(done == 0 || done == 1);
    if (answer == NCCL_OK && done == 1)
      host_.requests.erase(host_.requests.begin() + static_cast<std::ptrdiff_t>(which));
  }
  void register_memory() {
    std::size_t bytes = 0;
    std::byte* const data = place(bytes);
    void* const known = comm();
    void* memory = stale();
    const nccl_result answer = host_.net.regMr(known, data, bytes, input_.ConsumeIntegralInRange(0, 5), &memory);
    require(answer == NCCL_OK ? memory != nullptr : memory == nullptr);
    if (answer == NCCL_OK && known == host_.sender) host_.memories.push_back(memory);
  }
  void properties() {
    nccl_properties_v12 properties;
    (void)host_.net.getProperties(device(), input_.ConsumeBool() ? &properties : nullptr);
  }
  void flush() {
    void* request = stale();
    (void)host_.net.iflush(comm(), input_.ConsumeIntegral<int>(), nullptr, nullptr, nullptr, &request);
    require(request == nullptr);
  }
  void accept() {
    void* made = stale();
    (void)host_.net.accept(comm(), &made, nullptr);
    require(made == nullptr);
  }
  void listen() {
    std::array<unsigned char, NCCL_HANDLE_BYTES> handle;
    void* made = stale();
    const nccl_result answer = host_.net.listen(host_.context, device(), handle.data(), &made);
    require(answer == NCCL_OK ? made != nullptr : made == nullptr);
    if (answer == NCCL_OK) require(host_.net.closeListen(made) == NCCL_OK);
  }

  Host& host_;
  FuzzedDataProvider& input_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Host host;
  FuzzedDataProvider input(data, size);
  Player player(host, input);
  for (int calls = 0; input.remaining_bytes() > 0 && calls < 200; ++calls) player.call();
  // Whatever is under way is given up; a fresh connection for the next input, where this one is not as it was.
  if (host.requests.empty() && host.memories.empty()) return 0;
  host.close();
  host.open();
  return 0;
}
