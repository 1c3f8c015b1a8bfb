/// A stream of checked messages of 256 KiB over bare libfabric: one reliable datagram endpoint on each interface, eight
/// sends under way on each, the next message to whichever has room. An endpoint that reports an error gets no more;
/// nothing is sent twice, as libfabric promises that none needs to be.
/// g++ -std=c++20 -O2 -o fabric_stream bench/peers/fabric_stream.cc -lfabric
/// fabric_stream receive ADDRESS INTERFACES TIMELINE      (first; waits at ADDRESS, port 7789)
/// fabric_stream send ADDRESS INTERFACES SECONDS
#include <arpa/inet.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <memory>
#include <sstream>
#include <string>

#include "verified.hpp"

namespace {

constexpr std::size_t kDepth = 8;
constexpr std::uint16_t kPort = 7789;
constexpr auto kPatience = std::chrono::seconds(30);

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "fabric_stream: %s\n", what.c_str());
  std::exit(1);
}
void must(int code, const char* call) {
  if (code < 0) give_up(std::string(call) + ": " + fi_strerror(-code));
}

/// A slot for one message, and libfabric's room for the operation on it.
struct Slot {
  fi_context2 context;
  std::vector<std::byte> memory;
};

class Endpoint {
 public:
  Endpoint(const std::string& interface, bool receives) : interface_(interface) {
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = ::strdup("tcp;ofi_rxm");
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    fi_info* found = nullptr;
    must(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &found), "fi_getinfo");
    const fi_info* info = found;
    while (info != nullptr && interface_ != info->domain_attr->name) info = info->next;
    if (info == nullptr) give_up("no interface " + interface_);
    fi_info* own = fi_dupinfo(info);
    must(fi_fabric(own->fabric_attr, &fabric_, nullptr), "fi_fabric");
    must(fi_domain(fabric_, own, &domain_, nullptr), "fi_domain");
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_MSG;
    queue.wait_obj = FI_WAIT_NONE;
    must(fi_cq_open(domain_, &queue, &queue_, nullptr), "fi_cq_open");
    fi_av_attr addresses{};
    addresses.type = FI_AV_TABLE;
    must(fi_av_open(domain_, &addresses, &addresses_, nullptr), "fi_av_open");
    must(fi_endpoint(domain_, own, &endpoint_, nullptr), "fi_endpoint");
    must(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_ep_bind(endpoint_, &addresses_->fid, 0), "fi_ep_bind");
    must(fi_enable(endpoint_), "fi_enable");
    for (std::size_t i = 0; i < kDepth; ++i) {
      slots_.push_back(std::make_unique<Slot>());
      slots_.back()->memory.resize(peers::kMessage);
      if (receives) receive(slots_.back().get());
      if (!receives) free_.push_back(slots_.back().get());
    }
  }

  std::array<std::byte, 256> name() {
    std::array<std::byte, 256> name{};
    std::size_t bytes = name.size();
    must(fi_getname(&endpoint_->fid, name.data(), &bytes), "fi_getname");
    return name;
  }
  void insert(const std::array<std::byte, 256>& name) {
    if (fi_av_insert(addresses_, name.data(), 1, &peer_, 0, nullptr) != 1) give_up("fi_av_insert");
  }

  /// True: it took the message.
  bool send(std::uint64_t number) {
    if (broken_ || free_.empty()) return false;
    Slot* slot = free_.front();
    peers::fill(slot->memory.data(), number);
    const auto code = fi_send(endpoint_, slot->memory.data(), peers::kMessage, nullptr, peer_, &slot->context);
    if (code == -FI_EAGAIN) return false;
    if (code != 0) {
      complain("fi_send", static_cast<int>(-code));
      return false;
    }
    free_.pop_front();
    return true;
  }
  void receive(Slot* slot) {
    const auto code = fi_recv(endpoint_, slot->memory.data(), peers::kMessage, nullptr, FI_ADDR_UNSPEC, &slot->context);
    if (code != 0) complain("fi_recv", static_cast<int>(-code));
  }

  /// Calls `done` with the slot of everything that is complete.
  template <typename Done>
  void poll(Done done) {
    std::array<fi_cq_msg_entry, 16> entries;
    const auto count = fi_cq_read(queue_, entries.data(), entries.size());
    for (ssize_t i = 0; i < count; ++i) done(slot_of(entries[static_cast<std::size_t>(i)].op_context));
    if (count == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      if (fi_cq_readerr(queue_, &error, 0) > 0) complain("completion", error.err);
    }
  }
  void finished(Slot* slot) { free_.push_back(slot); }
  bool idle() const { return broken_ || free_.size() == kDepth; }

 private:
  Slot* slot_of(void* context) {
    for (const auto& slot : slots_) {
      if (&slot->context == context) return slot.get();
    }
    give_up("a completion of nobody's");
  }
  void complain(const char* what, int code) {
    if (!broken_) std::printf("%s: %s: %s\n", interface_.c_str(), what, fi_strerror(code));
    std::fflush(stdout);
    broken_ = true;
  }

  std::string interface_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::deque<Slot*> free_;
  bool broken_ = false;
};

int meet(const char* address, bool listens) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(kPort);
  inet_pton(AF_INET, address, &place.sin_addr);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  auto* where = reinterpret_cast<sockaddr*>(&place);
  if (!listens) {
    while (::connect(socket, where, sizeof place) != 0) ::usleep(100'000);
    return socket;
  }
  if (::bind(socket, where, sizeof place) != 0 || ::listen(socket, 1) != 0) give_up("cannot listen");
  return ::accept(socket, nullptr, nullptr);
}

using Endpoints = std::deque<Endpoint>;

void swap_names(Endpoints& endpoints, int socket) {
  for (Endpoint& endpoint : endpoints) {
    auto name = endpoint.name();
    if (::write(socket, name.data(), name.size()) != static_cast<ssize_t>(name.size())) give_up("write");
    if (::recv(socket, name.data(), name.size(), MSG_WAITALL) != static_cast<ssize_t>(name.size())) give_up("recv");
    endpoint.insert(name);
  }
}

void send_all(Endpoints& endpoints, int socket, double seconds) {
  std::uint64_t sent = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto end = start + std::chrono::duration<double>(seconds);
  bool idle = false;
  while (!idle && std::chrono::steady_clock::now() < end + kPatience) {
    const bool go_on = std::chrono::steady_clock::now() < end;
    idle = !go_on;
    for (Endpoint& endpoint : endpoints) {
      if (go_on && endpoint.send(sent)) ++sent;
      endpoint.poll([&](Slot* slot) { endpoint.finished(slot); });
      idle = idle && endpoint.idle();
    }
  }
  std::printf("%s\n", idle ? "every send is complete or failed" : "sends are still under way 30 s after the last");
  if (::write(socket, &sent, sizeof sent) != sizeof sent) give_up("write");
}

void receive_all(Endpoints& endpoints, int socket, const char* path) {
  peers::TimeLine line(path);
  peers::Arrivals arrivals;
  std::uint64_t sent = ~0ULL;
  auto last = std::chrono::steady_clock::now();
  while (arrivals.come() < sent && (sent == ~0ULL || std::chrono::steady_clock::now() < last + kPatience)) {
    for (Endpoint& endpoint : endpoints) {
      endpoint.poll([&](Slot* slot) {
        arrivals.note(slot->memory.data());
        line.add(peers::kMessage);
        endpoint.receive(slot);
        last = std::chrono::steady_clock::now();
      });
    }
    if (sent == ~0ULL) (void)!::recv(socket, &sent, sizeof sent, MSG_DONTWAIT);
  }
  line.flush();
  arrivals.print(sent);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) give_up("see the head of the source");
  const bool receives = argv[1] == std::string("receive");
  Endpoints endpoints;
  std::istringstream names(argv[3]);
  for (std::string name; std::getline(names, name, ',');) endpoints.emplace_back(name, receives);
  const int socket = meet(argv[2], receives);
  swap_names(endpoints, socket);
  if (receives) receive_all(endpoints, socket, argv[4]);
  if (!receives) send_all(endpoints, socket, std::atof(argv[4]));
  return 0;
}
