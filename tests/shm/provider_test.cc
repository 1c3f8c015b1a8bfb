/// The libfabric provider, through libfabric: what a program sees.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "provider_node.hpp"

namespace railyard::provider_test {
namespace {

// Around every limit of the protocol: a line, a record, the eager part.
const std::vector<std::size_t> kSizes{0,    1,    8,    39,   40,   41,   64,    200,   256,   1023,    1024,
                                      4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 65537, 300'000, 1 << 20};

TEST_F(Provider, MessagesOfEverySizeArriveWholeWhenExpected) {
  for (const std::size_t bytes : kSizes) {
    const std::vector<char> sent = pattern(bytes, bytes);
    std::vector<char> received(bytes + 1, 'x');
    ASSERT_EQ(fi_trecv(b_.endpoint.get(), received.data(), bytes, nullptr, FI_ADDR_UNSPEC, bytes, 0, &received), 0);
    send(sent, bytes);
    fi_addr_t from = FI_ADDR_NOTAVAIL;
    const fi_cq_tagged_entry entry = next(b_, &from);
    EXPECT_EQ(entry.len, bytes);
    EXPECT_EQ(entry.tag, bytes);
    EXPECT_EQ(entry.op_context, &received);
    EXPECT_EQ(from, to_a_);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), received.begin())) << bytes;
    EXPECT_EQ(received[bytes], 'x');
    EXPECT_EQ(next(a_).flags & FI_SEND, FI_SEND);
  }
}

TEST_F(Provider, MessagesOfEverySizeArriveWholeWhenUnexpectedAndInAnyOrder) {
  std::vector<std::vector<char>> sent;
  for (const std::size_t bytes : kSizes) {
    sent.push_back(pattern(bytes, bytes + 1));
    send(sent.back(), bytes);
  }
  for (int pass = 0; pass < 1000; ++pass) fi_cq_read(b_.queue.get(), nullptr, 0);
  for (std::size_t index = kSizes.size(); index-- > 0;) {
    std::vector<char> received(kSizes[index] + 1, 'x');
    ASSERT_EQ(
        fi_trecv(b_.endpoint.get(), received.data(), kSizes[index], nullptr, FI_ADDR_UNSPEC, kSizes[index], 0, nullptr),
        0);
    EXPECT_EQ(next(b_).len, kSizes[index]);
    EXPECT_TRUE(std::equal(sent[index].begin(), sent[index].end(), received.begin())) << kSizes[index];
  }
}

TEST_F(Provider, ABurstNobodyWaitsForIsKeptInOrder) {
  constexpr std::uint64_t kBurst = 100'000;
  for (std::uint64_t number = 0; number < kBurst; ++number) {
    ASSERT_TRUE(until([&] { return fi_tinject(a_.endpoint.get(), &number, sizeof number, to_b_, number % 3) == 0; }));
  }
  for (std::uint64_t number = 0; number < kBurst; ++number) {
    std::uint64_t received = 0;
    ASSERT_EQ(
        fi_trecv(b_.endpoint.get(), &received, sizeof received, nullptr, FI_ADDR_UNSPEC, 0, ~std::uint64_t{0}, nullptr),
        0);
    ASSERT_EQ(next(b_).tag, number % 3);
    ASSERT_EQ(received, number);
  }
}

TEST_F(Provider, AMessageTooLongForItsReceiveIsAnErrorAndTheNextOneIsNot) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{200'000}}) {
    std::vector<char> received(64, 'x');
    ASSERT_EQ(fi_trecv(b_.endpoint.get(), received.data(), 50, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
    const std::vector<char> too_long = pattern(bytes, 1);
    send(too_long, 1);
    EXPECT_EQ(next_error(b_), FI_ETRUNC);
    EXPECT_EQ(received[50], 'x');
    next(a_);
    ASSERT_EQ(fi_trecv(b_.endpoint.get(), received.data(), 50, nullptr, FI_ADDR_UNSPEC, 2, 0, nullptr), 0);
    const std::vector<char> fitting = pattern(50, 2);
    send(fitting, 2);
    EXPECT_EQ(next(b_).len, 50u);
    next(a_);
  }
}

TEST_F(Provider, DeliveryCompleteWaitsForTheReceive) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{5000}, std::size_t{100'000}}) {
    const std::vector<char> sent = pattern(bytes, 3);
    const iovec iov{const_cast<char*>(sent.data()), bytes};
    fi_msg_tagged message{};
    message.msg_iov = &iov;
    message.iov_count = 1;
    message.addr = to_b_;
    message.tag = 9;
    ASSERT_EQ(fi_tsendmsg(a_.endpoint.get(), &message, FI_DELIVERY_COMPLETE | FI_COMPLETION), 0);
    fi_cq_tagged_entry entry{};
    for (int pass = 0; pass < 5000; ++pass) {
      ASSERT_EQ(a_.read(entry), -FI_EAGAIN);
      fi_cq_read(b_.queue.get(), nullptr, 0);
    }
    std::vector<char> received(bytes);
    ASSERT_EQ(fi_trecv(b_.endpoint.get(), received.data(), bytes, nullptr, FI_ADDR_UNSPEC, 9, 0, nullptr), 0);
    next(a_);
    next(b_);
    EXPECT_EQ(received, sent);
  }
}

TEST_F(Provider, DirectedReceivesTakeOnlyTheirSendersMessages) {
  const Node c;
  ASSERT_EQ(c.enabled, 0);
  const fi_addr_t c_number = b_.know(c.name());
  const fi_addr_t c_to_b = c.know(b_.name());
  int from_c = 0;
  ASSERT_EQ(fi_trecv(b_.endpoint.get(), &from_c, sizeof from_c, nullptr, c_number, 5, 0, nullptr), 0);
  const int one = 1;
  const int two = 2;
  ASSERT_EQ(fi_tinject(a_.endpoint.get(), &one, sizeof one, to_b_, 5), 0);
  for (int pass = 0; pass < 5000; ++pass) fi_cq_read(b_.queue.get(), nullptr, 0);
  ASSERT_EQ(fi_tinject(c.endpoint.get(), &two, sizeof two, c_to_b, 5), 0);
  fi_addr_t from = FI_ADDR_NOTAVAIL;
  next(b_, &from);
  EXPECT_EQ(from, c_number);
  EXPECT_EQ(from_c, 2);
}

TEST_F(Provider, PeekClaimAndDiscard) {
  fi_msg_tagged message{};
  fi_context context{};
  message.addr = FI_ADDR_UNSPEC;
  message.tag = 4;
  message.context = &context;
  ASSERT_EQ(fi_trecvmsg(b_.endpoint.get(), &message, FI_PEEK), 0);
  EXPECT_EQ(next_error(b_), FI_ENOMSG);
  for (const int value : {1, 2, 3}) ASSERT_EQ(fi_tinject(a_.endpoint.get(), &value, sizeof value, to_b_, 4), 0);
  for (int pass = 0; pass < 5000; ++pass) fi_cq_read(b_.queue.get(), nullptr, 0);
  ASSERT_EQ(fi_trecvmsg(b_.endpoint.get(), &message, FI_PEEK | FI_CLAIM), 0);
  EXPECT_EQ(next(b_).len, sizeof(int));
  fi_context other{};
  message.context = &other;
  ASSERT_EQ(fi_trecvmsg(b_.endpoint.get(), &message, FI_PEEK | FI_DISCARD), 0);
  next(b_);
  int last = 0;
  ASSERT_EQ(fi_trecv(b_.endpoint.get(), &last, sizeof last, nullptr, FI_ADDR_UNSPEC, 4, 0, nullptr), 0);
  next(b_);
  EXPECT_EQ(last, 3) << "the first is claimed, the second was discarded";
  int first = 0;
  const iovec iov{&first, sizeof first};
  message.msg_iov = &iov;
  message.iov_count = 1;
  message.context = &context;
  ASSERT_EQ(fi_trecvmsg(b_.endpoint.get(), &message, FI_CLAIM), 0);
  next(b_);
  EXPECT_EQ(first, 1);
}

TEST_F(Provider, ACancelledReceiveTakesNothing) {
  int cancelled = 0;
  int kept = 0;
  fi_context context{};
  ASSERT_EQ(fi_recv(b_.endpoint.get(), &cancelled, sizeof cancelled, nullptr, FI_ADDR_UNSPEC, &context), 0);
  ASSERT_EQ(fi_cancel(&b_.endpoint->fid, &context), 0);
  EXPECT_EQ(next_error(b_), FI_ECANCELED);
  ASSERT_EQ(fi_recv(b_.endpoint.get(), &kept, sizeof kept, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  const int value = 6;
  ASSERT_EQ(fi_inject(a_.endpoint.get(), &value, sizeof value, to_b_), 0);
  next(b_);
  EXPECT_EQ(kept, 6);
  EXPECT_EQ(cancelled, 0);
}

TEST_F(Provider, AMultiReceiveTakesMessagesUntilItIsUsedUp) {
  std::vector<char> buffer(1000);
  std::size_t least = 200;
  ASSERT_EQ(fi_setopt(&b_.endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
  const iovec iov{buffer.data(), buffer.size()};
  fi_msg message{};
  message.msg_iov = &iov;
  message.iov_count = 1;
  message.addr = FI_ADDR_UNSPEC;
  ASSERT_EQ(fi_recvmsg(b_.endpoint.get(), &message, FI_MULTI_RECV), 0);
  for (std::size_t number = 0; number < 3; ++number) {
    const std::vector<char> sent = pattern(300, number);
    ASSERT_EQ(fi_inject(a_.endpoint.get(), sent.data(), sent.size(), to_b_), 0);
    const fi_cq_tagged_entry entry = next(b_);
    EXPECT_EQ(entry.buf, buffer.data() + number * 300);
    EXPECT_EQ((entry.flags & FI_MULTI_RECV) != 0, number == 2);
    EXPECT_EQ(std::memcmp(entry.buf, sent.data(), 300), 0);
  }
}

TEST_F(Provider, RemoteMemoryIsReadAndWrittenAndGuarded) {
  std::vector<char> memory(1 << 20);
  fid_mr* opened = nullptr;
  ASSERT_EQ(fi_mr_reg(b_.domain.get(), memory.data(), memory.size(), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &opened,
                      nullptr),
            0);
  const Owned<fid_mr> registration(opened);
  const std::uint64_t key = fi_mr_key(registration.get());
  const auto base = reinterpret_cast<std::uint64_t>(memory.data());
  for (const std::size_t bytes : kSizes) {
    const std::vector<char> sent = pattern(bytes, bytes + 5);
    const iovec iov{const_cast<char*>(sent.data()), bytes};
    const fi_rma_iov remote{base, bytes, key};
    fi_msg_rma message{};
    message.msg_iov = &iov;
    message.iov_count = 1;
    message.addr = to_b_;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    ASSERT_EQ(fi_writemsg(a_.endpoint.get(), &message, FI_DELIVERY_COMPLETE | FI_COMPLETION), 0);
    next(a_);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), memory.begin())) << bytes;
    std::vector<char> back(bytes + 1, 'x');
    ASSERT_EQ(fi_read(a_.endpoint.get(), back.data(), bytes, nullptr, to_b_, base, key, nullptr), 0);
    next(a_);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), back.begin())) << bytes;
    EXPECT_EQ(back[bytes], 'x');
  }
  char byte = 0;
  ASSERT_EQ(fi_read(a_.endpoint.get(), &byte, 1, nullptr, to_b_, base + memory.size(), key, nullptr), 0);
  EXPECT_EQ(next_error(a_), FI_EACCES) << "beyond the end";
  ASSERT_EQ(fi_read(a_.endpoint.get(), &byte, 1, nullptr, to_b_, base, key + 1, nullptr), 0);
  EXPECT_EQ(next_error(a_), FI_EACCES) << "a key that does not exist";
}

TEST_F(Provider, AtomicsChangeAndFetch) {
  alignas(8) std::uint64_t counter = 5;
  fid_mr* opened = nullptr;
  ASSERT_EQ(
      fi_mr_reg(b_.domain.get(), &counter, sizeof counter, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &opened, nullptr),
      0);
  const Owned<fid_mr> registration(opened);
  const std::uint64_t key = fi_mr_key(registration.get());
  const auto address = reinterpret_cast<std::uint64_t>(&counter);
  const std::uint64_t ten = 10;
  std::uint64_t before = 0;
  ASSERT_EQ(fi_fetch_atomic(a_.endpoint.get(), &ten, 1, nullptr, &before, nullptr, to_b_, address, key, FI_UINT64,
                            FI_SUM, nullptr),
            0);
  next(a_);
  EXPECT_EQ(before, 5u);
  EXPECT_EQ(counter, 15u);
  const std::uint64_t expected = 15;
  ASSERT_EQ(fi_compare_atomic(a_.endpoint.get(), &ten, 1, nullptr, &expected, nullptr, &before, nullptr, to_b_, address,
                              key, FI_UINT64, FI_CSWAP, nullptr),
            0);
  next(a_);
  EXPECT_EQ(before, 15u);
  EXPECT_EQ(counter, 10u);
}

TEST_F(Provider, ANameIsHeldByOneEndpoint) {
  const std::string name = "provider-test-" + std::to_string(::getpid());
  auto first = std::make_unique<Node>(name.c_str());
  ASSERT_EQ(first->enabled, 0);
  EXPECT_EQ(first->name(), "fi_ns://" + name);
  EXPECT_EQ(Node(name.c_str()).enabled, -FI_EADDRINUSE);
  first.reset();
  EXPECT_EQ(Node(name.c_str()).enabled, 0);
}

TEST_F(Provider, AKilledPeerFailsWhatWaitsForItAndNothingElse) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const std::string name = "provider-killed-" + std::to_string(::getpid());
  const pid_t child = ::fork();
  if (child == 0) {
    const Node doomed(name.c_str());
    (void)!::write(ready[1], "r", 1);
    while (true) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const fi_addr_t to_child = a_.know("fi_ns://" + name);
  const std::vector<char> large = pattern(1 << 20, 1);
  ASSERT_EQ(fi_tsend(a_.endpoint.get(), large.data(), large.size(), nullptr, to_child, 1, nullptr), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(next_error(a_), FI_EHOSTDOWN);
  int value = 0;
  const int sent = 8;
  ASSERT_EQ(fi_recv(b_.endpoint.get(), &value, sizeof value, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(fi_inject(a_.endpoint.get(), &sent, sizeof sent, to_b_), 0);
  next(b_);
  EXPECT_EQ(value, 8);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(ProviderWaiting, ASleepingReaderIsWokenByAMessageAndByASignal) {
  const Node sleeper(nullptr, FI_WAIT_FD);
  const Node sender;
  ASSERT_EQ(sleeper.enabled, 0);
  ASSERT_EQ(sender.enabled, 0);
  const fi_addr_t to = sender.know(sleeper.name());
  int fd = -1;
  ASSERT_EQ(fi_control(&sleeper.queue->fid, FI_GETWAIT, &fd), 0);
  for (int value = 1; value <= 20; ++value) {
    int received = 0;
    ASSERT_EQ(fi_recv(sleeper.endpoint.get(), &received, sizeof received, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    fid* waited = &sleeper.queue->fid;
    fi_cq_tagged_entry entry{};
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(value % 3));
      while (fi_inject(sender.endpoint.get(), &value, sizeof value, to) == -FI_EAGAIN) {
      }
    });
    ssize_t got = -FI_EAGAIN;
    while (got == -FI_EAGAIN) {
      if (fi_trywait(sleeper.fabric.get(), &waited, 1) == 0) {
        pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
        EXPECT_EQ(::poll(&wait, 1, 60'000), 1);
      }
      got = sleeper.read(entry);
    }
    other.join();
    EXPECT_EQ(got, 1);
    EXPECT_EQ(received, value);
  }
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    fi_cq_signal(sleeper.queue.get());
  });
  fi_cq_tagged_entry entry{};
  EXPECT_EQ(fi_cq_sread(sleeper.queue.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);
  other.join();
}

TEST(ProviderInfo, WhatIsNotOfferedIsRefused) {
  EXPECT_EQ(find([](fi_info& hints) { hints.ep_attr->type = FI_EP_MSG; }), nullptr);
  EXPECT_EQ(find([](fi_info& hints) { hints.caps |= FI_MULTICAST; }), nullptr);
  EXPECT_EQ(find([](fi_info& hints) { hints.tx_attr->inject_size = 1 << 20; }), nullptr);
  EXPECT_EQ(find([](fi_info& hints) { hints.domain_attr->data_progress = FI_PROGRESS_AUTO; }), nullptr);
  EXPECT_NE(find(), nullptr);
}

TEST(ProviderInfo, RegistrationsAreBoundWhereThatIsAskedFor) {
  ::setenv("FI_RAILYARD_MR_ENDPOINT", "1", 1);
  const Info info = find([](fi_info& hints) { hints.domain_attr->mr_mode |= FI_MR_ENDPOINT; });
  ::unsetenv("FI_RAILYARD_MR_ENDPOINT");
  ASSERT_NE(info, nullptr);
  EXPECT_NE(info->domain_attr->mr_mode & FI_MR_ENDPOINT, 0);
  EXPECT_EQ(
      find([](fi_info& hints) { hints.domain_attr->mr_mode |= FI_MR_ENDPOINT; })->domain_attr->mr_mode & FI_MR_ENDPOINT,
      0);
}

}  // namespace
}  // namespace railyard::provider_test
