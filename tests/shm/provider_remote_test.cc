/// Remote memory through the provider: several places in one call, what is refused, every registration mode.
#include "provider_node.hpp"

namespace railyard::provider_test {
namespace {

/// Memory of a node that others may use.
struct Region {
  std::vector<char> memory;
  Owned<fid_mr> registration;
  std::uint64_t key = 0;
  std::uint64_t base = 0;

  Region(const Node& node, std::size_t bytes, std::uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE,
         std::uint64_t wanted_key = 0)
      : memory(bytes, '.') {
    fid_mr* opened = nullptr;
    EXPECT_EQ(fi_mr_reg(node.domain.get(), memory.data(), bytes, access, 0, wanted_key, 0, &opened, nullptr), 0);
    registration.reset(opened);
    key = fi_mr_key(opened);
    const bool by_address = (node.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    base = by_address ? reinterpret_cast<std::uint64_t>(memory.data()) : 0;
  }
};

class ProviderRemote : public Provider {
 protected:
  /// One write of the whole of `sent` to the places.
  ssize_t write(const std::vector<char>& sent, const std::vector<fi_rma_iov>& remote_iov, std::uint64_t flags,
                std::uint64_t data = 0) const {
    const iovec iov{const_cast<char*>(sent.data()), sent.size()};
    fi_msg_rma message{};
    message.msg_iov = &iov;
    message.iov_count = 1;
    message.addr = to_b_;
    message.rma_iov = remote_iov.data();
    message.rma_iov_count = remote_iov.size();
    message.data = data;
    message.context = const_cast<char*>(sent.data());
    return fi_writemsg(a_.endpoint.get(), &message, flags | FI_COMPLETION);
  }
  ssize_t read(std::vector<char>& to, const std::vector<fi_rma_iov>& remote_iov) const {
    const std::size_t half = to.size() / 3;
    const iovec iov[2] = {{to.data(), half}, {to.data() + half, to.size() - half}};
    fi_msg_rma message{};
    message.msg_iov = iov;
    message.iov_count = 2;
    message.addr = to_b_;
    message.rma_iov = remote_iov.data();
    message.rma_iov_count = remote_iov.size();
    return fi_readmsg(a_.endpoint.get(), &message, FI_COMPLETION);
  }
  void nothing_more(const Node& node) const {
    fi_cq_tagged_entry entry{};
    for (int pass = 0; pass < 3000; ++pass) {
      fi_cq_read(b_.queue.get(), nullptr, 0);
      ASSERT_EQ(node.read(entry), -FI_EAGAIN);
    }
  }
};

TEST_F(ProviderRemote, SeveralPlacesAreWrittenAndReadInOneCall) {
  const Region first(b_, 300'000);
  const Region second(b_, 300'000);
  for (const std::size_t part : {std::size_t{1}, std::size_t{40}, std::size_t{5000}, std::size_t{70'000}}) {
    const std::vector<fi_rma_iov> remote_iov{{first.base + 7, part, first.key},
                                             {second.base, 2 * part, second.key},
                                             {second.base + 290'000, 0, second.key},
                                             {first.base + 100'000, part, first.key}};
    const std::vector<char> sent = pattern(4 * part, part);
    ASSERT_EQ(write(sent, remote_iov, FI_REMOTE_CQ_DATA, 99), 0);
    EXPECT_EQ(next(a_).op_context, sent.data());
    const fi_cq_tagged_entry told = next(b_);
    EXPECT_EQ(told.data, 99u);
    nothing_more(a_);
    nothing_more(b_);
    const auto at = [&](std::size_t offset) { return sent.begin() + static_cast<std::ptrdiff_t>(offset); };
    EXPECT_TRUE(std::equal(at(0), at(part), first.memory.begin() + 7));
    EXPECT_TRUE(std::equal(at(part), at(3 * part), second.memory.begin()));
    EXPECT_TRUE(std::equal(at(3 * part), at(4 * part), first.memory.begin() + 100'000));
    EXPECT_EQ(first.memory[7 + part], '.');
    std::vector<char> back(4 * part);
    ASSERT_EQ(read(back, remote_iov), 0);
    next(a_);
    EXPECT_EQ(back, sent);
    nothing_more(a_);
  }
}

TEST_F(ProviderRemote, AnInjectedWriteToSeveralPlacesMayForgetItsBuffer) {
  const Region region(b_, 4096);
  std::vector<char> sent = pattern(2000, 4);
  const std::vector<char> kept = sent;
  ASSERT_EQ(write(sent, {{region.base, 1000, region.key}, {region.base + 2000, 1000, region.key}}, FI_INJECT), 0);
  std::fill(sent.begin(), sent.end(), 'x');
  next(a_);
  EXPECT_TRUE(std::equal(kept.begin(), kept.begin() + 1000, region.memory.begin()));
  EXPECT_TRUE(std::equal(kept.begin() + 1000, kept.end(), region.memory.begin() + 2000));
}

TEST_F(ProviderRemote, OneBadPlaceFailsTheWholeCallOnce) {
  const Region region(b_, 100'000);
  for (const std::size_t part : {std::size_t{100}, std::size_t{30'000}}) {
    const std::vector<char> sent = pattern(2 * part, 1);
    ASSERT_EQ(write(sent, {{region.base, part, region.key + 5}, {region.base, part, region.key}}, 0), 0);
    const fi_cq_err_entry error = error_of(a_);
    EXPECT_EQ(error.err, FI_EACCES);
    EXPECT_EQ(error.op_context, sent.data());
    nothing_more(a_);
    std::vector<char> back(2 * part);
    ASSERT_EQ(read(back, {{region.base, part, region.key}, {region.base + 99'999, part, region.key}}), 0);
    EXPECT_EQ(error_of(a_).err, FI_EACCES);
    nothing_more(a_);
  }
  EXPECT_EQ(write(pattern(10, 1), {{region.base, 4, region.key}, {region.base, 4, region.key}}, 0), -FI_EINVAL)
      << "8 bytes there for 10 here";
}

TEST_F(ProviderRemote, AWriteWithABadKeyIsAnErrorWhateverItsSize) {
  const Region region(b_, 200'000);
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{1000}, std::size_t{8192}, std::size_t{150'000}}) {
    const std::vector<char> sent = pattern(bytes, 1);
    // With delivery complete it is the operation's own completion.
    ASSERT_EQ(write(sent, {{region.base, bytes, region.key + 1}}, FI_DELIVERY_COMPLETE), 0);
    fi_cq_err_entry error = error_of(a_);
    EXPECT_EQ(error.err, FI_EACCES);
    EXPECT_EQ(error.op_context, sent.data());
    // Without, the operation may be over when the target looks at it: then the error comes by itself.
    ASSERT_EQ(write(sent, {{region.base, bytes, region.key + 1}}, 0), 0);
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    ASSERT_TRUE(until([&] { return (got = a_.read(entry)) != -FI_EAGAIN; }));
    if (got == 1) {
      error = error_of(a_);
      EXPECT_EQ(error.op_context, nullptr);
    } else {
      ASSERT_EQ(fi_cq_readerr(a_.queue.get(), &error, 0), 1);
      EXPECT_EQ(error.op_context, sent.data());
    }
    EXPECT_EQ(error.err, FI_EACCES);
    EXPECT_EQ(error.flags & (FI_RMA | FI_WRITE), FI_RMA | FI_WRITE);
    nothing_more(a_);
  }
  EXPECT_EQ(std::count(region.memory.begin(), region.memory.end(), '.'), 200'000) << "nothing was written";
}

TEST_F(ProviderRemote, MemoryIsGuardedByItsAccessAndItsEnd) {
  const Region read_only(b_, 1000, FI_REMOTE_READ);
  const std::vector<char> sent = pattern(16, 1);
  ASSERT_EQ(write(sent, {{read_only.base, 16, read_only.key}}, FI_DELIVERY_COMPLETE), 0);
  EXPECT_EQ(error_of(a_).err, FI_EACCES);
  const Region write_only(b_, 1000, FI_REMOTE_WRITE);
  char byte = 0;
  ASSERT_EQ(fi_read(a_.endpoint.get(), &byte, 1, nullptr, to_b_, write_only.base, write_only.key, nullptr), 0);
  EXPECT_EQ(error_of(a_).err, FI_EACCES);
  ASSERT_EQ(write(sent, {{write_only.base + 990, 16, write_only.key}}, FI_DELIVERY_COMPLETE), 0);
  EXPECT_EQ(error_of(a_).err, FI_EACCES) << "its end lies beyond";
  ASSERT_EQ(write(sent, {{~std::uint64_t{0} - 3, 16, write_only.key}}, FI_DELIVERY_COMPLETE), 0);
  EXPECT_EQ(error_of(a_).err, FI_EACCES) << "it wraps";
  const std::uint64_t one = 1;
  ASSERT_EQ(fi_inject_atomic(a_.endpoint.get(), &one, 1, to_b_, read_only.base, read_only.key, FI_UINT64, FI_SUM), 0);
  const fi_cq_err_entry error = error_of(a_);
  EXPECT_EQ(error.err, FI_EACCES);
  EXPECT_EQ(error.flags & FI_ATOMIC, FI_ATOMIC);
}

/// The modes by which a program may want memory registered; each pair of nodes exchanges both ways.
class ProviderModes : public ::testing::TestWithParam<int> {};

TEST_P(ProviderModes, MemoryIsWrittenReadAndDeregistered) {
  const int mode = GetParam();
  const auto change = [mode](fi_info& hints) { hints.domain_attr->mr_mode = mode; };
  const Node a(nullptr, FI_WAIT_NONE, change);
  const Node b(nullptr, FI_WAIT_NONE, change);
  ASSERT_EQ(a.enabled, 0);
  ASSERT_EQ(b.enabled, 0);
  const fi_addr_t to_b = a.know(b.name());
  Region region(b, 10'000, FI_REMOTE_READ | FI_REMOTE_WRITE, 77);
  const bool chooses_key = (b.info->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0 && mode != 1;
  if (chooses_key) {
    EXPECT_EQ(region.key, 77u);
  }
  if (mode == 1) region.base = reinterpret_cast<std::uint64_t>(region.memory.data());
  const auto finish = [&] {
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
         got == -FI_EAGAIN && std::chrono::steady_clock::now() < end; got = a.read(entry))
      fi_cq_read(b.queue.get(), nullptr, 0);
    return got;
  };
  const std::vector<char> sent(5000, 'w');
  ASSERT_EQ(fi_write(a.endpoint.get(), sent.data(), sent.size(), nullptr, to_b, region.base + 10, region.key, nullptr),
            0);
  ASSERT_EQ(finish(), 1);
  std::vector<char> back(5000);
  ASSERT_EQ(fi_read(a.endpoint.get(), back.data(), back.size(), nullptr, to_b, region.base + 10, region.key, nullptr),
            0);
  ASSERT_EQ(finish(), 1);
  EXPECT_EQ(back, sent);
  region.registration.reset();
  ASSERT_EQ(fi_read(a.endpoint.get(), back.data(), back.size(), nullptr, to_b, region.base + 10, region.key, nullptr),
            0);
  ASSERT_EQ(finish(), -FI_EAVAIL) << "it is not registered any more";
  fi_cq_err_entry error{};
  EXPECT_EQ(fi_cq_readerr(a.queue.get(), &error, 0), 1);
}

// 1 and 2: FI_MR_BASIC and FI_MR_SCALABLE, as programs of old interfaces say it.
INSTANTIATE_TEST_SUITE_P(All, ProviderModes,
                         ::testing::Values(0, 1, 2, FI_MR_VIRT_ADDR, FI_MR_PROV_KEY, FI_MR_ALLOCATED,
                                           FI_MR_VIRT_ADDR | FI_MR_PROV_KEY,
                                           FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY));

/// FI_MR_ENDPOINT, asked for and enforced.
struct BoundNodes {
  static void ask(fi_info& hints) { hints.domain_attr->mr_mode |= FI_MR_ENDPOINT; }
  struct Setting {
    Setting() { ::setenv("FI_RAILYARD_MR_ENDPOINT", "1", 1); }
    ~Setting() { ::unsetenv("FI_RAILYARD_MR_ENDPOINT"); }
  } setting;
  Node a{nullptr, FI_WAIT_NONE, ask};
  Node b{nullptr, FI_WAIT_NONE, ask};
  fi_addr_t to_b = a.know(b.name());

  int read_code(const Region& region) const {
    char byte = 0;
    EXPECT_EQ(fi_read(a.endpoint.get(), &byte, 1, nullptr, to_b, region.base, region.key, nullptr), 0);
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    while (got == -FI_EAGAIN) {
      fi_cq_read(b.queue.get(), nullptr, 0);
      got = a.read(entry);
    }
    if (got == 1) return 0;
    fi_cq_err_entry error{};
    EXPECT_EQ(fi_cq_readerr(a.queue.get(), &error, 0), 1);
    return error.err;
  }
};

TEST(ProviderBinding, MemoryIsReachedOnlyWhenBoundAndEnabled) {
  const BoundNodes nodes;
  ASSERT_NE(nodes.b.info->domain_attr->mr_mode & FI_MR_ENDPOINT, 0);
  const Region region(nodes.b, 100);
  EXPECT_EQ(nodes.read_code(region), FI_EACCES);
  EXPECT_EQ(fi_mr_enable(region.registration.get()), -FI_EOPBADSTATE) << "it is not bound";
  EXPECT_EQ(fi_mr_bind(region.registration.get(), &nodes.b.endpoint->fid, 0), 0);
  EXPECT_EQ(nodes.read_code(region), FI_EACCES) << "bound, not enabled";
  EXPECT_EQ(fi_mr_enable(region.registration.get()), 0);
  EXPECT_EQ(nodes.read_code(region), 0);
  EXPECT_EQ(fi_mr_bind(region.registration.get(), &nodes.b.endpoint->fid, 0), -FI_EOPBADSTATE);
}

TEST(ProviderBinding, AnotherEndpointOfTheDomainDoesNotServeIt) {
  const BoundNodes nodes;
  fid_ep* opened = nullptr;
  ASSERT_EQ(fi_endpoint(nodes.b.domain.get(), nodes.b.info.get(), &opened, nullptr), 0);
  const Owned<fid_ep> other(opened);
  ASSERT_EQ(fi_ep_bind(opened, &nodes.b.addresses->fid, 0), 0);
  ASSERT_EQ(fi_ep_bind(opened, &nodes.b.queue->fid, FI_TRANSMIT | FI_RECV), 0);
  ASSERT_EQ(fi_enable(opened), 0);
  const Region region(nodes.b, 100);
  ASSERT_EQ(fi_mr_bind(region.registration.get(), &opened->fid, 0), 0);
  ASSERT_EQ(fi_mr_enable(region.registration.get()), 0);
  EXPECT_EQ(nodes.read_code(region), FI_EACCES) << "it belongs to the other endpoint";
}

TEST(ProviderCounters, ACounterOfARegistrationCountsItsWritesAndMovesTheEndpoints) {
  const auto change = [](fi_info& hints) { hints.caps |= FI_RMA_EVENT; };
  const Node a(nullptr, FI_WAIT_NONE, change);
  const Node b(nullptr, FI_WAIT_NONE, change);
  const fi_addr_t to_b = a.know(b.name());
  fid_cntr* opened = nullptr;
  ASSERT_EQ(fi_cntr_open(b.domain.get(), nullptr, &opened, nullptr), 0);
  const Owned<fid_cntr> counter(opened);
  {
    const Region region(b, 1000);
    ASSERT_EQ(fi_mr_bind(region.registration.get(), &counter->fid, FI_REMOTE_WRITE), 0);
    EXPECT_EQ(fi_close(&counter->fid), -FI_EBUSY) << "a registration counts with it";
    for (std::uint64_t number = 1; number <= 5; ++number) {
      ASSERT_EQ(fi_inject_write(a.endpoint.get(), "x", 1, to_b, region.base + number, region.key), 0);
      // Nobody reads b's queue: waiting for the counter moves b.
      EXPECT_EQ(fi_cntr_wait(counter.get(), number, 60'000), 0);
    }
    EXPECT_EQ(fi_cntr_read(counter.get()), 5u);
  }
}

}  // namespace
}  // namespace railyard::provider_test
