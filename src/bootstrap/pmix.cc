#include "bootstrap/pmix.hpp"

#include <stdlib.h>

namespace railyard::bootstrap {

bool started_by_pmix() { return getenv("PMIX_RANK") != nullptr && getenv("PMIX_NAMESPACE") != nullptr; }

}  // namespace railyard::bootstrap

#ifndef RAILYARD_HAVE_PMIX

namespace railyard::bootstrap {

Result<std::unique_ptr<Bootstrap>> open_pmix(std::int64_t) {
  return Error(Status::unsupported,
               "this build of Railyard has no PMIx: install libpmix-dev and build again, or set RAILYARD_RENDEZVOUS, "
               "RAILYARD_RANK, RAILYARD_SIZE and RAILYARD_JOB_KEY");
}

}  // namespace railyard::bootstrap

#else

#include <fmt/format.h>
#include <pmix.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "bootstrap/protocol.hpp"

namespace railyard::bootstrap {

namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

/// How long to ask who has arrived once a call's time is up.
constexpr auto kAskMissing = std::chrono::seconds(1);

/// One answer from PMIx's own thread. Shared with it: an answer may come after the asker has given up.
struct Answer {
  std::mutex mutex;
  std::condition_variable arrived;
  std::optional<pmix_status_t> status;
  std::vector<std::byte> bytes;

  /// Nothing when the deadline passes first.
  std::optional<pmix_status_t> wait(std::optional<SteadyTime> deadline) {
    std::unique_lock lock(mutex);
    const auto there = [this] { return status.has_value(); };
    if (deadline) {
      arrived.wait_until(lock, *deadline, there);
    } else {
      arrived.wait(lock, there);
    }
    return status;
  }
};
using SharedAnswer = std::shared_ptr<Answer>;

/// What PMIx hands back to its callbacks: a reference of its own.
void* hand_over(const SharedAnswer& answer) { return new SharedAnswer(answer); }
SharedAnswer take_back(void* handed) {
  const std::unique_ptr<SharedAnswer> owner(static_cast<SharedAnswer*>(handed));
  return *owner;
}

void finish(const SharedAnswer& answer, pmix_status_t status) {
  {
    const std::lock_guard lock(answer->mutex);
    answer->status = status;
  }
  answer->arrived.notify_all();
}

void on_fence(pmix_status_t status, void* handed) { finish(take_back(handed), status); }

void on_value(pmix_status_t status, pmix_value_t* value, void* handed) {
  const SharedAnswer answer = take_back(handed);
  if (status == PMIX_SUCCESS && value != nullptr) {
    if (value->type == PMIX_BYTE_OBJECT) {
      const auto* data = reinterpret_cast<const std::byte*>(value->data.bo.bytes);
      answer->bytes.assign(data, data + value->data.bo.size);
    } else {
      status = PMIX_ERR_TYPE_MISMATCH;
    }
  }
  finish(answer, status);
}

Error pmix_error(std::string_view what, pmix_status_t status) {
  return Error(Status::io, fmt::format("PMIx: {}: {}", what, PMIx_Error_string(status)));
}

class Pmix final : public Bootstrap {
 public:
  Pmix(const pmix_proc_t& self, int size, std::int64_t timeout_ns)
      : self_(self), size_(size), timeout_ns_(timeout_ns) {}
  ~Pmix() override { PMIx_Finalize(nullptr, 0); }

  int rank() const override { return static_cast<int>(self_.rank); }
  int size() const override { return size_; }
  std::string describe() const override { return fmt::format("pmix {}", self_.nspace); }

  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override {
    if (mine.size() > kMostContribution) {
      return Error(Status::out_of_range,
                   fmt::format("a contribution of {} bytes to an allgather is too long: at most {}", mine.size(),
                               kMostContribution));
    }
    const auto until = when(deadline);
    if (auto met = meet(Call::allgather, mine, deadline, until); !met) return std::move(met.error());
    std::vector<SharedAnswer> answers;
    for (int rank = 0; rank < size_; ++rank) answers.push_back(ask(rank, Call::allgather, calls_ - 1));
    std::vector<std::vector<std::byte>> gathered;
    for (int rank = 0; rank < size_; ++rank) {
      const SharedAnswer& answer = answers[static_cast<std::size_t>(rank)];
      const auto status = answer->wait(until);
      if (!status) {
        return give_up(Error(Status::timeout,
                             fmt::format("PMIx did not deliver the contribution of rank {} to allgather {} within {}",
                                         rank, calls_ - 1, shown(deadline)),
                             {.peer = rank, .operation = "allgather"}));
      }
      if (*status != PMIX_SUCCESS) {
        return give_up(pmix_error(fmt::format("the contribution of rank {} to call {}, an allgather here, is not there "
                                              "(does every rank make the same calls in the same order?)",
                                              rank, calls_ - 1),
                                  *status));
      }
      gathered.push_back(std::move(answer->bytes));
    }
    return gathered;
  }

  Result<void> barrier(Deadline deadline) override { return meet(Call::barrier, {}, deadline, when(deadline)); }

 private:
  std::optional<SteadyTime> when(Deadline deadline) const {
    const std::int64_t nanoseconds = deadline.nanoseconds(timeout_ns_);
    if (nanoseconds == INT64_MAX) return std::nullopt;
    return std::chrono::steady_clock::now() + std::chrono::nanoseconds(nanoseconds);
  }
  std::string shown(Deadline deadline) const {
    return show_duration(static_cast<std::uint64_t>(deadline.nanoseconds(timeout_ns_)));
  }

  static std::string key_of(Call call, std::uint64_t number) {
    return fmt::format("railyard.{}.{}", to_string(call), number);
  }

  /// Leaves `mine` under this call's key and waits for everybody. A barrier leaves a key too: that is how it can be
  /// told who is missing.
  Result<void> meet(Call call, std::span<const std::byte> mine, Deadline deadline, std::optional<SteadyTime> until) {
    if (broken_) return broken_->copy();
    const std::uint64_t number = calls_++;
    std::vector<std::byte> content(mine.begin(), mine.end());
    pmix_value_t value;
    std::memset(&value, 0, sizeof(value));
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo.bytes = reinterpret_cast<char*>(content.data());
    value.data.bo.size = content.size();
    pmix_status_t status = PMIx_Put(PMIX_GLOBAL, key_of(call, number).c_str(), &value);
    if (status == PMIX_SUCCESS) status = PMIx_Commit();
    if (status != PMIX_SUCCESS) return give_up(pmix_error("cannot publish", status));

    const auto answer = std::make_shared<Answer>();
    bool collect = call == Call::allgather;
    pmix_info_t info;
    std::memset(&info, 0, sizeof(info));
    PMIx_Info_load(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    void* const handed = hand_over(answer);
    status = PMIx_Fence_nb(nullptr, 0, &info, 1, on_fence, handed);
    if (status != PMIX_SUCCESS) take_back(handed);
    if (status == PMIX_OPERATION_SUCCEEDED) return {};
    if (status != PMIX_SUCCESS) return give_up(pmix_error("cannot fence", status));
    const auto fenced = answer->wait(until);
    if (!fenced) return give_up(missing(call, number, shown(deadline)));
    if (*fenced != PMIX_SUCCESS)
      return give_up(pmix_error(fmt::format("{} {} failed", to_string(call), number), *fenced));
    return {};
  }

  /// Asks for what `rank` left for a call. Does not wait.
  SharedAnswer ask(int rank, Call call, std::uint64_t number) const {
    pmix_proc_t peer = self_;
    peer.rank = static_cast<pmix_rank_t>(rank);
    auto answer = std::make_shared<Answer>();
    void* const handed = hand_over(answer);
    const pmix_status_t status = PMIx_Get_nb(&peer, key_of(call, number).c_str(), nullptr, 0, on_value, handed);
    if (status != PMIX_SUCCESS) {
      take_back(handed);
      finish(answer, status);
    }
    return answer;
  }

  /// The error of a call that not everybody has entered: those whose key is there have.
  Error missing(Call call, std::uint64_t number, const std::string& waited) const {
    std::vector<SharedAnswer> answers;
    for (int rank = 0; rank < size_; ++rank) answers.push_back(ask(rank, call, number));
    const auto until = std::chrono::steady_clock::now() + kAskMissing;
    std::vector<std::int32_t> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if (answers[static_cast<std::size_t>(rank)]->wait(until) != PMIX_SUCCESS) ranks.push_back(rank);
    }
    if (ranks.empty()) {
      return Error(Status::timeout,
                   fmt::format("PMIx did not complete {} {} within {}", to_string(call), number, waited),
                   {.operation = to_string(call)});
    }
    return Error(
        Status::timeout,
        fmt::format("{} of {} did not enter {} {} within {}; check that every rank makes the same calls in the "
                    "same order",
                    list_ranks(ranks), size_, to_string(call), number, waited),
        {.peer = ranks.front(), .operation = to_string(call)});
  }

  Error give_up(Error error) {
    broken_ = error.copy();
    return error;
  }

  const pmix_proc_t self_;
  const int size_;
  const std::int64_t timeout_ns_;
  std::uint64_t calls_ = 0;
  std::optional<Error> broken_;
};

}  // namespace

Result<std::unique_ptr<Bootstrap>> open_pmix(std::int64_t timeout_ns) {
  pmix_proc_t self;
  std::memset(&self, 0, sizeof(self));
  if (const pmix_status_t status = PMIx_Init(&self, nullptr, 0); status != PMIX_SUCCESS) {
    return Error(Status::not_found,
                 fmt::format("no PMIx server answers ({}): start the ranks with mpirun, prun or srun --mpi=pmix",
                             PMIx_Error_string(status)));
  }
  pmix_proc_t job = self;
  job.rank = PMIX_RANK_WILDCARD;
  pmix_value_t* value = nullptr;
  const pmix_status_t status = PMIx_Get(&job, PMIX_JOB_SIZE, nullptr, 0, &value);
  if (status != PMIX_SUCCESS || value == nullptr || value->type != PMIX_UINT32) {
    PMIx_Finalize(nullptr, 0);
    return pmix_error("the job's size is not known", status);
  }
  const std::uint32_t size = value->data.uint32;
  PMIX_VALUE_RELEASE(value);
  if (size == 0 || size > static_cast<std::uint32_t>(kMostRanks) || self.rank >= size) {
    PMIx_Finalize(nullptr, 0);
    return Error(Status::out_of_range,
                 fmt::format("PMIx says rank {} of {}: at most {} ranks", self.rank, size, kMostRanks));
  }
  return std::unique_ptr<Bootstrap>(std::make_unique<Pmix>(self, static_cast<int>(size), timeout_ns));
}

}  // namespace railyard::bootstrap

#endif
