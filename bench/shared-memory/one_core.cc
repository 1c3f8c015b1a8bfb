/// Messages between two endpoints of one process on one core, for counting instructions:
/// bench/shared-memory/instructions runs it under callgrind and reads off what each of the four calls below cost.
/// usage: shm-one-core PROVIDER BYTES COUNT
#include <fmt/core.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

void must(long result, const char* call) {
  if (result == 0) return;
  fmt::print(stderr, "shm-one-core: {}: {}\n", call, fi_strerror(static_cast<int>(-result)));
  std::exit(1);
}

struct Close {
  template <typename Fid>
  void operator()(Fid* object) const {
    fi_close(&object->fid);
  }
};
template <typename Fid>
using Owned = std::unique_ptr<Fid, Close>;

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

template <typename Fid, typename Open>
Owned<Fid> opened(const char* call, Open open) {
  Fid* object = nullptr;
  must(open(&object), call);
  return Owned<Fid>(object);
}

Info find(const std::string& provider) {
  const Info hints(fi_allocinfo());
  hints->caps = FI_TAGGED;
  hints->mode = FI_CONTEXT;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  fi_info* found = nullptr;
  must(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found), "fi_getinfo");
  return Info(found);
}

/// Members in the order in which they are opened; they are closed in the opposite one.
class Node {
 public:
  explicit Node(const std::string& provider)
      : info_(find(provider)),
        fabric_(opened<fid_fabric>("fi_fabric", [&](auto out) { return fi_fabric(info_->fabric_attr, out, nullptr); })),
        domain_(opened<fid_domain>("fi_domain",
                                   [&](auto out) { return fi_domain(fabric_.get(), info_.get(), out, nullptr); })) {
    fi_av_attr addresses{};
    addresses.type = FI_AV_TABLE;
    addresses_ =
        opened<fid_av>("fi_av_open", [&](auto out) { return fi_av_open(domain_.get(), &addresses, out, nullptr); });
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_TAGGED;
    queue.size = 1024;
    queue_ = opened<fid_cq>("fi_cq_open", [&](auto out) { return fi_cq_open(domain_.get(), &queue, out, nullptr); });
    endpoint_ =
        opened<fid_ep>("fi_endpoint", [&](auto out) { return fi_endpoint(domain_.get(), info_.get(), out, nullptr); });
    must(fi_ep_bind(endpoint_.get(), &addresses_->fid, 0), "fi_ep_bind");
    must(fi_ep_bind(endpoint_.get(), &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_enable(endpoint_.get()), "fi_enable");
  }

  fi_addr_t know(const Node& other) {
    std::array<char, 256> name{};
    std::size_t length = name.size();
    must(fi_getname(&other.endpoint_->fid, name.data(), &length), "fi_getname");
    fi_addr_t address = FI_ADDR_UNSPEC;
    if (fi_av_insert(addresses_.get(), name.data(), 1, &address, 0, nullptr) != 1) must(-FI_EINVAL, "fi_av_insert");
    return address;
  }

  fid_ep* endpoint() const { return endpoint_.get(); }
  fid_cq* queue() const { return queue_.get(); }

 private:
  Info info_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_av> addresses_;
  Owned<fid_cq> queue_;
  Owned<fid_ep> endpoint_;
};

}  // namespace

// What callgrind tells apart: one call of libfabric each, with C names and never inlined.
extern "C" {
[[gnu::noinline]] long call_trecv(fid_ep* endpoint, std::vector<std::byte>* buffer, std::uint64_t tag,
                                  fi_context* context) {
  return fi_trecv(endpoint, buffer->data(), buffer->size(), nullptr, FI_ADDR_UNSPEC, tag, 0, context);
}
[[gnu::noinline]] long call_tinject(fid_ep* endpoint, std::vector<std::byte>* message, fi_addr_t to,
                                    std::uint64_t tag) {
  return fi_tinject(endpoint, message->data(), message->size(), to, tag);
}
[[gnu::noinline]] long call_cq_read_that_finds(fid_cq* queue, fi_cq_tagged_entry* entry) {
  return fi_cq_read(queue, entry, 1);
}
[[gnu::noinline]] long call_cq_read_in_vain(fid_cq* queue, fi_cq_tagged_entry* entry) {
  return fi_cq_read(queue, entry, 1);
}
}

namespace {

/// Until two endpoints know each other a send may be put off, and a look may find nothing.
void meet(Node& from, Node& to, fi_addr_t address, std::vector<std::byte>& message) {
  fi_context context{};
  fi_cq_tagged_entry entry{};
  must(fi_trecv(to.endpoint(), message.data(), message.size(), nullptr, FI_ADDR_UNSPEC, 0, 0, &context), "fi_trecv");
  while (fi_tinject(from.endpoint(), message.data(), message.size(), address, 0) == -FI_EAGAIN) {
    fi_cq_read(from.queue(), &entry, 1);
    fi_cq_read(to.queue(), &entry, 1);
  }
  while (fi_cq_read(to.queue(), &entry, 1) != 1) fi_cq_read(from.queue(), &entry, 1);
}

void exchange(Node& from, Node& to, fi_addr_t address, std::vector<std::byte>& message, std::uint64_t count) {
  std::vector<std::byte> arrived(message.size());
  fi_context context{};
  fi_cq_tagged_entry entry{};
  for (std::uint64_t tag = 1; tag <= count; ++tag) {
    must(call_trecv(to.endpoint(), &arrived, tag, &context), "fi_trecv");
    must(call_tinject(from.endpoint(), &message, address, tag), "fi_tinject");
    if (call_cq_read_that_finds(to.queue(), &entry) != 1) must(-FI_ENODATA, "fi_cq_read");
    call_cq_read_in_vain(to.queue(), &entry);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: shm-one-core PROVIDER BYTES COUNT\n");
    return 2;
  }
  const std::string provider = argv[1];
  std::vector<std::byte> message(std::strtoul(argv[2], nullptr, 10));
  Node from(provider);
  Node to(provider);
  to.know(from);
  const fi_addr_t address = from.know(to);
  meet(from, to, address, message);
  exchange(from, to, address, message, std::strtoul(argv[3], nullptr, 10));
  return 0;
}
