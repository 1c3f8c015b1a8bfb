/// Endpoints of the provider for tests, through libfabric: what a program sees.
#pragma once

#include <gtest/gtest.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace railyard::provider_test {

// libfabric looks for providers once, at the first call of the process.
inline const bool provider_path_set = ::setenv("FI_PROVIDER_PATH", RAILYARD_PROVIDER_DIR, 1) == 0;

struct CloseFid {
  template <typename Fid>
  void operator()(Fid* fid) const {
    EXPECT_EQ(fi_close(&fid->fid), 0);
  }
};
template <typename Fid>
using Owned = std::unique_ptr<Fid, CloseFid>;
struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

inline Info find(
    const std::function<void(fi_info&)>& change = [](fi_info&) {}, const char* name = nullptr) {
  const Info hints(fi_allocinfo());
  hints->fabric_attr->prov_name = ::strdup("railyard");
  hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV;
  hints->mode = FI_CONTEXT;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  change(*hints);
  fi_info* info = nullptr;
  fi_getinfo(FI_VERSION(1, 17), nullptr, name, name != nullptr ? FI_SOURCE : 0, hints.get(), &info);
  return Info(info);
}

/// An endpoint with all it needs.
struct Node {
  Info info;
  Owned<fid_fabric> fabric;
  Owned<fid_domain> domain;
  Owned<fid_av> addresses;
  Owned<fid_cq> queue;
  Owned<fid_ep> endpoint;
  int enabled = -1;

  explicit Node(
      const char* name = nullptr, fi_wait_obj wait = FI_WAIT_NONE,
      const std::function<void(fi_info&)>& change = [](fi_info&) {}) {
    info = find(change, name);
    fid_fabric* opened_fabric = nullptr;
    EXPECT_EQ(fi_fabric(info->fabric_attr, &opened_fabric, nullptr), 0);
    fabric.reset(opened_fabric);
    fid_domain* opened_domain = nullptr;
    EXPECT_EQ(fi_domain(fabric.get(), info.get(), &opened_domain, nullptr), 0);
    domain.reset(opened_domain);
    fi_av_attr av_attributes{};
    fid_av* opened_av = nullptr;
    EXPECT_EQ(fi_av_open(domain.get(), &av_attributes, &opened_av, nullptr), 0);
    addresses.reset(opened_av);
    fi_cq_attr cq_attributes{};
    cq_attributes.format = FI_CQ_FORMAT_TAGGED;
    cq_attributes.wait_obj = wait;
    fid_cq* opened_cq = nullptr;
    EXPECT_EQ(fi_cq_open(domain.get(), &cq_attributes, &opened_cq, nullptr), 0);
    queue.reset(opened_cq);
    fid_ep* opened_ep = nullptr;
    EXPECT_EQ(fi_endpoint(domain.get(), info.get(), &opened_ep, nullptr), 0);
    endpoint.reset(opened_ep);
    EXPECT_EQ(fi_ep_bind(endpoint.get(), &addresses->fid, 0), 0);
    EXPECT_EQ(fi_ep_bind(endpoint.get(), &queue->fid, FI_TRANSMIT | FI_RECV), 0);
    enabled = fi_enable(endpoint.get());
  }

  std::string name() const {
    char text[256];
    std::size_t bytes = sizeof text;
    EXPECT_EQ(fi_getname(&endpoint->fid, text, &bytes), 0);
    return text;
  }
  fi_addr_t know(const std::string& address) const {
    fi_addr_t number = FI_ADDR_NOTAVAIL;
    EXPECT_EQ(fi_av_insert(addresses.get(), address.c_str(), 1, &number, 0, nullptr), 1);
    return number;
  }
  /// One completion, or -FI_EAGAIN.
  ssize_t read(fi_cq_tagged_entry& entry, fi_addr_t* from = nullptr) const {
    return fi_cq_readfrom(queue.get(), &entry, 1, from);
  }
};

/// Two nodes that know each other; both are moved on while one waits.
class Provider : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(provider_path_set);
    ASSERT_EQ(a_.enabled, 0);
    ASSERT_EQ(b_.enabled, 0);
    to_b_ = a_.know(b_.name());
    to_a_ = b_.know(a_.name());
  }

  bool until(const std::function<bool()>& done) const {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60); !done();) {
      fi_cq_read(a_.queue.get(), nullptr, 0);
      fi_cq_read(b_.queue.get(), nullptr, 0);
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }
  fi_cq_tagged_entry next(const Node& node, fi_addr_t* from = nullptr) const {
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    EXPECT_TRUE(until([&] { return (got = node.read(entry, from)) != -FI_EAGAIN; }));
    EXPECT_EQ(got, 1);
    return entry;
  }
  fi_cq_err_entry error_of(const Node& node) const {
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    EXPECT_TRUE(until([&] { return (got = node.read(entry)) != -FI_EAGAIN; }));
    EXPECT_EQ(got, -FI_EAVAIL);
    fi_cq_err_entry error{};
    EXPECT_EQ(fi_cq_readerr(node.queue.get(), &error, 0), 1);
    return error;
  }
  int next_error(const Node& node) const { return error_of(node).err; }
  void send(const std::vector<char>& bytes, std::uint64_t tag) {
    ssize_t code = -FI_EAGAIN;
    ASSERT_TRUE(until([&] {
      code = fi_tsend(a_.endpoint.get(), bytes.data(), bytes.size(), nullptr, to_b_, tag, nullptr);
      return code != -FI_EAGAIN;
    }));
    ASSERT_EQ(code, 0);
  }
  static std::vector<char> pattern(std::size_t bytes, std::uint64_t seed) {
    std::vector<char> content(bytes);
    for (std::size_t at = 0; at < bytes; ++at) content[at] = static_cast<char>(at * 31 + at / 251 + seed);
    return content;
  }

  Node a_;
  Node b_;
  fi_addr_t to_a_ = FI_ADDR_NOTAVAIL;
  fi_addr_t to_b_ = FI_ADDR_NOTAVAIL;
};

}  // namespace railyard::provider_test
