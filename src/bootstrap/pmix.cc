#include "bootstrap/pmix.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "base/bytes.hpp"
#include "base/log.hpp"
#include "base/shared_library.hpp"
#include "bootstrap/pmix_library.hpp"
#include "bootstrap/protocol.hpp"

namespace railyard::bootstrap {

namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

/// A flag as PMIx takes it. Its value needs no release.
struct Flag {
  explicit Flag(const PmixLibrary& pmix, const char* name, bool value = true) {
    std::memset(&info, 0, sizeof(info));
    pmix.load_info(&info, name, &value, PMIX_BOOL);
  }
  pmix_info_t info;
};

/// A fence under way. Shared with PMIx's own thread, which may come to its end after the asker has given up.
struct Fence {
  /// Barriers collect too: of a fence without data Slurm's server says that it is over when the ranks of its own host
  /// are there.
  explicit Fence(const PmixLibrary& pmix) : collect_data(pmix, PMIX_COLLECT_DATA) {}

  const Flag collect_data;
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<pmix_status_t> status;  ///< guarded by mutex

  /// Nothing when the deadline passes first.
  std::optional<pmix_status_t> wait(std::optional<SteadyTime> deadline) {
    std::unique_lock lock(mutex);
    const auto there = [this] { return status.has_value(); };
    if (deadline) {
      ended.wait_until(lock, *deadline, there);
    } else {
      ended.wait(lock, there);
    }
    return status;
  }
};

void on_fence(pmix_status_t status, void* handed) {
  const std::unique_ptr<std::shared_ptr<Fence>> owner(static_cast<std::shared_ptr<Fence>*>(handed));
  Fence& fence = **owner;
  {
    const std::lock_guard lock(fence.mutex);
    fence.status = status;
  }
  fence.ended.notify_all();
}

Error pmix_error(const PmixLibrary& pmix, std::string_view what, pmix_status_t status) {
  return Error(Status::io, fmt::format("PMIx: {}: {}", what, pmix.error_string(status)));
}

/// A value that PMIx has handed over.
struct ReleaseValue {
  const PmixLibrary* pmix;
  void operator()(pmix_value_t* value) const {
    pmix->destruct_value(value);
    free(value);  // NOLINT(cppcoreguidelines-no-malloc): as PMIX_VALUE_RELEASE does
  }
};
using Value = std::unique_ptr<pmix_value_t, ReleaseValue>;

struct Answer {
  pmix_status_t status = PMIX_SUCCESS;
  Value value;  ///< null when the status is an error
};

Answer get_value(const PmixLibrary& pmix, const pmix_proc_t& process, const char* key, const Flag* flag = nullptr) {
  pmix_value_t* value = nullptr;
  const pmix_status_t status =
      pmix.get(&process, key, flag == nullptr ? nullptr : &flag->info, flag == nullptr ? 0 : 1, &value);
  if (status == PMIX_SUCCESS && value == nullptr) return {PMIX_ERR_NOT_FOUND, Value(nullptr, {&pmix})};
  return {status, Value(status == PMIX_SUCCESS ? value : nullptr, {&pmix})};
}

/// What one rank left for one call.
struct Contribution {
  Call call = Call::barrier;
  std::vector<std::byte> bytes;
};

class Pmix final : public Bootstrap {
 public:
  Pmix(const PmixLibrary& pmix, const pmix_proc_t& self, int size, std::set<int> local, std::int64_t timeout_ns)
      : pmix_(pmix), self_(self), size_(size), local_(std::move(local)), timeout_ns_(timeout_ns) {}
  ~Pmix() override { pmix_.finalize(nullptr, 0); }

  int rank() const override { return static_cast<int>(self_.rank); }
  int size() const override { return size_; }
  std::string describe() const override { return fmt::format("pmix {}", self_.nspace); }

  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override {
    if (mine.size() > kMostContribution) {
      return Error(Status::out_of_range,
                   fmt::format("a contribution of {} bytes to an allgather is too long: at most {}", mine.size(),
                               kMostContribution));
    }
    return meet(Call::allgather, mine, deadline);
  }

  Result<void> barrier(Deadline deadline) override {
    if (auto met = meet(Call::barrier, {}, deadline); !met) return std::move(met.error());
    return {};
  }

 private:
  static std::string key_of(std::uint64_t number) { return fmt::format("railyard.{}", number); }

  /// Leaves the call and `mine` under this call's key, waits for everybody, and returns what each has left. A barrier
  /// leaves a key too: that is how it can be told who is missing, and who makes another call.
  Result<std::vector<std::vector<std::byte>>> meet(Call call, std::span<const std::byte> mine, Deadline deadline) {
    // The analyzer loses sight of what it moved into a variant.
    if (broken_) return broken_->copy();  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
    const std::uint64_t number = calls_++;
    const std::int64_t timeout_ns = deadline.nanoseconds(timeout_ns_);
    const auto until = timeout_ns == INT64_MAX
                           ? std::optional<SteadyTime>()
                           : std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
    if (auto published = publish(call, number, mine); !published) return give_up(published.error());

    const auto fence = std::make_shared<Fence>(pmix_);
    auto handed = std::make_unique<std::shared_ptr<Fence>>(fence);
    const pmix_status_t begun = pmix_.fence(nullptr, 0, &fence->collect_data.info, 1, on_fence, handed.get());
    if (begun == PMIX_SUCCESS) {
      static_cast<void>(handed.release());  // PMIx has it now
      const auto ended = fence->wait(until);
      if (!ended) return give_up(missing(call, number, show_duration(static_cast<std::uint64_t>(timeout_ns))));
      if (*ended != PMIX_SUCCESS)
        return give_up(pmix_error(pmix_, fmt::format("{} {} failed", to_string(call), number), *ended));
    } else if (begun != PMIX_OPERATION_SUCCEEDED) {
      return give_up(pmix_error(pmix_, "cannot fence", begun));
    }
    return all_of(call, number);
  }

  /// What every rank left for a call that all have entered.
  Result<std::vector<std::vector<std::byte>>> all_of(Call call, std::uint64_t number) {
    std::vector<std::vector<std::byte>> gathered;
    for (int rank = 0; rank < size_; ++rank) {
      auto contribution = ask(rank, number);
      if (!contribution) return give_up(contribution.error());
      if (contribution->call != call) return give_up(difference(call, number, rank, contribution->call));
      gathered.push_back(std::move(contribution->bytes));
    }
    return gathered;
  }

  Result<void> publish(Call call, std::uint64_t number, std::span<const std::byte> mine) const {
    ByteWriter writer;
    writer.u8(static_cast<std::uint8_t>(call));
    writer.raw(mine);
    std::vector<std::byte> content = writer.take();
    pmix_value_t value;
    std::memset(&value, 0, sizeof(value));
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo.bytes = reinterpret_cast<char*>(content.data());
    value.data.bo.size = content.size();
    pmix_status_t status = pmix_.put(PMIX_GLOBAL, key_of(number).c_str(), &value);
    if (status == PMIX_SUCCESS) status = pmix_.commit();
    if (status != PMIX_SUCCESS) return pmix_error(pmix_, "cannot publish", status);
    return {};
  }

  /// What `rank` left for a call, if it is known here: at once, or not at all.
  Result<Contribution> ask(int rank, std::uint64_t number) const {
    pmix_proc_t peer = self_;
    peer.rank = static_cast<pmix_rank_t>(rank);
    const Flag immediate(pmix_, PMIX_IMMEDIATE);
    const auto [status, value] = get_value(pmix_, peer, key_of(number).c_str(), &immediate);
    if (value == nullptr) {
      return pmix_error(pmix_, fmt::format("what rank {} left for call {} is not there", rank, number), status);
    }
    Contribution contribution;
    bool sound = value->type == PMIX_BYTE_OBJECT;
    if (sound) {
      ByteReader reader(std::as_bytes(std::span(value->data.bo.bytes, value->data.bo.size)));
      contribution.call = static_cast<Call>(reader.u8());
      sound = reader.ok();
      const auto bytes = reader.raw(reader.remaining());
      contribution.bytes.assign(bytes.begin(), bytes.end());
    }
    if (!sound) return Error(Status::io, fmt::format("what rank {} left for call {} is malformed", rank, number));
    return contribution;
  }

  Error difference(Call call, std::uint64_t number, int other_rank, Call other_call) const {
    return Error(
        Status::invalid,
        fmt::format("rank {} made {} as its call number {}, rank {} made {}: every rank must make the same collective "
                    "calls in the same order",
                    other_rank, to_string(other_call), number, rank(), to_string(call)),
        {.peer = other_rank, .operation = to_string(call)});
  }

  /// The error of a call that not everybody has entered. Of the ranks of this host it is known who has; what those of
  /// other hosts left comes here only with the end of the fence.
  Error missing(Call call, std::uint64_t number, const std::string& waited) const {
    std::vector<std::int32_t> ranks;
    for (const int rank : local_) {
      if (!ask(rank, number)) ranks.push_back(rank);
    }
    const std::string who = !ranks.empty()                        ? fmt::format("{} of {}", list_ranks(ranks), size_)
                            : std::cmp_less(local_.size(), size_) ? "a rank on another host"
                                                                  : "PMIx itself, with every rank there,";
    return Error(
        Status::timeout,
        fmt::format("{} did not enter {} {} within {}; check that every rank runs and makes the same calls in the "
                    "same order",
                    who, to_string(call), number, waited),
        {.peer = ranks.empty() ? -1 : ranks.front(), .operation = to_string(call)});
  }

  Error give_up(const Error& error) {
    broken_.emplace(error.copy());
    return error.copy();  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
  }

  const PmixLibrary& pmix_;
  const pmix_proc_t self_;
  const int size_;
  const std::set<int> local_;  ///< the ranks of this host
  const std::int64_t timeout_ns_;
  std::uint64_t calls_ = 0;
  std::optional<Error> broken_;
};

/// The ranks of the job on this host; at least this one.
std::set<int> local_ranks(const PmixLibrary& pmix, const pmix_proc_t& self, const pmix_proc_t& job) {
  std::set<int> ranks = {static_cast<int>(self.rank)};
  const auto [status, value] = get_value(pmix, job, PMIX_LOCAL_PEERS);
  if (value != nullptr && value->type == PMIX_STRING && value->data.string != nullptr) {
    std::istringstream list(value->data.string);
    for (int rank = 0; list >> rank; list.ignore(1)) ranks.insert(rank);
  }
  return ranks;
}

Result<int> job_size(const PmixLibrary& pmix, const pmix_proc_t& self, const pmix_proc_t& job) {
  const auto [status, value] = get_value(pmix, job, PMIX_JOB_SIZE);
  if (value == nullptr) return pmix_error(pmix, "the job's size is not known", status);
  const std::uint32_t size = value->type == PMIX_UINT32 ? value->data.uint32 : 0;
  if (size == 0 || size > static_cast<std::uint32_t>(kMostRanks) || self.rank >= size) {
    return Error(Status::out_of_range,
                 fmt::format("PMIx says rank {} of {}: a job has 1 to {} ranks", self.rank, size, kMostRanks));
  }
  return static_cast<int>(size);
}

/// It loads PMIx's plugins.
pmix_status_t initialize(const PmixLibrary& pmix, pmix_proc_t& self) {
  const KeepSignals keep;
  return pmix.init(&self, nullptr, 0);
}

}  // namespace

bool started_by_pmix() { return getenv("PMIX_RANK") != nullptr && getenv("PMIX_NAMESPACE") != nullptr; }

Result<std::unique_ptr<Bootstrap>> open_pmix(std::int64_t timeout_ns) {
  const auto loaded = pmix_library();
  if (!loaded) return loaded.error().copy();
  const PmixLibrary& pmix = **loaded;
  pmix_proc_t self;
  std::memset(&self, 0, sizeof(self));
  if (const pmix_status_t status = initialize(pmix, self); status != PMIX_SUCCESS) {
    return Error(Status::not_found,
                 fmt::format("no PMIx server answers ({}): start the ranks with mpirun, prun or srun --mpi=pmix",
                             pmix.error_string(status)));
  }
  pmix_proc_t job = self;
  job.rank = PMIX_RANK_WILDCARD;
  auto size = job_size(pmix, self, job);
  if (!size) {
    pmix.finalize(nullptr, 0);
    return std::move(size.error());
  }
  return std::unique_ptr<Bootstrap>(
      std::make_unique<Pmix>(pmix, self, *size, local_ranks(pmix, self, job), timeout_ns));
}

}  // namespace railyard::bootstrap
