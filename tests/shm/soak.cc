/// Eight processes send to each other at random, all to all, through the provider: messages of all sizes, and bursts of
/// up to 100,000 that nobody waits for. Some are killed at random moments and started again. Every message carries its
/// sender's incarnation, its number and a pattern: nothing may be lost, doubled, reordered or changed. At the end
/// everybody has the last message of everybody, and /dev/shm holds nothing.
///
///     soak-shm [SECONDS] [SEED]
#include <dirent.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "shm/object.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kProcesses = 8;
constexpr std::size_t kMostBytes = 200'000;
constexpr std::size_t kInFlight = 4;
constexpr std::uint64_t kFullBurst = 100'000;
constexpr int kFound = 3;  ///< the exit code of a process that found something wrong
/// Only a message that is lost takes so long.
constexpr auto kPatience = std::chrono::seconds(120);

struct Head {
  std::uint32_t from = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bursts = 0;  ///< burst messages that its sender sent here before this one
  std::uint64_t last = 0;    ///< not 0: nothing comes after this one
};

/// Burst messages have a tag for each incarnation of each sender; nobody posts a receive for them before they are
/// there.
constexpr std::uint64_t kOrdinaryTag = 1;
std::uint64_t burst_tag(std::size_t from, std::uint32_t incarnation) {
  return 2 | from << 8 | std::uint64_t{incarnation} << 32;
}

/// What all processes did, in memory that they share.
struct Totals {
  std::atomic<std::uint64_t> ordinary{0};
  std::atomic<std::uint64_t> burst{0};
  std::atomic<std::uint64_t> full_bursts{0};  ///< of which 100,000 messages lay unexpected when the first was received
  std::atomic<std::uint64_t> deepest{0};
};
Totals* totals = nullptr;

std::string name_of(pid_t run, std::size_t process) {
  return "soak-" + std::to_string(run) + "-" + std::to_string(process);
}
char pattern(const Head& head, std::size_t at) {
  return static_cast<char>(at * 7 + at / 253 + head.number * 13 + head.incarnation * 3 + head.from);
}
void fill(std::vector<char>& bytes, const Head& head) {
  bytes.resize(head.bytes);
  std::memcpy(bytes.data(), &head, sizeof head);
  for (std::size_t at = sizeof head; at < head.bytes; ++at) bytes[at] = pattern(head, at);
}

[[noreturn]] void found(const char* what, const Head& head, std::uint64_t expected) {
  std::fprintf(stderr, "soak: %s: from %u incarnation %u number %lu bytes %lu bursts %lu, expected %lu\n", what,
               head.from, head.incarnation, static_cast<unsigned long>(head.number),
               static_cast<unsigned long>(head.bytes), static_cast<unsigned long>(head.bursts),
               static_cast<unsigned long>(expected));
  ::_exit(kFound);
}
void must(int code, const char* what) {
  if (code >= 0) return;
  std::fprintf(stderr, "soak: %s: %d\n", what, code);
  ::_exit(kFound);
}
void check_pattern(const char* bytes, const Head& head) {
  for (std::size_t at = sizeof head; at < head.bytes; ++at)
    if (bytes[at] != pattern(head, at)) found("changed", head, at);
}

class Process {
 public:
  Process(pid_t run, std::size_t me, std::uint32_t incarnation, std::uint32_t seed)
      : run_(run), me_(me), incarnation_(incarnation), random_(seed) {}

  /// Sends and listens until the time, then until everybody's last message is here.
  void work(Clock::time_point until) {
    open();
    while (Clock::now() < until) {
      if (burst_left_ == 0 && random_() % 512 == 0) begin_burst();
      if (burst_left_ != 0) go_on_with_burst();
      if (random_() % 4 == 0) send_to(random_() % kProcesses, false);
      for (int pass = 0; pass < 8; ++pass) listen();
    }
    const auto end = Clock::now() + kPatience;
    while (burst_left_ != 0) {
      go_on_with_burst();
      listen();
      if (Clock::now() > end) found("the rest of a burst does not go out", Head{}, burst_left_);
    }
    std::size_t told = 0;
    while (told < kProcesses || !all_have_ended()) {
      if (told < kProcesses && send_to(told, true)) ++told;
      listen();
      if (Clock::now() > end) say_who_is_missing(told);
    }
    must(fi_close(&endpoint_->fid), "fi_close");
  }

 private:
  struct Message {
    std::vector<char> bytes;
    bool busy = false;
    bool done = false;  ///< a receive that is over, with `length` bytes or with none
    bool failed = false;
    std::size_t length = 0;
  };
  /// What was heard of one incarnation of a sender.
  struct Heard {
    std::uint64_t next = 0;
    std::uint64_t next_burst = 0;
    bool from_its_beginning = false;
    bool some_burst = false;
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
    must(static_cast<int>(fi_trecv(endpoint_, buffer.bytes.data(), buffer.bytes.size(), nullptr, FI_ADDR_UNSPEC,
                                   kOrdinaryTag, 0, &buffer)),
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

  /// True when it is on its way. A peer that a burst goes to gets nothing else: all of it comes before the next.
  bool send_to(std::size_t peer, bool last) {
    if (burst_left_ != 0 && peer == burst_peer_) return false;
    for (Message& message : sends_) {
      if (message.busy) continue;
      const std::size_t shift = random_() % 18;
      const std::size_t bytes = sizeof(Head) + random_() % ((kMostBytes - sizeof(Head)) >> shift);
      const Head head{
          static_cast<std::uint32_t>(me_), incarnation_, sent_[peer], bytes, burst_sent_[peer], last ? 1U : 0U};
      fill(message.bytes, head);
      if (fi_tsend(endpoint_, message.bytes.data(), bytes, nullptr, numbers_[peer], kOrdinaryTag, &message) != 0)
        return false;
      ++sent_[peer];
      message.busy = true;
      return true;
    }
    return false;
  }

  void begin_burst() {
    burst_peer_ = random_() % kProcesses;
    burst_left_ = random_() % 4 == 0 ? kFullBurst : random_() % 5000;
  }
  /// As much of it as fits now.
  void go_on_with_burst() {
    std::vector<char>& bytes = burst_bytes_;
    while (burst_left_ != 0) {
      std::uint64_t& number = burst_sent_[burst_peer_];
      const std::size_t size = sizeof(Head) + (number % 8 == 0 ? number % 300 : 0);
      fill(bytes, {static_cast<std::uint32_t>(me_), incarnation_, number, size, number, 0});
      if (fi_tinject(endpoint_, bytes.data(), size, numbers_[burst_peer_], burst_tag(me_, incarnation_)) != 0) break;
      ++number;
      --burst_left_;
    }
    // What announces it.
    if (burst_left_ == 0) send_to(burst_peer_, false);
  }

  void listen() {
    read_one();
    look_at_received();
  }
  bool read_one() {
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
      // A peer that is killed takes its messages along, and a burst may be over; anything else is wrong.
      if (error.err != FI_EHOSTDOWN && error.err != FI_ECONNABORTED && error.err != FI_ENOMSG)
        found("an error", Head{}, std::uint64_t(error.err));
      if ((error.flags & FI_SEND) != 0) {
        message.busy = false;
      } else {
        message.done = message.failed = true;
      }
    }
    return got == 1 || got == -FI_EAVAIL;
  }

  /// A long message whose sender was killed half-way has failed, but has its place in the order: its beginning, with
  /// the head, is there.
  void check(const Message& message) {
    Head head;
    std::memcpy(&head, message.bytes.data(), sizeof head);
    const std::size_t bytes = message.length;
    if (head.from >= kProcesses || (!message.failed && bytes != head.bytes)) found("another length", head, bytes);
    // Each incarnation counts for itself: the rest of an earlier one may be read after the beginning of the next. The
    // first number of an incarnation is 0 if it began in ours; of one that is older than ours we hear from the middle
    // on.
    auto& incarnations = heard_[head.from];
    const bool began_in_ours = !incarnations.empty() && head.incarnation > incarnations.rbegin()->first;
    const auto [entry, first_of_incarnation] = incarnations.try_emplace(head.incarnation);
    Heard& heard = entry->second;
    if (first_of_incarnation) {
      heard.next = began_in_ours ? 0 : head.number;
      heard.from_its_beginning = began_in_ours;
    }
    if (head.number != heard.next) found("lost, doubled or reordered", head, heard.next);
    ++heard.next;
    if (head.last != 0) ended_[head.from] = true;
    if (!message.failed) check_pattern(message.bytes.data(), head);
    totals->ordinary.fetch_add(1, std::memory_order_relaxed);
    take_bursts(head, heard);
    // What an earlier incarnation sent and did not live to announce.
    for (auto& [incarnation, earlier] : incarnations)
      if (incarnation < head.incarnation) take_unannounced(head.from, incarnation, earlier);
  }

  /// All burst messages that were sent before `head` are here, unexpected: each receive ends at once.
  void take_bursts(const Head& head, Heard& heard) {
    if (!heard.some_burst && !heard.from_its_beginning && head.bursts != 0) {
      // Of an older incarnation than ours: the first that is here tells where we came in.
      if (!take_one_burst(head.from, head.incarnation, heard)) {
        heard.next_burst = head.bursts;
        heard.some_burst = true;
      }
    }
    // That first one may have been sent after `head`.
    if (heard.next_burst >= head.bursts) return;
    const std::uint64_t depth = head.bursts - heard.next_burst;
    if (depth >= kFullBurst - 1) totals->full_bursts.fetch_add(1, std::memory_order_relaxed);
    if (depth > totals->deepest.load(std::memory_order_relaxed))
      totals->deepest.store(depth, std::memory_order_relaxed);
    while (heard.next_burst < head.bursts)
      if (!take_one_burst(head.from, head.incarnation, heard))
        found("lost a message of a burst", head, heard.next_burst);
  }
  void take_unannounced(std::uint32_t from, std::uint32_t incarnation, Heard& heard) {
    while (take_one_burst(from, incarnation, heard)) {
    }
  }
  /// False: there is none.
  bool take_one_burst(std::uint32_t from, std::uint32_t incarnation, Heard& heard) {
    fi_msg_tagged wanted{};
    const iovec iov{burst_receive_.bytes.data(), burst_receive_.bytes.size()};
    wanted.msg_iov = &iov;
    wanted.iov_count = 1;
    wanted.addr = FI_ADDR_UNSPEC;
    wanted.tag = burst_tag(from, incarnation);
    wanted.context = &burst_receive_;
    if (!run_burst_receive(wanted, FI_PEEK | FI_CLAIM)) return false;
    if (!run_burst_receive(wanted, FI_CLAIM)) found("a claimed message is not there", Head{from, incarnation}, 0);
    Head head;
    std::memcpy(&head, burst_receive_.bytes.data(), sizeof head);
    if (head.from != from || head.incarnation != incarnation || head.bytes != burst_receive_.length)
      found("another message of a burst", head, burst_receive_.length);
    if (!heard.some_burst && !heard.from_its_beginning) heard.next_burst = head.number;
    heard.some_burst = true;
    if (head.number != heard.next_burst) found("lost, doubled or reordered in a burst", head, heard.next_burst);
    ++heard.next_burst;
    check_pattern(burst_receive_.bytes.data(), head);
    totals->burst.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  bool run_burst_receive(const fi_msg_tagged& wanted, std::uint64_t flags) {
    burst_receive_.done = burst_receive_.failed = false;
    must(static_cast<int>(fi_trecvmsg(endpoint_, &wanted, flags)), "fi_trecvmsg");
    while (!burst_receive_.done)
      if (!read_one()) found("a receive of what is here did not end", Head{}, wanted.tag);
    return !burst_receive_.failed;
  }

  [[noreturn]] void say_who_is_missing(std::size_t told) const {
    std::string text;
    for (std::size_t peer = 0; peer < kProcesses; ++peer)
      if (!ended_[peer]) text += " " + std::to_string(peer);
    std::size_t busy = 0;
    for (const Message& message : sends_) busy += message.busy ? 1 : 0;
    std::fprintf(stderr,
                 "soak: process %zu incarnation %u told %zu, %zu sends are not over, and waits for the last of:%s\n",
                 me_, incarnation_, told, busy, text.c_str());
    ::_exit(kFound);
  }
  bool all_have_ended() const {
    for (const bool ended : ended_)
      if (!ended) return false;
    for (const Message& message : sends_)
      if (message.busy) return false;
    return true;
  }

  pid_t run_;
  std::size_t me_;
  std::uint32_t incarnation_;
  std::minstd_rand random_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  std::array<fi_addr_t, kProcesses> numbers_{};
  std::array<std::uint64_t, kProcesses> sent_{};
  std::array<std::uint64_t, kProcesses> burst_sent_{};
  std::size_t burst_peer_ = 0;
  std::uint64_t burst_left_ = 0;
  std::vector<char> burst_bytes_;
  std::array<std::map<std::uint32_t, Heard>, kProcesses> heard_;  ///< by incarnation
  std::array<bool, kProcesses> ended_{};
  std::array<Message, kInFlight> sends_;
  std::array<Message, kInFlight> receives_;
  Message burst_receive_{.bytes = std::vector<char>(1024)};
  std::deque<Message*> posted_;
};

pid_t start(pid_t run, std::size_t process, std::uint32_t incarnation, std::uint32_t seed, Clock::time_point until) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    Process(run, process, incarnation, seed + static_cast<std::uint32_t>(process) * 1009 + incarnation * 31)
        .work(until);
    ::_exit(0);
  }
  return pid;
}

/// A /dev/shm of our own, where the system lets us: then it must be empty at the end, whoever made what.
bool own_shared_memory() {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("soak", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, nullptr) == 0;
}
std::size_t left_over(bool own) {
  std::size_t files = 0;
  DIR* const listing = ::opendir("/dev/shm");
  while (const dirent* entry = listing != nullptr ? ::readdir(listing) : nullptr) {
    const std::string file = entry->d_name;
    const bool ours = own ? file[0] != '.' : file.find("soak-" + std::to_string(::getpid()) + "-") != std::string::npos;
    files += ours ? 1 : 0;
  }
  if (listing != nullptr) ::closedir(listing);
  return files;
}

/// 1 where the process found something wrong. One that was killed has an excuse.
int outcome(pid_t pid, bool killed) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  const bool good =
      (WIFEXITED(status) && WEXITSTATUS(status) == 0) || (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const long seconds = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 10;
  const auto seed = static_cast<std::uint32_t>(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1);
  if (::getenv("FI_PROVIDER_PATH") == nullptr) ::setenv("FI_PROVIDER_PATH", RAILYARD_PROVIDER_DIR, 1);
  const bool own = own_shared_memory();
  void* const shared = ::mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  totals = new (shared) Totals;
  const auto until = Clock::now() + std::chrono::seconds(seconds);
  const pid_t run = ::getpid();
  std::array<pid_t, kProcesses> pids{};
  std::array<std::uint32_t, kProcesses> incarnations{};
  for (std::size_t process = 0; process < kProcesses; ++process)
    pids[process] = start(run, process, ++incarnations[process], seed, until);
  std::minstd_rand random(seed);
  int kills = 0;
  int wrong = 0;
  // The last seconds without: what is sent at the end goes to those who are there.
  while (Clock::now() + std::chrono::seconds(2) < until && wrong == 0) {
    ::usleep(300'000 + static_cast<useconds_t>(random() % 700'000));
    const std::size_t victim = random() % kProcesses;
    ::kill(pids[victim], SIGKILL);
    wrong += outcome(pids[victim], true);
    ++kills;
    pids[victim] = start(run, victim, ++incarnations[victim], seed, until);
  }
  for (const pid_t pid : pids) wrong += outcome(pid, false);
  const std::size_t files = left_over(own);
  const std::uint64_t full = totals->full_bursts.load();
  // Too short a run may end before the first of them does.
  const bool deep_enough = seconds < 30 || full != 0;
  std::printf(
      "soak: %ld s, seed %u: %d kills, %lu messages, %lu in bursts, %lu bursts of 100,000 unexpected (deepest %lu), "
      "%d processes found something wrong, %zu files left in %s/dev/shm\n",
      seconds, seed, kills, static_cast<unsigned long>(totals->ordinary.load()),
      static_cast<unsigned long>(totals->burst.load()), static_cast<unsigned long>(full),
      static_cast<unsigned long>(totals->deepest.load()), wrong, files, own ? "its own " : "");
  return wrong == 0 && files == 0 && deep_enough ? 0 : 1;
}
