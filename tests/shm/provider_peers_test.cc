/// Many peers, deep queues, threads: what a crowded node asks of the provider.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sched.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <vector>

#include "provider_node.hpp"
#include "receives.hpp"

namespace railyard::provider_test {
namespace {

/// Where a test fails, nobody else would end them.
struct Children {
  std::vector<pid_t> pids;  ///< 0: has ended
  ~Children() {
    for (const pid_t child : pids)
      if (child > 0) ::kill(child, SIGKILL);
  }
};

/// More endpoints in the domain of a node: they share its addresses and its queue.
std::vector<Owned<fid_ep>> more_endpoints(const Node& node, std::size_t count) {
  std::vector<Owned<fid_ep>> endpoints;
  for (std::size_t index = 0; index < count; ++index) {
    fid_ep* opened = nullptr;
    EXPECT_EQ(fi_endpoint(node.domain.get(), node.info.get(), &opened, nullptr), 0);
    endpoints.emplace_back(opened);
    EXPECT_EQ(fi_ep_bind(opened, &node.addresses->fid, 0), 0);
    EXPECT_EQ(fi_ep_bind(opened, &node.queue->fid, FI_TRANSMIT | FI_RECV), 0);
    EXPECT_EQ(fi_enable(opened), 0);
  }
  return endpoints;
}

TEST(ProviderPeers, ThreeHundredEndpointsInSixProcessesAreAllAnswered) {
  constexpr std::size_t kEndpoints = 50;
  constexpr std::size_t kProcesses = 6;
  const std::string name = "crowd-" + std::to_string(::getpid());
  const Node server(name.c_str());
  ASSERT_EQ(server.enabled, 0);
  Children group;
  std::vector<pid_t>& children = group.pids;
  for (std::size_t process = 0; process < kProcesses; ++process) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    const Node node;
    const std::vector<Owned<fid_ep>> endpoints = more_endpoints(node, kEndpoints);
    const fi_addr_t to = node.know("fi_ns://" + name);
    std::vector<std::uint64_t> answers(kEndpoints);
    int code = 0;
    for (std::size_t index = 0; index < kEndpoints; ++index) {
      fid_ep* const endpoint = endpoints[index].get();
      fi_trecv(endpoint, &answers[index], 8, nullptr, FI_ADDR_UNSPEC, 2, 0, nullptr);
      char own[64];
      std::size_t bytes = sizeof own;
      fi_getname(&endpoint->fid, own, &bytes);
      ssize_t sent = -FI_EAGAIN;
      while ((sent = fi_tinject(endpoint, own, sizeof own, to, 1)) == -FI_EAGAIN)
        fi_cq_read(node.queue.get(), nullptr, 0);
      if (sent != 0) ::_exit(3);
    }
    for (std::size_t left = kEndpoints; left != 0;) {
      fi_cq_tagged_entry entry{};
      const ssize_t got = fi_cq_read(node.queue.get(), &entry, 1);
      if (got == 1) --left;
      if (got < 0 && got != -FI_EAGAIN) code = 1;
    }
    for (const std::uint64_t answer : answers)
      if (answer != 4711) code = 2;
    ::_exit(code);
  }
  char text[64];
  const std::uint64_t answer = 4711;
  for (std::size_t left = kEndpoints * kProcesses; left != 0; --left) {
    ASSERT_EQ(fi_trecv(server.endpoint.get(), text, sizeof text, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
         got == -FI_EAGAIN && std::chrono::steady_clock::now() < end;)
      got = server.read(entry);
    ASSERT_EQ(got, 1);
    const fi_addr_t to = server.know(text);
    while (fi_tinject(server.endpoint.get(), &answer, 8, to, 2) == -FI_EAGAIN)
      fi_cq_read(server.queue.get(), nullptr, 0);
  }
  for (pid_t& child : children) {
    int status = -1;
    while (::waitpid(child, &status, WNOHANG) == 0) fi_cq_read(server.queue.get(), nullptr, 0);
    EXPECT_EQ(status, 0);
    child = 0;
  }
}

TEST_F(Provider, APeerLeavesAndComesBackUnderItsName) {
  const std::string name = "comes-back-" + std::to_string(::getpid());
  const fi_addr_t to = a_.know("fi_ns://" + name);
  int value = 5;
  EXPECT_EQ(fi_tinject(a_.endpoint.get(), &value, sizeof value, to, 1), -FI_EAGAIN) << "nobody has that name yet";
  for (int incarnation = 0; incarnation < 5; ++incarnation) {
    const Node peer(name.c_str());
    ASSERT_EQ(peer.enabled, 0);
    int received = 0;
    ASSERT_EQ(fi_trecv(peer.endpoint.get(), &received, sizeof received, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
    value = 100 + incarnation;
    ssize_t code = -FI_EAGAIN;
    ASSERT_TRUE(until([&] {
      code = fi_tinject(a_.endpoint.get(), &value, sizeof value, to, 1);
      return code != -FI_EAGAIN;
    }));
    ASSERT_EQ(code, 0);
    fi_cq_tagged_entry entry{};
    ASSERT_TRUE(until([&] { return peer.read(entry) == 1; }));
    EXPECT_EQ(received, value);
  }
}

TEST_F(Provider, APeerOfAnotherPidNamespaceIsAPeer) {
  const std::string name = "namespace-" + std::to_string(::getpid());
  const pid_t outer = ::fork();
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) ::_exit(77);
    const pid_t inner = ::fork();
    if (inner != 0) {
      int status = 0;
      ::waitpid(inner, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    // Process 1 of its namespace, echoing one long message.
    const Node node(name.c_str());
    if (node.enabled != 0) ::_exit(1);
    std::vector<char> bytes(300'000);
    fi_addr_t from = FI_ADDR_NOTAVAIL;
    fi_cq_tagged_entry entry{};
    char address[64];
    const auto take = [&](void* to, std::size_t size) {
      fi_trecv(node.endpoint.get(), to, size, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr);
      while (node.read(entry, &from) != 1) ::sched_yield();
    };
    take(address, sizeof address);
    take(bytes.data(), bytes.size());
    const fi_addr_t back = node.know(address);
    while (fi_tsend(node.endpoint.get(), bytes.data(), bytes.size(), nullptr, back, 2, nullptr) == -FI_EAGAIN)
      fi_cq_read(node.queue.get(), nullptr, 0);
    while (node.read(entry) != 1) ::sched_yield();
    ::_exit(0);
  }
  const fi_addr_t to = a_.know("fi_ns://" + name);
  std::string own = a_.name();
  own.resize(64);
  int status = -1;
  bool ended = false;
  ASSERT_TRUE(until([&] {
    ended = ::waitpid(outer, &status, WNOHANG) == outer;
    return ended || fi_tinject(a_.endpoint.get(), own.data(), own.size(), to, 1) == 0;
  }));
  if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no new pid namespace here";
  ASSERT_FALSE(ended) << status;
  const std::vector<char> sent = pattern(300'000, 9);
  std::vector<char> back(300'000);
  ASSERT_EQ(fi_trecv(a_.endpoint.get(), back.data(), back.size(), nullptr, FI_ADDR_UNSPEC, 2, 0, nullptr), 0);
  ASSERT_EQ(fi_tsend(a_.endpoint.get(), sent.data(), sent.size(), nullptr, to, 1, nullptr), 0);
  next(a_);
  next(a_);
  EXPECT_EQ(back, sent);
  while (::waitpid(outer, &status, WNOHANG) == 0) fi_cq_read(a_.queue.get(), nullptr, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(Provider, DeepQueuesOfManyTagsAreNotSearchedOneByOne) {
  constexpr std::uint64_t kDeep = 40'000;
  std::vector<std::uint64_t> received(kDeep);
  // Unexpected: received in the opposite order. Searched one by one that is 800 million steps.
  for (std::uint64_t tag = 0; tag < kDeep; ++tag)
    ASSERT_TRUE(until([&] { return fi_tinject(a_.endpoint.get(), &tag, sizeof tag, to_b_, tag) == 0; }));
  for (std::uint64_t left = kDeep; left-- > 0;) {
    ASSERT_EQ(fi_trecv(b_.endpoint.get(), &received[left], 8, nullptr, FI_ADDR_UNSPEC, left, 0, nullptr), 0);
    ASSERT_EQ(next(b_).tag, left);
    ASSERT_EQ(received[left], left);
  }
  // Posted, and sent in the opposite order.
  std::fill(received.begin(), received.end(), 0);
  for (std::uint64_t tag = 0; tag < kDeep; ++tag)
    ASSERT_EQ(fi_trecv(b_.endpoint.get(), &received[tag], 8, nullptr, FI_ADDR_UNSPEC, tag, 0, nullptr), 0);
  for (std::uint64_t left = kDeep; left-- > 0;) {
    ASSERT_TRUE(until([&] { return fi_tinject(a_.endpoint.get(), &left, sizeof left, to_b_, left) == 0; }));
    ASSERT_EQ(next(b_).tag, left);
    ASSERT_EQ(received[left], left);
  }
}

/// Posted receives with and without ignored bits, arrivals and cancels at random, against the plain rule: the first one
/// in order that matches.
RC_GTEST_PROP(TagQueue, FindsWhatASearchInOrderFinds, ()) {
  using provider::Receive;
  using provider::Receives;
  Receives receives(0);
  std::vector<std::unique_ptr<Receive>> kept;
  std::vector<Receive*> model;
  const auto steps = *rc::gen::inRange(1, 1500);
  for (int step = 0; step < steps; ++step) {
    // Long runs of pushes and of removals, so that it grows and shrinks past where it changes its ways.
    const bool push = *rc::gen::inRange(0, 100) < (step / 150 % 2 == 0 ? 85 : 15);
    const std::uint64_t tag = *rc::gen::inRange<std::uint64_t>(0, 12);
    if (push) {
      kept.push_back(std::make_unique<Receive>());
      Receive& receive = *kept.back();
      receive.tag = tag;
      receive.ignore = *rc::gen::inRange(0, 8) == 0 ? 3 : 0;
      receive.from = *rc::gen::inRange(0, 4) == 0 ? 1 : FI_ADDR_UNSPEC;
      receives.posted.push(receive);
      model.push_back(&receive);
      continue;
    }
    const fi_addr_t from = *rc::gen::inRange<fi_addr_t>(0, 2);
    const auto expected = std::find_if(model.begin(), model.end(),
                                       [&](const Receive* each) { return Receives::matches(*each, tag, from); });
    Receive* const got = receives.match(tag, from);
    RC_ASSERT(got == (expected != model.end() ? *expected : nullptr));
    if (got == nullptr) continue;
    receives.posted.remove(*got);
    model.erase(expected);
  }
}

TEST(ProviderThreads, OneDomainServesThreadsThatShareNoQueue) {
  constexpr std::uint64_t kMessages = 3000;
  const auto change = [](fi_info& hints) { hints.domain_attr->threading = FI_THREAD_COMPLETION; };
  const Node server(nullptr, FI_WAIT_NONE, change);
  ASSERT_EQ(server.info->domain_attr->threading, FI_THREAD_COMPLETION);
  std::vector<char> memory(4096, 'm');
  fid_mr* opened = nullptr;
  ASSERT_EQ(fi_mr_reg(server.domain.get(), memory.data(), memory.size(), FI_REMOTE_READ, 0, 0, 0, &opened, nullptr), 0);
  const Owned<fid_mr> registration(opened);
  const auto base = reinterpret_cast<std::uint64_t>(memory.data());
  const std::uint64_t key = fi_mr_key(opened);
  // Each thread has an endpoint and a queue of its own in the one domain, with the one address vector; it talks to
  // itself, inserts addresses and registers memory meanwhile.
  std::atomic<int> wrong{0};
  const auto work = [&](std::uint64_t seed) {
    fi_cq_attr attributes{};
    attributes.format = FI_CQ_FORMAT_TAGGED;
    fid_cq* queue = nullptr;
    fid_ep* endpoint = nullptr;
    if (fi_cq_open(server.domain.get(), &attributes, &queue, nullptr) != 0 ||
        fi_endpoint(server.domain.get(), server.info.get(), &endpoint, nullptr) != 0 ||
        fi_ep_bind(endpoint, &server.addresses->fid, 0) != 0 ||
        fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV) != 0 || fi_enable(endpoint) != 0) {
      ++wrong;
      return;
    }
    char own[64];
    std::size_t bytes = sizeof own;
    fi_getname(&endpoint->fid, own, &bytes);
    const auto finish = [&](std::uint64_t flag) {
      fi_cq_tagged_entry entry{};
      while (true) {
        const ssize_t got = fi_cq_read(queue, &entry, 1);
        if (got == -FI_EAGAIN) continue;
        if (got != 1) ++wrong;
        if (got != 1 || (entry.flags & flag) != 0) return;
      }
    };
    for (std::uint64_t number = 0; number < kMessages; ++number) {
      fi_addr_t self = FI_ADDR_NOTAVAIL;
      fi_av_insert(server.addresses.get(), own, 1, &self, 0, nullptr);
      std::uint64_t received = 0;
      const std::uint64_t sent = number * 2 + seed;
      fi_trecv(endpoint, &received, 8, nullptr, FI_ADDR_UNSPEC, number, 0, nullptr);
      while (fi_tinject(endpoint, &sent, 8, self, number) == -FI_EAGAIN) fi_cq_read(queue, nullptr, 0);
      finish(FI_RECV);
      if (received != sent) ++wrong;
      char byte = 0;
      while (fi_read(endpoint, &byte, 1, nullptr, self, base + number % 4096, key, nullptr) == -FI_EAGAIN)
        fi_cq_read(queue, nullptr, 0);
      finish(FI_READ);
      if (byte != 'm') ++wrong;
      fid_mr* extra = nullptr;
      if (fi_mr_reg(server.domain.get(), &received, 8, FI_REMOTE_READ, 0, 0, 0, &extra, nullptr) != 0) ++wrong;
      fi_close(&extra->fid);
      fi_av_remove(server.addresses.get(), &self, 1, 0);
    }
    fi_close(&endpoint->fid);
    fi_close(&queue->fid);
  };
  std::thread first(work, 1);
  std::thread second(work, 2);
  first.join();
  second.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace railyard::provider_test
