/// The operations of device::Window: see device.cuh.
#pragma once

#include "railyard/device/waits.cuh"

namespace railyard::device {

namespace detail {
inline constexpr Word kTouched = ~Word{0};  ///< in place of a ticket: the group does it by itself
}  // namespace detail

RAILYARD_DEVICE std::uint32_t Window::my_ring() const {
  if (handle_.ring != detail::Handle::kRingByBlock) return handle_.ring;
#if defined(__CUDA_ARCH__)
  const std::uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  return block < handle_.rings ? block : block % handle_.rings;  // a division takes a thread 50 ns
#else
  // A host thread is a block: the first one is block 0.
  static std::uint32_t threads = 0;
  static thread_local const std::uint32_t mine = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
  return mine % handle_.rings;
#endif
}

/// Takes slots that are free. A slot is never taken before it is: a caller who gives up leaves no hole in the ring.
RAILYARD_DEVICE Status Window::reserve(std::uint32_t ring, unsigned slots, Operation operation, int peer,
                                       Word& first) const {
  detail::RingTail& shared = handle_.tails[ring];
  Patience patience{*this, operation, peer, ring, 0, slots};
  for (;;) {
    const Word tail = detail::load_local(&shared.tail);
    const auto used = [&](Word consumed) { return static_cast<std::int64_t>(tail + slots - consumed); };
    if (used(detail::load_local(&shared.consumed)) > static_cast<std::int64_t>(handle_.depth)) {
      const Word consumed = detail::load_system(&handle_.progress[ring].consumed);
      detail::raise_local(&shared.consumed, consumed);
      if (used(consumed) > static_cast<std::int64_t>(handle_.depth)) {
        const Status status = patience.go_on(consumed);
        if (status != Status::ok) return status;
        continue;
      }
    }
    if (detail::exchange_local(&shared.tail, tail, tail + slots)) {
      first = tail;
      return Status::ok;
    }
  }
}

/// By one thread.
RAILYARD_DEVICE Ticket Window::post(const detail::Command& command, int rank) const {
  const std::uint32_t ring = my_ring();
  Word words[detail::kCommandWords];
  command.pack(words);
  Word index = 0;
#if defined(__CUDA_ARCH__)
  // The lanes that post to one ring at a time reserve together: one exchange for all.
  const unsigned together =
      __match_any_sync(__activemask(), reinterpret_cast<unsigned long long>(&handle_.tails[ring].tail));
  const int first = __ffs(static_cast<int>(together)) - 1;
  unsigned before;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
  before = static_cast<unsigned>(__popc(together & before));
  int reserved = 0;
  if (before == 0) {
    reserved = static_cast<int>(reserve(ring, static_cast<unsigned>(__popc(together)), command.operation, rank, index));
  }
  const Status status = static_cast<Status>(__shfl_sync(together, reserved, first));
  index = __shfl_sync(together, static_cast<unsigned long long>(index), first) + before;
#else
  const Status status = reserve(ring, 1, command.operation, rank, index);
#endif
  if (status != Status::ok) return Ticket::failed(status);
  if (has_rank(rank)) {
    detail::raise_local(&handle_.posted[static_cast<std::uint64_t>(ring) * handle_.size + command.rank], index + 1);
  }
  // What the command names, and what was stored into mapped memory of peers, is there before it. Inline payload without
  // a signal names nothing and promises nothing of what came before.
  if (!command.is_inline || command.has_signal) detail::release_system();
  const Word phase = detail::phase_of(index, handle_.depth);
  Word* const slot = handle_.commands +
                     (static_cast<std::uint64_t>(ring) * handle_.depth + index % handle_.depth) * detail::kCommandWords;
  for (unsigned word = 0; word < detail::kCommandWords; ++word) {
    detail::store_after_release(&slot[word], words[word] | phase);
  }
  return Ticket::of(ring, index);
}

/// The number after that of the ring's last command to the rank, or to any.
RAILYARD_DEVICE detail::Word Window::last_posted(std::uint32_t ring, int rank) const {
  if (rank == kAnyRank) return detail::load_local(&handle_.tails[ring].tail);
  return detail::load_local(
      &handle_.posted[static_cast<std::uint64_t>(ring) * handle_.size + static_cast<std::uint32_t>(rank)]);
}

RAILYARD_DEVICE detail::Word Window::completed(std::uint32_t ring) const {
  const Word completed = detail::load_system(&handle_.progress[ring].completed);
  detail::raise_local(&handle_.tails[ring].completed, completed);
  return completed;
}

/// Commands below `number` of the ring are.
RAILYARD_DEVICE bool Window::is_complete(std::uint32_t ring, Word number) const {
  return number == 0 || detail::load_local(&handle_.tails[ring].completed) >= number || completed(ring) >= number;
}

/// A rank's memory, as far as this kernel reaches it.
RAILYARD_DEVICE detail::Peer Window::peer_of(int rank) const {
  const std::uint32_t close = static_cast<std::uint32_t>(rank) - handle_.first_close;
  if (close < detail::Handle::kClose) return handle_.close[close];
  return has_rank(rank) ? handle_.peers[rank] : detail::Peer{};
}

/// Whether this group may write the peer's memory by itself: it is mapped, and holds what the command names. (No
/// branch for each question: a single thread would wait for every one.)
RAILYARD_DEVICE bool Window::may_touch(const detail::Command& command, const detail::Peer& peer, const void* source,
                                       unsigned threads) const {
  using detail::Peer;
  const std::uint64_t bytes = command.bytes;
  bool may = peer.data != nullptr;
  may &= command.offset <= peer.bytes;
  may &= bytes <= peer.bytes - command.offset;
  may &= source != nullptr || bytes == 0;
  may &= (peer.flags & Peer::kDevice) == 0 || bytes <= handle_.direct_bytes * threads;
  if (command.has_signal) {
    may &= command.signal_index < peer.signal_count;
    may &= command.signal_op == SignalOp::add || (peer.flags & Peer::kAdds) == 0;
  }
  if (command.has_counter) may &= command.counter_index < handle_.counter_count;
  return may;
}

/// By the leader, after the group has copied.
RAILYARD_DEVICE Ticket Window::finish_direct(const detail::Command& command, const detail::Peer& peer) const {
  // Who sees the word of a peer on this GPU reads its data there too, a kernel or a copy engine.
  if (command.has_signal && (peer.flags & detail::Peer::kSameDevice) != 0) {
    detail::release_local();
  } else {
    detail::release_system();
  }
  if (command.has_signal) {
    Word* const signal = &peer.signals[command.signal_index];
    if (command.signal_op == SignalOp::add) {
      detail::add_after_release(signal, command.signal_value);
    } else {
      detail::store_after_release(signal, command.signal_value);
    }
  }
  if (!command.has_counter) return {};
  if (handle_.adds_counters) {
    Word* const counters = handle_.counter_adds != nullptr ? handle_.counter_adds : handle_.counters;
    detail::add_after_release(&counters[command.counter_index], command.counter_value);
    return {};
  }
  detail::Command count;  // the host adds to its counters itself
  count.operation = Operation::put_counter;
  count.is_inline = true;
  count.has_counter = true;
  count.rank = command.rank;
  count.counter_index = command.counter_index;
  count.counter_value = command.counter_value;
  return post(count, static_cast<int>(command.rank));
}

/// Through the proxy, by one thread. `word`: the payload, where it is one.
RAILYARD_DEVICE Ticket Window::post_payload(detail::Command command, int rank, const void* source,
                                            const Word* word) const {
  const auto* const bytes = static_cast<const unsigned char*>(source);
  const bool fits = command.bytes <= kInlineBytes && (source != nullptr || command.bytes == 0);
  if (command.operation == Operation::get || !fits) {
    command.source = reinterpret_cast<std::uintptr_t>(source);
    return post(command, rank);
  }
  command.is_inline = true;
  command.inline_bytes = static_cast<std::uint8_t>(command.bytes);
  if (word != nullptr) {
    command.payload[0] = *word;
    return post(command, rank);
  }
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (unsigned i = 0; i < kInlineBytes / 8; ++i)
    for (unsigned at = 0; at < 8 && i * 8 + at < command.bytes; ++at)
      command.payload[i] |= static_cast<Word>(bytes[i * 8 + at]) << at * 8;
  return post(command, rank);
}

/// The group does it by itself where it may, and nothing of this ring is under way to that peer through the proxy: so
/// nothing is overtaken, and what follows, either way, comes after it.
template <Scope scope>
RAILYARD_DEVICE Ticket Window::submit(detail::Command command, int rank, const void* source,
                                      std::uint64_t bytes) const {
  using Group = detail::Group<scope>;
  Group::sync();  // the source may be the whole group's work
  command.rank = static_cast<std::uint32_t>(rank);
  command.bytes = bytes;
  const bool is_get = command.operation == Operation::get;
  const bool has_words = command.has_signal || command.has_counter;
  // A trip to memory, so it comes first: the rest is worked out meanwhile.
  const std::uint32_t ring = my_ring();
  const Word last = Group::leads() && has_rank(rank) ? last_posted(ring, rank) : 0;
  const detail::Peer peer = peer_of(rank);
  // By numbers: it is used only where the peer's memory is mapped, and that says may_touch.
  auto* const target = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(peer.data) + command.offset);
  Word outcome = 0;
  if (Group::leads()) {
    // Eight bytes are one thread's.
    const bool is_word = !is_get && bytes == sizeof(Word) && source != nullptr &&
                         reinterpret_cast<std::uintptr_t>(source) % sizeof(Word) == 0;
    const Word word = is_word ? Group::load_word(source) : 0;
    if (!may_touch(command, peer, source, Group::size()) || !is_complete(ring, last)) {
      outcome = post_payload(command, rank, source, is_word ? &word : nullptr).word;
    } else if (is_word) {
      Group::store_word(target, word);
      if (has_words) outcome = finish_direct(command, peer).word;
    } else {
      outcome = detail::kTouched;
    }
  }
  Ticket ticket;
  ticket.word = Group::share(outcome);
  if (ticket.word != detail::kTouched) return ticket;
  ticket = {};
  if (is_get) {
    Group::copy(const_cast<void*>(source), target, bytes);
    Group::sync();
    return ticket;
  }
  Group::copy(target, source, bytes);
  if (!has_words) return ticket;
  Group::sync();
  if (Group::leads()) ticket = finish_direct(command, peer);
  ticket.word = Group::share(ticket.word);
  return ticket;
}

template <Scope scope>
RAILYARD_DEVICE Ticket Window::put(int rank, std::uint64_t offset, const void* source, std::uint64_t bytes) const {
  detail::Command command;
  command.operation = Operation::put;
  command.offset = offset;
  return submit<scope>(command, rank, source, bytes);
}

template <Scope scope>
RAILYARD_DEVICE Ticket Window::put_signal(int rank, std::uint64_t offset, const void* source, std::uint64_t bytes,
                                          SignalUpdate signal) const {
  detail::Command command;
  command.operation = Operation::put_signal;
  command.offset = offset;
  command.has_signal = true;
  command.signal_op = signal.op;
  command.signal_index = signal.index;
  command.signal_value = signal.value;
  return submit<scope>(command, rank, source, bytes);
}

template <Scope scope>
RAILYARD_DEVICE Ticket Window::put_counter(int rank, std::uint64_t offset, const void* source, std::uint64_t bytes,
                                           CounterUpdate counter) const {
  detail::Command command;
  command.operation = Operation::put_counter;
  command.offset = offset;
  command.has_counter = true;
  command.counter_index = counter.index;
  command.counter_value = counter.value;
  return submit<scope>(command, rank, source, bytes);
}

template <Scope scope>
RAILYARD_DEVICE Ticket Window::put_signal_counter(int rank, std::uint64_t offset, const void* source,
                                                  std::uint64_t bytes, SignalUpdate signal,
                                                  CounterUpdate counter) const {
  detail::Command command;
  command.operation = Operation::put_signal_counter;
  command.offset = offset;
  command.has_signal = true;
  command.signal_op = signal.op;
  command.signal_index = signal.index;
  command.signal_value = signal.value;
  command.has_counter = true;
  command.counter_index = counter.index;
  command.counter_value = counter.value;
  return submit<scope>(command, rank, source, bytes);
}

template <Scope scope, typename T>
RAILYARD_DEVICE Ticket Window::put_value(int rank, std::uint64_t offset, T value) const {
  static_assert(sizeof(T) <= 8, "a value of at most 8 bytes");
  detail::Command command;
  command.operation = Operation::put_value;
  command.offset = offset;
  return submit<scope>(command, rank, &value, sizeof(T));
}

/// The destination takes the place of a source.
template <Scope scope>
RAILYARD_DEVICE Ticket Window::get(int rank, std::uint64_t offset, void* destination, std::uint64_t bytes) const {
  detail::Command command;
  command.operation = Operation::get;
  command.offset = offset;
  return submit<scope>(command, rank, destination, bytes);
}

template <Scope scope>
RAILYARD_DEVICE Ticket Window::signal(int rank, SignalUpdate signal) const {
  detail::Command command;
  command.operation = Operation::signal;
  command.has_signal = true;
  command.signal_op = signal.op;
  command.signal_index = signal.index;
  command.signal_value = signal.value;
  return submit<scope>(command, rank, nullptr, 0);
}

}  // namespace railyard::device
