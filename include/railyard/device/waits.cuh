/// The waits of device::Window: see device.cuh.
#pragma once

#include "railyard/device.cuh"

namespace railyard::device {

namespace detail {

/// The word of that number, where there are any.
RAILYARD_DEVICE const Word* at(const Word* words, Word index) { return words == nullptr ? nullptr : words + index; }

RAILYARD_DEVICE bool compares(Word held, Comparison comparison, Word value) {
  switch (comparison) {
    case Comparison::equal:
      return held == value;
    case Comparison::not_equal:
      return held != value;
    case Comparison::less:
      return held < value;
    case Comparison::less_equal:
      return held <= value;
    case Comparison::greater:
      return held > value;
    case Comparison::greater_equal:
      return held >= value;
  }
  return false;
}

}  // namespace detail

/// One wait: how long it has lasted, and whether there is any use in going on.
struct Window::Patience {
  /// Between two looks at the clock and the proxy's error word: a look costs as much as one at what is waited for.
  static constexpr std::uint32_t kLooks = 16;
  /// Between two words to the proxy that somebody waits.
  static constexpr std::uint32_t kLooksPerCall = 64;

  const Window& window;
  Operation operation;
  int peer;
  std::uint32_t ring;
  Word subject;
  Word wanted;
  std::uint32_t looks = 0;
  Word start = 0;

  /// After a look that found nothing.
  RAILYARD_DEVICE Status go_on(Word held) {
    ++looks;
    detail::pause(looks);
    if (looks % kLooks != 0) return Status::ok;
    const detail::Handle& handle = window.handle_;
    if (detail::load_system(&handle.error->code) != 0) return Status::error;
    if (window.has_rank(peer) && detail::load_system(&handle.lost[peer]) != 0) return tell(Status::peer_lost, held);
    if (operation == Operation::barrier && detail::load_system(&handle.lost[handle.size]) != 0) {
      return tell(Status::peer_lost, held);
    }
    const Word time = detail::now();
    if (start == 0) start = time;
    if (looks % kLooksPerCall == 0) {
      const Word who = window.has_rank(peer) ? static_cast<Word>(peer) + 1 : 0;
      detail::store_after_release(&handle.attention[ring * 8], (time >> 8) << detail::kRankBits | who);
    }
    return time - start < handle.budget ? Status::ok : tell(Status::timeout, held);
  }

  /// Keeps it for the host, unless something was kept already.
  RAILYARD_DEVICE Status tell(Status status, Word held) const {
    const detail::Handle& handle = window.handle_;
    if (detail::exchange_local(handle.failure_claim, 0, 1)) {
      detail::Report* const report = handle.failure;
      detail::store_after_release(&report->operation, static_cast<Word>(operation));
      detail::store_after_release(&report->peer, window.has_rank(peer) ? static_cast<Word>(peer) + 1 : 0);
      detail::store_after_release(&report->ring, ring);
      detail::store_after_release(&report->subject, subject);
      detail::store_after_release(&report->wanted, wanted);
      detail::store_after_release(&report->held, held);
      detail::store_system(&report->code, static_cast<Word>(status));
    }
    return status;
  }
};

RAILYARD_DEVICE std::uint64_t Window::read_signal(std::uint64_t index) const {
  return index < handle_.signal_count
             ? detail::load_sum(&handle_.signals[index], detail::at(handle_.signal_adds, index))
             : 0;
}

RAILYARD_DEVICE std::uint64_t Window::read_counter(std::uint64_t index) const {
  return index < handle_.counter_count
             ? detail::load_sum(&handle_.counters[index], detail::at(handle_.counter_adds, index))
             : 0;
}

RAILYARD_DEVICE Status Window::await_signal(Word index, Comparison comparison, Word value, int from,
                                            Operation operation, Word& held) const {
  if (index >= handle_.signal_count || comparison > Comparison::greater_equal) return Status::invalid;
  Patience patience{*this, operation, from, my_ring(), index, value};
  for (;;) {
    held = detail::load_sum(&handle_.signals[index], detail::at(handle_.signal_adds, index));
    if (detail::compares(held, comparison, value)) return Status::ok;
    const Status status = patience.go_on(held);
    if (status != Status::ok) return status;
  }
}

template <Scope scope>
RAILYARD_DEVICE Status Window::wait_signal(std::uint64_t index, Comparison comparison, std::uint64_t value, int from,
                                           std::uint64_t* held) const {
  using Group = detail::Group<scope>;
  Word found = 0;
  Status status = Status::ok;
  if (Group::leads()) status = await_signal(index, comparison, value, from, Operation::wait_signal, found);
  status = static_cast<Status>(Group::share(static_cast<Word>(status)));
  if (held != nullptr) *held = Group::share(found);
  return status;
}

template <Scope scope>
RAILYARD_DEVICE Status Window::wait_counter(std::uint64_t index, std::uint64_t value, std::uint64_t* held) const {
  using Group = detail::Group<scope>;
  Word found = 0;
  Status status = index < handle_.counter_count ? Status::ok : Status::invalid;
  if (Group::leads() && status == Status::ok) {
    Patience patience{*this, Operation::wait_counter, kAnyRank, my_ring(), index, value};
    while (status == Status::ok && (found = read_counter(index)) < value) {
      status = patience.go_on(found);
    }
  }
  status = static_cast<Status>(Group::share(static_cast<Word>(status)));
  if (held != nullptr) *held = Group::share(found);
  return status;
}

RAILYARD_DEVICE Status Window::await_number(std::uint32_t ring, Word number, Operation operation, int peer) const {
  Patience patience{*this, operation, peer, ring, number == 0 ? 0 : number - 1, number};
  while (!is_complete(ring, number)) {
    const Status status = patience.go_on(detail::load_local(&handle_.tails[ring].completed));
    if (status != Status::ok) return status;
  }
  return Status::ok;
}

template <Scope scope>
RAILYARD_DEVICE Status Window::wait(Ticket ticket) const {
  using Group = detail::Group<scope>;
  Status status = ticket.status();
  if (Group::leads() && status == Status::ok && ticket.number() != 0) {
    status = ticket.ring() < handle_.rings ? await_number(ticket.ring(), ticket.number(), Operation::wait, kAnyRank)
                                           : Status::invalid;
  }
  detail::release_system();  // stores into mapped memory are there as well
  return static_cast<Status>(Group::share(static_cast<Word>(status)));
}

template <Scope scope>
RAILYARD_DEVICE Status Window::fence(int rank) const {
  using Group = detail::Group<scope>;
  if (rank != kAnyRank && !has_rank(rank)) return Status::invalid;
  Group::sync();
  Word outcome = 0;
  if (Group::leads()) {
    const std::uint32_t ring = my_ring();
    const Word last = last_posted(ring, rank);
    detail::release_system();
    if (!is_complete(ring, last)) {
      detail::Command command;
      command.operation = Operation::fence;
      command.rank =
          rank == kAnyRank ? static_cast<std::uint32_t>(detail::kEveryRank) : static_cast<std::uint32_t>(rank);
      outcome = static_cast<Word>(post(command, kAnyRank).status());
    }
  }
  return static_cast<Status>(Group::share(outcome));
}

template <Scope scope>
RAILYARD_DEVICE Status Window::quiet(int rank) const {
  using Group = detail::Group<scope>;
  if (rank != kAnyRank && !has_rank(rank)) return Status::invalid;
  detail::release_system();
  Group::sync();
  Status status = Status::ok;
  if (Group::leads()) {
    const std::uint32_t ring = my_ring();
    const Word last = last_posted(ring, rank);
    status = await_number(ring, last, Operation::quiet, rank);
  }
  return static_cast<Status>(Group::share(static_cast<Word>(status)));
}

/// Dissemination: after round k every rank has heard, directly or not, of 2^(k+1) ranks. By the leader.
RAILYARD_DEVICE Status Window::run_barrier(std::uint32_t id) const {
  if (id >= handle_.barrier_count) return Status::invalid;
  const std::uint32_t ring = my_ring();
  Status status = await_number(ring, last_posted(ring, kAnyRank), Operation::barrier, kAnyRank);
  if (status != Status::ok) return status;
  // A barrier needs every rank: to tell one that is gone would be an error of the proxy's.
  if (const Word lost = detail::load_system(&handle_.lost[handle_.size]); lost != 0) {
    return Patience{*this, Operation::barrier, static_cast<int>(lost) - 1, ring, id, 0}.tell(Status::peer_lost, 0);
  }
  detail::BarrierState& state = handle_.barriers[id];
  if (state.inside == 0) {
    ++state.epoch;
    state.inside = 1;
    state.told = 0;
    state.round = 0;
  }
  for (; handle_.barrier_rounds > state.round; ++state.round, state.told = 0) {
    const auto distance = static_cast<std::uint32_t>(1u << state.round);
    const int to = static_cast<int>((handle_.rank + distance) % handle_.size);
    const int from = static_cast<int>((handle_.rank + handle_.size - distance) % handle_.size);
    const Word slot = handle_.barrier_signal + id * handle_.barrier_rounds + state.round;
    if (state.told == 0) {
      const Ticket ticket = signal<Scope::thread>(to, {slot, 1, SignalOp::add});
      if (!ticket.ok()) return ticket.status();
      state.told = 1;
    }
    Word held = 0;
    status = await_signal(slot, Comparison::greater_equal, state.epoch, from, Operation::barrier, held);
    if (status != Status::ok) return status;
  }
  state.inside = 0;
  return Status::ok;
}

template <Scope scope>
RAILYARD_DEVICE Status Window::barrier(std::uint32_t id) const {
  using Group = detail::Group<scope>;
  detail::release_system();
  Group::sync();
  Status status = Status::ok;
  if (Group::leads()) status = run_barrier(id);
  return static_cast<Status>(Group::share(static_cast<Word>(status)));
}

}  // namespace railyard::device
