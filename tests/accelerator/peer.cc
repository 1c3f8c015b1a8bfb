/// The other process: the same program, told on its command line to be one. CUDA does not survive a fork.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "accelerator/gpu.hpp"

namespace railyard::accelerator::testing {

namespace {

struct PeerOrder {
  enum class What : std::uint8_t { share, read, map };
  What what = What::share;
  DeviceMemory::Kind kind = DeviceMemory::Kind::allocated;
  unsigned seed = 0;
  std::size_t bytes = 0;
  ShareHandle handle;
};

bool send_all(int socket, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* to, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t received = ::recv(socket, at, bytes, 0);
    if (received <= 0) return false;
    at += received;
    bytes -= static_cast<std::size_t>(received);
  }
  return true;
}

struct ErrorText {
  std::array<char, 400> text{};
};

}  // namespace

int run_peer(int socket) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  load_gpu();
  Driver* const gpus = driver();
  cuda::CudaContext context = nullptr;
  if (gpus == nullptr || library().primary_retain(&context, 0) != cuda::kSuccess) return 1;
  program().set_current(context);
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<Shared> shared;
  PeerOrder order;
  while (receive_all(socket, &order, sizeof(order))) {
    if (order.what == PeerOrder::What::share) {
      memory = std::make_unique<DeviceMemory>(order.bytes, order.kind);
      memory->fill(pattern(memory->size(), order.seed));
      auto made = gpus->share(*gpus->find(memory->data()));
      if (!made) return 2;
      shared = std::move(*made);
      if (!send_all(socket, &shared->handle(), sizeof(ShareHandle))) return 3;
    } else if (order.what == PeerOrder::What::read) {
      const auto bytes = memory->read(0, memory->size());
      if (!send_all(socket, bytes.data(), bytes.size())) return 3;
    } else {
      ErrorText answer;
      if (auto mapped = gpus->map(order.handle); !mapped) {
        mapped.error().text().copy(answer.text.data(), answer.text.size() - 1);
      }
      if (!send_all(socket, &answer, sizeof(answer))) return 3;
    }
  }
  return 0;
}

Peer::Peer(std::size_t bytes, DeviceMemory::Kind kind, unsigned seed) {
  std::array<int, 2> sockets{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  ::fcntl(sockets[0], F_SETFD, FD_CLOEXEC);
  pid_ = ::fork();
  if (pid_ == 0) {
    const std::string number = std::to_string(sockets[1]);
    ::execl("/proc/self/exe", "accelerator_test", "--peer", number.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(sockets[1]);
  socket_ = sockets[0];
  PeerOrder order;
  order.kind = kind;
  order.seed = seed;
  order.bytes = bytes;
  EXPECT_TRUE(send_all(socket_, &order, sizeof(order)));
  EXPECT_TRUE(receive_all(socket_, &handle_, sizeof(handle_)));
  bytes_ = handle_.bytes;
}

Peer::~Peer() {
  kill();
  ::close(socket_);
}

void Peer::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
  pid_ = -1;
}

std::vector<std::byte> Peer::read() {
  PeerOrder order;
  order.what = PeerOrder::What::read;
  std::vector<std::byte> bytes(bytes_);
  EXPECT_TRUE(send_all(socket_, &order, sizeof(order)));
  EXPECT_TRUE(receive_all(socket_, bytes.data(), bytes.size()));
  return bytes;
}

std::string Peer::map(const ShareHandle& handle) {
  PeerOrder order;
  order.what = PeerOrder::What::map;
  order.handle = handle;
  ErrorText answer;
  EXPECT_TRUE(send_all(socket_, &order, sizeof(order)));
  EXPECT_TRUE(receive_all(socket_, &answer, sizeof(answer)));
  return answer.text.data();
}

}  // namespace railyard::accelerator::testing
