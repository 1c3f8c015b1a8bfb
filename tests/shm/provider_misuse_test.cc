/// Calls that are wrong: each answers a code that says so, names the thing in libfabric's log, and changes nothing.
#include <fcntl.h>
#include <sys/wait.h>

#include "provider_node.hpp"

namespace railyard::provider_test {
namespace {

/// A value that the program made up.
template <typename Enum>
Enum odd(int value) {
  return static_cast<Enum>(value);
}

fi_info* ask(const fi_info* hints, const char* node, const char* service, std::uint64_t flags, int& code) {
  fi_info* info = nullptr;
  code = fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &info);
  return info;
}

class ProviderMisuse : public Provider {
 protected:
  fid_ep* not_enabled() {
    fid_ep* opened = nullptr;
    EXPECT_EQ(fi_endpoint(a_.domain.get(), a_.info.get(), &opened, nullptr), 0);
    return opened;
  }
};

TEST(ProviderMisuseInfo, HintsOfNonsenseAreNoData) {
  const std::vector<std::function<void(fi_info&)>> nonsense{
      [](fi_info& hints) { hints.caps = ~std::uint64_t{0}; },
      [](fi_info& hints) { hints.caps |= FI_HMEM; },
      [](fi_info& hints) { hints.addr_format = FI_SOCKADDR_IN; },
      [](fi_info& hints) { hints.ep_attr->type = FI_EP_DGRAM; },
      [](fi_info& hints) { hints.ep_attr->type = odd<fi_ep_type>(1234); },
      [](fi_info& hints) { hints.ep_attr->protocol = FI_PROTO_SHM; },
      [](fi_info& hints) { hints.ep_attr->tx_ctx_cnt = 2; },
      [](fi_info& hints) { hints.ep_attr->auth_key_size = 8; },
      [](fi_info& hints) { hints.tx_attr->iov_limit = 5; },
      [](fi_info& hints) { hints.tx_attr->rma_iov_limit = 5; },
      [](fi_info& hints) { hints.tx_attr->op_flags = FI_CLAIM; },
      [](fi_info& hints) { hints.tx_attr->size = std::size_t{1} << 40; },
      [](fi_info& hints) { hints.rx_attr->caps = FI_SEND; },
      [](fi_info& hints) { hints.rx_attr->size = std::size_t{1} << 40; },
      [](fi_info& hints) { hints.rx_attr->comp_order = FI_ORDER_STRICT; },
      [](fi_info& hints) { hints.domain_attr->mr_iov_limit = 2; },
      [](fi_info& hints) { hints.domain_attr->cq_data_size = 16; },
      [](fi_info& hints) { hints.domain_attr->name = ::strdup("another"); },
      [](fi_info& hints) { hints.fabric_attr->name = ::strdup("another"); },
  };
  for (std::size_t index = 0; index < nonsense.size(); ++index) EXPECT_EQ(find(nonsense[index]), nullptr) << index;
  EXPECT_NE(find(), nullptr);
}

TEST(ProviderMisuseInfo, AHostThatIsNotThisOneIsNoData) {
  const Info hints(fi_allocinfo());
  hints->fabric_attr->prov_name = ::strdup("railyard");
  int code = 0;
  EXPECT_EQ(ask(hints.get(), "no-such-host.invalid", "7", 0, code), nullptr);
  EXPECT_EQ(code, -FI_ENODATA);
  const Info here(ask(hints.get(), "127.0.0.1", "7", 0, code));
  ASSERT_NE(here, nullptr);
  EXPECT_STREQ(static_cast<const char*>(here->dest_addr), "fi_ns://127.0.0.1:7");
  const std::string name = "misuse-" + std::to_string(::getpid());
  const Node holder(name.c_str());
  const Info held(ask(hints.get(), ("fi_ns://" + name).c_str(), nullptr, 0, code));
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(static_cast<const char*>(held->dest_addr), "fi_ns://" + name);
}

TEST(ProviderMisuseInfo, AHostsAddressAloneNamesNoEndpoint) {
  const Info hints(fi_allocinfo());
  hints->fabric_attr->prov_name = ::strdup("railyard");
  int code = 0;
  const Info info(ask(hints.get(), "127.0.0.1", nullptr, FI_SOURCE, code));
  ASSERT_NE(info, nullptr);
  EXPECT_TRUE(std::string(static_cast<const char*>(info->src_addr)).starts_with("fi_railyard://"));
}

TEST_F(ProviderMisuse, NothingMovesOnAnEndpointThatIsNotEnabled) {
  const Owned<fid_ep> endpoint(not_enabled());
  char byte = 0;
  std::uint64_t word = 0;
  EXPECT_EQ(fi_send(endpoint.get(), &byte, 1, nullptr, to_b_, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_inject(endpoint.get(), &byte, 1, to_b_), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_recv(endpoint.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_tsend(endpoint.get(), &byte, 1, nullptr, to_b_, 1, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_trecv(endpoint.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_read(endpoint.get(), &byte, 1, nullptr, to_b_, 0, 0, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_write(endpoint.get(), &byte, 1, nullptr, to_b_, 0, 0, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_atomic(endpoint.get(), &word, 1, nullptr, to_b_, 0, 0, FI_UINT64, FI_SUM, nullptr), -FI_EOPBADSTATE);
  std::size_t bytes = 0;
  EXPECT_EQ(fi_getname(&endpoint->fid, nullptr, &bytes), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_cancel(&endpoint->fid, &byte), -FI_ENOENT);
}

TEST_F(ProviderMisuse, BindingIsCheckedStepByStep) {
  const Owned<fid_ep> endpoint(not_enabled());
  EXPECT_EQ(fi_enable(endpoint.get()), -FI_ENOAV);
  EXPECT_EQ(fi_ep_bind(endpoint.get(), &a_.addresses->fid, 0), 0);
  EXPECT_EQ(fi_ep_bind(endpoint.get(), &a_.addresses->fid, 0), -FI_EINVAL) << "twice";
  EXPECT_EQ(fi_enable(endpoint.get()), -FI_ENOCQ);
  EXPECT_EQ(fi_ep_bind(endpoint.get(), &a_.queue->fid, 0), -FI_EBADFLAGS);
  EXPECT_EQ(fi_ep_bind(endpoint.get(), &a_.queue->fid, FI_TRANSMIT | FI_PEEK), -FI_EBADFLAGS);
  EXPECT_EQ(fi_ep_bind(endpoint.get(), &a_.domain->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(endpoint.get(), &a_.queue->fid, FI_TRANSMIT | FI_RECV), 0);
  EXPECT_EQ(fi_ep_bind(endpoint.get(), &a_.queue->fid, FI_RECV), -FI_EINVAL) << "twice";
  EXPECT_EQ(fi_enable(endpoint.get()), 0);
  EXPECT_EQ(fi_enable(endpoint.get()), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_ep_bind(endpoint.get(), &a_.queue->fid, FI_RECV), -FI_EOPBADSTATE);
}

TEST_F(ProviderMisuse, WhatIsInUseDoesNotClose) {
  EXPECT_EQ(fi_close(&a_.queue->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&a_.addresses->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&a_.domain->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&a_.fabric->fid), -FI_EBUSY);
  fi_poll_attr attributes{};
  fid_poll* opened = nullptr;
  ASSERT_EQ(fi_poll_open(a_.domain.get(), &attributes, &opened), 0);
  const Owned<fid_poll> set(opened);
  EXPECT_EQ(fi_poll_add(set.get(), &a_.endpoint->fid, 0), -FI_EINVAL);
  ASSERT_EQ(fi_poll_add(set.get(), &a_.queue->fid, 0), 0);
  EXPECT_EQ(fi_close(&set->fid), -FI_EBUSY);
  EXPECT_EQ(fi_poll_del(set.get(), &b_.queue->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_poll_del(set.get(), &a_.queue->fid, 0), 0);
}

TEST_F(ProviderMisuse, TooManyIovEntriesTooMuchToInjectAndUnknownPeers) {
  std::vector<char> bytes(10'000);
  const std::vector<iovec> iov(5, iovec{bytes.data(), 1});
  EXPECT_EQ(fi_sendv(a_.endpoint.get(), iov.data(), nullptr, 5, to_b_, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_recvv(a_.endpoint.get(), iov.data(), nullptr, 5, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_tsendv(a_.endpoint.get(), iov.data(), nullptr, 5, to_b_, 1, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_trecvv(a_.endpoint.get(), iov.data(), nullptr, 5, FI_ADDR_UNSPEC, 1, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_writev(a_.endpoint.get(), iov.data(), nullptr, 5, to_b_, 0, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_readv(a_.endpoint.get(), iov.data(), nullptr, 5, to_b_, 0, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_inject(a_.endpoint.get(), bytes.data(), bytes.size(), to_b_), -FI_EMSGSIZE);
  EXPECT_EQ(fi_tinject(a_.endpoint.get(), bytes.data(), bytes.size(), to_b_, 1), -FI_EMSGSIZE);
  EXPECT_EQ(fi_inject_write(a_.endpoint.get(), bytes.data(), bytes.size(), to_b_, 0, 0), -FI_EMSGSIZE);
  EXPECT_EQ(fi_send(a_.endpoint.get(), bytes.data(), 8, nullptr, 12'345, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_send(a_.endpoint.get(), bytes.data(), 8, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
  const fi_addr_t nobody = a_.know("fi_railyard://" + std::string(32, 'a'));
  EXPECT_EQ(fi_send(a_.endpoint.get(), bytes.data(), 8, nullptr, nobody, nullptr), -FI_EHOSTUNREACH);
}

TEST_F(ProviderMisuse, AddressesRegistrationsQueuesAndCountersCheckTheirArguments) {
  fi_addr_t number = 0;
  EXPECT_EQ(fi_av_insert(a_.addresses.get(), "somewhere://x", 1, &number, 0, nullptr), 0);
  EXPECT_EQ(number, FI_ADDR_NOTAVAIL);
  EXPECT_EQ(fi_av_insert(a_.addresses.get(), "fi_railyard://short", 1, &number, 0, nullptr), 0);
  EXPECT_EQ(fi_av_insert(a_.addresses.get(), "fi_ns://x", 1, &number, FI_PEEK, nullptr), -FI_EBADFLAGS);
  number = 999;
  EXPECT_EQ(fi_av_remove(a_.addresses.get(), &number, 1, 0), -FI_EINVAL);
  fi_av_attr shared{};
  shared.name = "shared";
  fid_av* addresses = nullptr;
  EXPECT_EQ(fi_av_open(a_.domain.get(), &shared, &addresses, nullptr), -FI_ENOSYS);

  char byte = 0;
  fid_mr* registration = nullptr;
  EXPECT_EQ(fi_mr_reg(a_.domain.get(), &byte, 1, ~std::uint64_t{0}, 0, 0, 0, &registration, nullptr), -FI_EBADFLAGS);
  EXPECT_EQ(fi_mr_reg(a_.domain.get(), &byte, 1, FI_REMOTE_READ, 0, 0, FI_PEEK, &registration, nullptr), -FI_EBADFLAGS);
  const iovec two[2] = {{&byte, 1}, {&byte, 1}};
  EXPECT_EQ(fi_mr_regv(a_.domain.get(), two, 2, FI_REMOTE_READ, 0, 0, 0, &registration, nullptr), -FI_EINVAL);
  ASSERT_EQ(fi_mr_reg(a_.domain.get(), &byte, 1, FI_REMOTE_READ, 0, 0, 0, &registration, nullptr), 0);
  const Owned<fid_mr> kept(registration);
  EXPECT_EQ(fi_mr_bind(registration, &a_.endpoint->fid, 0), -FI_EINVAL) << "FI_MR_ENDPOINT is not in the mode";
  EXPECT_EQ(fi_mr_bind(registration, &a_.queue->fid, 0), -FI_EINVAL);

  fi_cq_attr wrong{};
  wrong.format = odd<fi_cq_format>(77);
  fid_cq* queue = nullptr;
  EXPECT_EQ(fi_cq_open(a_.domain.get(), &wrong, &queue, nullptr), -FI_EINVAL);
  fi_cq_err_entry error{};
  EXPECT_EQ(fi_cq_readerr(a_.queue.get(), &error, 0), -FI_EAGAIN);
  fi_cq_tagged_entry entry{};
  EXPECT_EQ(fi_cq_sread(a_.queue.get(), &entry, 1, nullptr, 0), -FI_EOPNOTSUPP) << "opened with FI_WAIT_NONE";
  std::size_t least = 0;
  EXPECT_EQ(fi_setopt(&a_.endpoint->fid, FI_OPT_ENDPOINT, 4242, &least, sizeof least), -FI_ENOPROTOOPT);
  EXPECT_EQ(fi_setopt(&a_.endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, 1), -FI_EINVAL);
  fi_cntr_attr odd{};
  odd.flags = 1;
  fid_cntr* counter = nullptr;
  EXPECT_EQ(fi_cntr_open(a_.domain.get(), &odd, &counter, nullptr), -FI_EINVAL);
}

TEST_F(ProviderMisuse, AnAtomicOfAnUnknownKindIsRefusedHere) {
  std::uint64_t word = 0;
  EXPECT_EQ(fi_atomic(a_.endpoint.get(), &word, 1, nullptr, to_b_, 0, 0, FI_UINT64, FI_CSWAP, nullptr), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_atomic(a_.endpoint.get(), &word, 1, nullptr, to_b_, 0, 0, odd<fi_datatype>(200), FI_SUM, nullptr),
            -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_atomic(a_.endpoint.get(), &word, 0, nullptr, to_b_, 0, 0, FI_UINT64, FI_SUM, nullptr), -FI_EINVAL);
  std::size_t count = 0;
  EXPECT_EQ(fi_atomicvalid(a_.endpoint.get(), FI_FLOAT, FI_BOR, &count), -FI_EOPNOTSUPP);
}

TEST(ProviderMisuseLog, ARefusalNamesTheThingAndTheFix) {
  // libfabric reads its log settings once, in a process that has not used it yet.
  int out[2];
  ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
  const std::string path = "/proc/self/exe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], STDERR_FILENO);
    ::setenv("FI_LOG_LEVEL", "warn", 1);
    ::setenv("FI_LOG_PROV", "railyard", 1);
    ::execl(path.c_str(), "shm_test", "--gtest_filter=ProviderMisuse.NothingMovesOnAnEndpointThatIsNotEnabled",
            nullptr);
    ::_exit(127);
  }
  ::close(out[1]);
  std::string said;
  char part[4096];
  for (ssize_t got = ::read(out[0], part, sizeof part); got > 0; got = ::read(out[0], part, sizeof part))
    said.append(part, static_cast<std::size_t>(got));
  ::close(out[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_NE(said.find("railyard"), std::string::npos) << said;
  EXPECT_NE(said.find("the endpoint is not enabled: fi_ep_bind what it needs, then fi_enable"), std::string::npos)
      << said;
}

}  // namespace
}  // namespace railyard::provider_test
