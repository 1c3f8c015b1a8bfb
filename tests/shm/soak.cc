/// Eight processes send to each other at random, all to all, through the provider; some are killed at random moments
/// and started again. Every message carries its sender's life, its number and a pattern: nothing may be lost, doubled,
/// reordered or changed. Ends with a look at /dev/shm, which must hold nothing of ours.
///
///     soak-shm [SECONDS] [SEED]
#include <dirent.h>
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "fabric/shm/object.hpp"

namespace {

constexpr std::size_t kProcesses = 8;
constexpr std::size_t kMostBytes = 200'000;
constexpr std::size_t kInFlight = 4;
constexpr int kFound = 3;  ///< the exit code of a process that found something wrong

struct Head {
  std::uint32_t from = 0;
  std::uint32_t life = 0;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
};

std::string name_of(pid_t run, std::size_t process) {
  return "soak-" + std::to_string(run) + "-" + std::to_string(process);
}
char pattern(const Head& head, std::size_t at) {
  return static_cast<char>(at * 7 + at / 253 + head.number * 13 + head.life * 3 + head.from);
}

[[noreturn]] void found(const char* what, const Head& head, std::uint64_t expected) {
  std::fprintf(stderr, "soak: %s: from %u life %u number %lu bytes %lu, expected %lu\n", what, head.from, head.life,
               static_cast<unsigned long>(head.number), static_cast<unsigned long>(head.bytes),
               static_cast<unsigned long>(expected));
  ::_exit(kFound);
}
void must(int code, const char* what) {
  if (code >= 0) return;
  std::fprintf(stderr, "soak: %s: %d\n", what, code);
  ::_exit(kFound);
}

class Process {
 public:
  Process(pid_t run, std::size_t me, std::uint32_t life, std::uint32_t seed)
      : run_(run), me_(me), life_(life), random_(seed) {}

  /// `until` in seconds from now; then everybody stops sending and listens a little longer.
  void work(std::chrono::steady_clock::time_point until) {
    open();
    while (std::chrono::steady_clock::now() < until) {
      if (random_() % 64 == 0) {
        burst();
      } else {
        send_to(random_() % kProcesses);
      }
      for (int pass = 0; pass < 8; ++pass) listen();
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (std::chrono::steady_clock::now() < end) listen();
    std::fprintf(stderr, "soak: process %zu life %u received %lu\n", me_, life_, static_cast<unsigned long>(received_));
  }

 private:
  struct Message {
    std::vector<char> bytes;
    bool busy = false;
    bool done = false;  ///< a receive that is over, with `length` bytes or with none
    bool failed = false;
    std::size_t length = 0;
  };

  void open() {
    fi_info* hints = fi_allocinfo();
    hints->fabric_attr->prov_name = ::strdup("railyard");
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    fi_info* info = nullptr;
    must(fi_getinfo(FI_VERSION(1, 17), nullptr, name_of(run_, me_).c_str(), FI_SOURCE, hints, &info), "fi_getinfo");
    fi_freeinfo(hints);
    must(fi_fabric(info->fabric_attr, &fabric_, nullptr), "fi_fabric");
    must(fi_domain(fabric_, info, &domain_, nullptr), "fi_domain");
    fi_av_attr addresses{};
    must(fi_av_open(domain_, &addresses, &addresses_, nullptr), "fi_av_open");
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_TAGGED;
    must(fi_cq_open(domain_, &queue, &queue_, nullptr), "fi_cq_open");
    must(fi_endpoint(domain_, info, &endpoint_, nullptr), "fi_endpoint");
    must(fi_ep_bind(endpoint_, &addresses_->fid, 0), "bind");
    must(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "bind");
    must(fi_enable(endpoint_), "fi_enable");
    fi_freeinfo(info);
    for (std::size_t peer = 0; peer < kProcesses; ++peer) {
      const std::string address = "fi_ns://" + name_of(run_, peer);
      must(fi_av_insert(addresses_, address.c_str(), 1, &numbers_[peer], 0, nullptr), "fi_av_insert");
    }
    for (Message& buffer : receives_) post(buffer);
  }

  void post(Message& buffer) {
    buffer.bytes.resize(kMostBytes);
    must(static_cast<int>(fi_trecv(endpoint_, buffer.bytes.data(), buffer.bytes.size(), nullptr, FI_ADDR_UNSPEC, 0,
                                   ~std::uint64_t{0}, &buffer)),
         "fi_trecv");
    buffer.done = buffer.failed = false;
    posted_.push_back(&buffer);
  }
  /// Messages are matched in the order they were sent; a short one may be whole before a long one in front of it. So
  /// they are looked at in the order of their receives.
  void look_at_received() {
    while (!posted_.empty() && posted_.front()->done) {
      Message& message = *posted_.front();
      posted_.pop_front();
      check(message);
      post(message);
    }
  }

  void send_to(std::size_t peer) {
    for (Message& message : sends_) {
      if (message.busy) continue;
      const std::size_t shift = random_() % 18;
      const std::size_t bytes = sizeof(Head) + random_() % ((kMostBytes - sizeof(Head)) >> shift);
      if (put(peer, message, bytes)) message.busy = true;
      return;
    }
  }
  bool put(std::size_t peer, Message& message, std::size_t bytes) {
    const Head head{static_cast<std::uint32_t>(me_), life_, sent_[peer], bytes};
    message.bytes.resize(bytes);
    std::memcpy(message.bytes.data(), &head, sizeof head);
    for (std::size_t at = sizeof head; at < bytes; ++at) message.bytes[at] = pattern(head, at);
    if (fi_tsend(endpoint_, message.bytes.data(), bytes, nullptr, numbers_[peer], 1, &message) != 0) return false;
    ++sent_[peer];
    return true;
  }
  /// Many short ones that the receiver does not wait for.
  void burst() {
    const std::size_t peer = random_() % kProcesses;
    for (std::size_t count = random_() % 5000; count > 0; --count) {
      Head head{static_cast<std::uint32_t>(me_), life_, sent_[peer], sizeof(Head)};
      if (fi_tinject(endpoint_, &head, sizeof head, numbers_[peer], 1) != 0) return;
      ++sent_[peer];
    }
  }

  void listen() {
    fi_cq_tagged_entry entry{};
    const ssize_t got = fi_cq_read(queue_, &entry, 1);
    if (got == 1) {
      auto& message = *static_cast<Message*>(entry.op_context);
      if ((entry.flags & FI_SEND) != 0) {
        message.busy = false;
      } else {
        message.done = true;
        message.length = entry.len;
      }
    } else if (got == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      fi_cq_readerr(queue_, &error, 0);
      auto& message = *static_cast<Message*>(error.op_context);
      // A peer that is killed takes its messages along; anything else is wrong.
      if (error.err != FI_EHOSTDOWN && error.err != FI_ECONNABORTED)
        found("an error", Head{}, std::uint64_t(error.err));
      if ((error.flags & FI_SEND) != 0) {
        message.busy = false;
      } else {
        message.done = message.failed = true;
      }
    }
    look_at_received();
  }

  /// A long message whose sender was killed half-way has failed, but has its place in the order: its beginning, with
  /// the head, is there.
  void check(const Message& message) {
    Head head;
    std::memcpy(&head, message.bytes.data(), sizeof head);
    const std::size_t bytes = message.length;
    if (head.from >= kProcesses || (!message.failed && bytes != head.bytes)) found("another length", head, bytes);
    // Each life counts for itself: the rest of an earlier one may be read after the beginning of the next. The first
    // number of a life is 0 if it began in ours; of one that is older than ours we hear from the middle on.
    auto& lives = heard_[head.from];
    const bool began_in_ours = !lives.empty() && head.life > lives.rbegin()->first;
    std::uint64_t& next = lives.try_emplace(head.life, began_in_ours ? 0 : head.number).first->second;
    if (head.number != next) found("lost, doubled or reordered", head, next);
    ++next;
    if (message.failed) return;
    for (std::size_t at = sizeof head; at < bytes; ++at)
      if (message.bytes[at] != pattern(head, at)) found("changed", head, at);
    ++received_;
  }

  pid_t run_;
  std::size_t me_;
  std::uint32_t life_;
  std::minstd_rand random_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  std::array<fi_addr_t, kProcesses> numbers_{};
  std::array<std::uint64_t, kProcesses> sent_{};
  std::array<std::map<std::uint32_t, std::uint64_t>, kProcesses> heard_;  ///< next number, by life
  std::array<Message, kInFlight> sends_;
  std::array<Message, kInFlight> receives_;
  std::deque<Message*> posted_;
  std::uint64_t received_ = 0;
};

pid_t start(pid_t run, std::size_t process, std::uint32_t life, std::uint32_t seed,
            std::chrono::steady_clock::time_point until) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    Process(run, process, life, seed + static_cast<std::uint32_t>(process) * 1009 + life * 31).work(until);
    ::_exit(0);
  }
  return pid;
}

std::size_t left_over() {
  railyard::fabric::shm::remove_dead_objects(railyard::fabric::shm::kDefaultDirectory);
  std::size_t files = 0;
  DIR* const listing = ::opendir(railyard::fabric::shm::kDefaultDirectory);
  while (const dirent* entry = listing != nullptr ? ::readdir(listing) : nullptr) {
    const std::string file = entry->d_name;
    if (file.find("soak-" + std::to_string(::getpid()) + "-") != std::string::npos) ++files;
  }
  if (listing != nullptr) ::closedir(listing);
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  const long seconds = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 10;
  const auto seed = static_cast<std::uint32_t>(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1);
  ::setenv("FI_PROVIDER_PATH", RAILYARD_PROVIDER_DIR, 1);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const pid_t run = ::getpid();
  std::array<pid_t, kProcesses> pids{};
  std::array<std::uint32_t, kProcesses> lives{};
  for (std::size_t process = 0; process < kProcesses; ++process)
    pids[process] = start(run, process, ++lives[process], seed, until);
  std::minstd_rand random(seed);
  int kills = 0;
  int wrong = 0;
  while (std::chrono::steady_clock::now() + std::chrono::seconds(1) < until) {
    ::usleep(200'000 + static_cast<useconds_t>(random() % 300'000));
    const std::size_t victim = random() % kProcesses;
    ::kill(pids[victim], SIGKILL);
    int status = 0;
    ::waitpid(pids[victim], &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) ++wrong;
    ++kills;
    pids[victim] = start(run, victim, ++lives[victim], seed, until);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++wrong;
  }
  const std::size_t files = left_over();
  std::printf("soak: %ld s, seed %u, %d kills, %d processes found something wrong, %zu files left in /dev/shm\n",
              seconds, seed, kills, wrong, files);
  return wrong == 0 && files == 0 ? 0 : 1;
}
