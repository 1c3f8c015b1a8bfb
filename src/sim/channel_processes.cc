#include "sim/channel_processes.hpp"

#include <algorithm>

#include "base/random.hpp"

namespace railyard::sim {

namespace {

constexpr std::int64_t kShortIdle = 10'000;
constexpr std::int64_t kLongIdle = 10'000'000;
constexpr std::int64_t kChannelTurn = 300;
constexpr int kMostAttempts = 100;

}  // namespace

Result<std::unique_ptr<ChannelProcesses>> ChannelProcesses::open(const fabric::sim::FabricOptions& options,
                                                                 std::span<const Settings> settings) {
  std::unique_ptr<ChannelProcesses> opened(new ChannelProcesses(options));
  opened->idle_ = kShortIdle;
  Random random(options.seed ^ 0x9e3779b97f4a7c15ULL);
  for (std::size_t process = 0; process < settings.size(); ++process) {
    opened->clocks_.push_back(std::make_unique<ProcessClock>(*opened, process));
    message::WorkerParts parts;
    parts.settings = settings[process];
    parts.settings.threads = "single";
    parts.clock = opened->clocks_.back().get();
    for (std::size_t i = 0; i < options.rails.size(); ++i) {
      if (options.rails[i].process != static_cast<int>(process)) continue;
      auto rail = opened->fabric.open_rail(i);
      if (!rail) return std::move(rail.error());
      parts.rails.push_back(std::move(*rail));
    }
    for (auto& byte : parts.identity.bytes) byte = static_cast<std::uint8_t>(random.next());
    parts.seed = random.next();
    auto worker = message::Worker::open(std::move(parts));
    if (!worker) return std::move(worker.error());
    opened->workers_.push_back(std::move(*worker));
  }
  return opened;
}

ChannelProcesses::~ChannelProcesses() {
  for (auto& worker : workers_) {
    if (worker != nullptr) worker->close();
  }
}

ChannelEnds ChannelProcesses::join(std::size_t from, std::size_t to, std::uint32_t service_class, bool shared) {
  auto joining = at(from).begin(service_class, shared);
  if (!joining) {
    why = joining.error().text();
    return {};
  }
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const auto hello = message::read_hello(at(from).hello(*joining));
    if (!hello) {
      why = hello.error().text();
      break;
    }
    auto answer = at(to).answer(*hello);
    if (!answer) {
      why = answer.error().text();
      break;
    }
    auto channel = at(from).conclude(*joining, answer->welcome);
    if (channel && *channel != nullptr) return {std::move(*channel), std::move(answer->channel)};
    answer->channel->end_at_once("its connector did not come");
    if (!channel) {
      why = channel.error().text();
      break;
    }
  }
  at(from).abandon(*joining);
  return {};
}

void ChannelProcesses::round() {
  for (std::size_t process = 0; process < workers_.size(); ++process) pass(process);
  let_time_pass();
}

bool ChannelProcesses::until(const std::function<bool()>& done, std::int64_t nanoseconds) {
  for (const std::int64_t end = fabric.now() + nanoseconds; fabric.now() < end; round()) {
    if (done()) return true;
  }
  return done();
}

void ChannelProcesses::pass(std::size_t process) {
  if (workers_[process] != nullptr && able(process)) workers_[process]->pass();
}

void ChannelProcesses::let_time_pass() {
  if (fabric.anything_ready()) return fabric.advance(kChannelTurn);
  if (fabric.step_within(idle_)) {
    idle_ = kShortIdle;
    return;
  }
  fabric.advance(idle_);
  idle_ = std::min(idle_ * 2, kLongIdle);
}

void ChannelProcesses::let_others_go_on(std::size_t process) {
  waits_ = kNobody;
  // A process that is stopped within a call does not look at the time before it goes on.
  do {
    for (std::size_t other = 0; other < workers_.size(); ++other) {
      if (other != process) pass(other);
    }
    let_time_pass();
  } while (fabric.paused(static_cast<int>(process)));
  waits_ = process;
}

std::int64_t ChannelProcesses::ProcessClock::now() const {
  if (processes_.waits_ == process_) {
    processes_.let_others_go_on(process_);
  } else if (processes_.waits_ == kNobody && processes_.fabric.now() == last_) {
    // Nobody looks so often who does not wait: memory that is given back at the end of a run may wait, too.
    if (++looks_ >= kLooksOfAWait) {
      looks_ = 0;
      processes_.let_others_go_on(process_);
      processes_.waits_ = kNobody;
    }
  }
  if (processes_.fabric.now() != last_) looks_ = 0;
  last_ = processes_.fabric.now();
  return last_;
}

bool ChannelProcesses::empty() {
  for (std::size_t i = 0; i < size(); ++i) {
    if (!alive(i)) continue;
    if (at(i).engine().peers().registry().size() != 0 || !at(i).engine().peers().flows().all().empty() ||
        at(i).channels() != 0)
      return false;
  }
  return true;
}

void ChannelProcesses::end(std::size_t process) {
  workers_[process]->close();
  workers_[process].reset();
}

}  // namespace railyard::sim
