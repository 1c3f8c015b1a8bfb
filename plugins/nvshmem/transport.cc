/// The calls of NVSHMEM's host library, one by one: each is checked, put into the terms of a lane, and answered with a
/// code. Compiled once for each major version of the ABI.
#include <fmt/format.h>

#include <cstdlib>
#include <new>
#include <optional>
#include <set>

#include "base/log.hpp"
#include "log.hpp"
#include "state.hpp"

#ifndef RAILYARD_NVSHMEM_MAJOR
#error "RAILYARD_NVSHMEM_MAJOR comes from the build: 3 or 4"
#endif

namespace railyard::nvshmem {
namespace {

constexpr int kMajor = RAILYARD_NVSHMEM_MAJOR;
static_assert(kMajor == 3 || kMajor == 4);
#if RAILYARD_NVSHMEM_MAJOR == 3
using Transport = abi::Transport3;
#else
using Transport = abi::Transport4;
#endif

/// Transports that were made and not finalized.
class Alive {
 public:
  static Alive& instance() {
    static Alive alive;
    return alive;
  }
  void add(const Transport* transport) {
    const std::lock_guard lock(mutex_);
    transports_.insert(reinterpret_cast<std::uintptr_t>(transport));
  }
  bool remove(const Transport* transport) {
    const std::lock_guard lock(mutex_);
    return transports_.erase(reinterpret_cast<std::uintptr_t>(transport)) != 0;
  }
  bool has(std::uintptr_t transport) {
    const std::lock_guard lock(mutex_);
    return transports_.contains(transport);
  }

 private:
  std::mutex mutex_;
  std::set<std::uintptr_t> transports_;
};

Result<State*> state_of(const Transport* self) {
  if (self == nullptr || self->state == nullptr)
    return Error(Status::invalid, "no transport, or one that was not initialized");
  return static_cast<State*>(self->state);
}

/// Runs a call of the host's on a lane.
template <typename Body>
int on_lane(const char* call, const Transport* self, int queue, Body&& body) noexcept {
  return guarded(call, [&]() -> Result<void> {
    const auto* const state = self != nullptr ? static_cast<const State*>(self->state) : nullptr;
    Lane* const lane = state != nullptr ? state->lane(queue) : nullptr;
    if (lane == nullptr) [[unlikely]] {
      const auto found = state_of(self);
      return found ? Error(Status::invalid, "before connect_endpoints") : found.error().copy();
    }
    return body(*lane);
  });
}

// ---- Set-up ----

int can_reach_peer(int* access, abi::PeInfo* peer, Transport* self) {
  return guarded("can_reach_peer", [&]() -> Result<void> {
    const auto state = state_of(self);
    if (!state) return state.error().copy();
    if (access == nullptr || peer == nullptr) return Error(Status::invalid, "no PE, or no place for the answer");
    *access = abi::kCpuWrite | abi::kCpuRead | abi::kCpuAtomics;
    if (peer->pe == self->pe) (*state)->set_gpu(peer->gpu);
    return {};
  });
}

Result<void> connect(Transport* self) {
  const auto state = state_of(self);
  if (!state) return state.error().copy();
  return (*state)->connect(self->bootstrap, self->pe, self->pes);
}

Result<void> register_memory(Transport* self, abi::MemHandle* handle, void* memory, std::size_t bytes,
                             bool local_only) {
  const auto state = state_of(self);
  if (!state) return state.error().copy();
  if (handle == nullptr) return Error(Status::invalid, "no place for the memory handle");
  return (*state)->register_memory(*handle, {static_cast<std::byte*>(memory), bytes}, local_only);
}

int release_mem_handle(abi::MemHandle* handle, Transport* self) {
  return guarded("release_mem_handle", [&]() -> Result<void> {
    const auto state = state_of(self);
    if (!state) return state.error().copy();
    if (handle == nullptr) return Error(Status::invalid, "no memory handle");
    return (*state)->release(*handle);
  });
}

int finalize(Transport* self) {
  return guarded("finalize", [&]() -> Result<void> {
    const auto state = state_of(self);
    if (!state) return state.error().copy();
    if (!Alive::instance().remove(self)) return Error(Status::invalid, "this transport was finalized already");
    (*state)->finish();
    delete *state;
    std::free(self);
    return {};
  });
}

int show_info(Transport* self, int /*style*/) {
  return guarded("show_info", [&]() -> Result<void> {
    const auto state = state_of(self);
    if (!state) return state.error().copy();
    const std::string line = fmt::format("railyard: NVSHMEM transport {}, {}\n", kMajor, (*state)->describe());
    std::fputs(line.c_str(), stdout);
    return {};
  });
}

// ---- Operations ----

int progress(Transport* self) {
  return guarded("progress", [&]() -> Result<void> {
    const auto state = state_of(self);
    if (!state) return state.error().copy();
    return (*state)->progress();
  });
}

/// The bytes of a transfer. The host passes no strides to a remote transport.
std::optional<std::size_t> size_of(const abi::BytesDesc& bytes) {
  std::size_t total = 0;
  if (bytes.element_bytes < 0 ||
      __builtin_mul_overflow(bytes.elements, static_cast<std::size_t>(bytes.element_bytes), &total))
    return std::nullopt;
  return total;
}

Result<void> transfer(Lane& lane, int pe, abi::RmaOp op, const abi::MemDesc* remote, const abi::MemDesc* local,
                      const abi::BytesDesc& bytes) {
  if (local == nullptr) return Error(Status::invalid, "no local memory", {.peer = pe});
  const auto size = size_of(bytes);
  if (!size) {
    return Error(Status::invalid, fmt::format("{} elements of {} bytes", bytes.elements, bytes.element_bytes),
                 {.peer = pe});
  }
  const Remote place{pe, remote};
  switch (op) {
    case abi::RmaOp::put:
      return lane.put(place, local->address, *size);
    case abi::RmaOp::p:
      return lane.put_value(place, local->address, *size);
    case abi::RmaOp::get:
    case abi::RmaOp::g:
      return lane.get(place, local->address, *size);
    default:
      return Error(Status::unsupported,
                   fmt::format("operation {} is no put (1), p (2), get (4) or g (5)", static_cast<int>(op)),
                   {.peer = pe});
  }
}

int rma(Transport* self, int pe, abi::RmaVerb verb, abi::MemDesc* remote, abi::MemDesc* local, abi::BytesDesc bytes,
        int queue) {
  return on_lane("rma", self, queue, [&](Lane& lane) -> Result<void> {
    if (auto moved = transfer(lane, pe, verb.op, remote, local, bytes); !moved) return moved;
    // The host's own calls that wait (nvshmem_getmem) call no quiet: the transport is to return when it is done. The
    // value of a p was taken at the call.
    if (verb.is_nbi != 0 || verb.op == abi::RmaOp::p) return {};
    return lane.quiet(pe);
  });
}

std::optional<AtomicOp> atomic_op(abi::AmoOp op) {
  switch (op) {
    case abi::AmoOp::increment:
    case abi::AmoOp::fetch_increment:
      return AtomicOp::increment;
    case abi::AmoOp::set:
    case abi::AmoOp::signal:
    case abi::AmoOp::signal_set:
      return AtomicOp::set;
    case abi::AmoOp::add:
    case abi::AmoOp::signal_add:
    case abi::AmoOp::fetch_add:
      return AtomicOp::add;
    case abi::AmoOp::bit_and:
    case abi::AmoOp::fetch_and:
      return AtomicOp::bit_and;
    case abi::AmoOp::bit_or:
    case abi::AmoOp::fetch_or:
      return AtomicOp::bit_or;
    case abi::AmoOp::bit_xor:
    case abi::AmoOp::fetch_xor:
      return AtomicOp::bit_xor;
    case abi::AmoOp::fetch:
      return AtomicOp::fetch;
    case abi::AmoOp::swap:
      return AtomicOp::swap;
    case abi::AmoOp::compare_swap:
      return AtomicOp::compare_swap;
  }
  return std::nullopt;
}

Result<void> change_word(Lane& lane, int pe, abi::AmoOp code, const abi::AmoMemDesc* target,
                         const abi::AmoBytesDesc& bytes) {
  const auto op = atomic_op(code);
  if (!op) {
    return Error(Status::unsupported,
                 fmt::format("there is no atomic {}; there are 2 to 10 and 12 to 19", static_cast<int>(code)),
                 {.peer = pe});
  }
  if (target == nullptr) return Error(Status::invalid, "no word to change", {.peer = pe});
  if (bytes.element_bytes != 4 && bytes.element_bytes != 8) {
    return Error(Status::unsupported, fmt::format("an atomic on {} bytes; 4 and 8 are possible", bytes.element_bytes),
                 {.peer = pe});
  }
  Lane::Atomic request{.op = *op,
                       .bytes = static_cast<std::size_t>(bytes.element_bytes),
                       .operand = target->value,
                       .compare = target->compare};
  if (code >= abi::AmoOp::fetch) {
    if (target->result == nullptr)
      return Error(Status::invalid, "a fetching atomic without a place for the value", {.peer = pe});
    request.result = target->result;
    request.flag = target->result_flag;
  }
  return lane.atomic({pe, &target->remote}, request);
}

int amo(Transport* self, int pe, void* /*unused*/, abi::AmoVerb verb, abi::AmoMemDesc* target, abi::AmoBytesDesc bytes,
        int queue) {
  return on_lane("amo", self, queue,
                 [&](Lane& lane) -> Result<void> { return change_word(lane, pe, verb.op, target, bytes); });
}

int fence_pe(Transport* self, int pe, int queue) {
  return on_lane("fence", self, queue, [&](Lane& lane) { return lane.fence(pe); });
}

int quiet(Transport* self, int pe, int queue) {
  return on_lane("quiet", self, queue, [&](Lane& lane) -> Result<void> { return lane.quiet(pe); });
}

/// What a get or a fetch brought is visible when it is complete: there is nothing to flush.
int enforce_cst(Transport* self) {
  return guarded("enforce_cst", [&]() -> Result<void> {
    const auto state = state_of(self);
    return state ? Result<void>() : Result<void>(state.error().copy());
  });
}

// ---- What differs between the majors ----

#if RAILYARD_NVSHMEM_MAJOR == 3

int connect_endpoints(Transport* self, int* /*devices*/, int /*count*/) {
  return guarded("connect_endpoints", [&] { return connect(self); });
}

int get_mem_handle(abi::MemHandle* handle, void* second, std::uintptr_t third, std::uintptr_t fourth,
                   std::uintptr_t fifth, std::uintptr_t sixth) {
  return guarded("get_mem_handle", [&]() -> Result<void> {
    if (Alive::instance().has(fourth)) {  // since 3.3: memory, bytes, transport, local_only
      return register_memory(reinterpret_cast<Transport*>(fourth), handle, second, third, (fifth & 0xffU) != 0);
    }
    if (Alive::instance().has(fifth)) {  // before: another handle, memory, bytes, transport, local_only
      return register_memory(reinterpret_cast<Transport*>(fifth), handle, reinterpret_cast<void*>(third), fourth,
                             (sixth & 0xffU) != 0);
    }
    return Error(Status::invalid, "no transport of ours among the arguments");
  });
}

int fence(Transport* self, int pe, int queue) { return fence_pe(self, pe, queue); }

#else

int connect_endpoints(Transport* self, int* /*devices*/, int /*count*/, int* queues, int queue_count) {
  return guarded("connect_endpoints", [&]() -> Result<void> {
    if (auto connected = connect(self); !connected) return connected;
    // Further queues share the proxy's lane and its order, which is more than they ask for.
    for (int i = 0; queues != nullptr && i < queue_count; ++i) queues[i] = abi::kDefaultQueue;
    return {};
  });
}

int get_mem_handle(abi::MemHandle* handle, void* memory, std::size_t bytes, Transport* self, bool local_only) {
  return guarded("get_mem_handle", [&] { return register_memory(self, handle, memory, bytes, local_only); });
}

int fence(Transport* self, int pe, int queue, int /*is_multi*/) { return fence_pe(self, pe, queue); }

int put_signal(Transport* self, int pe, abi::RmaVerb /*verb*/, std::vector<abi::MemDesc>& remote,
               std::vector<abi::MemDesc>& local, std::vector<abi::BytesDesc>& bytes, abi::AmoVerb signal_verb,
               abi::AmoMemDesc* signal, abi::AmoBytesDesc signal_bytes, int queue) {
  return on_lane("put_signal", self, queue, [&](Lane& lane) -> Result<void> {
    if (remote.size() != local.size() || remote.size() != bytes.size()) {
      return Error(Status::invalid,
                   fmt::format("{} places, {} sources and {} sizes", remote.size(), local.size(), bytes.size()),
                   {.peer = pe});
    }
    for (std::size_t i = 0; i < remote.size(); ++i) {
      if (auto put = transfer(lane, pe, abi::RmaOp::put, &remote[i], &local[i], bytes[i]); !put) return put;
    }
    return change_word(lane, pe, signal_verb.op, signal, signal_bytes);
  });
}

#endif

Result<void> init(Transport** out, int api_version) {
  if (out == nullptr) return Error(Status::invalid, "no place for the transport");
  *out = nullptr;
  if (abi::version_major(api_version) != kMajor) {
    return Error(Status::version_mismatch,
                 fmt::format("the host speaks transport version {}.{}, this library version {}: `railyard nvshmem-env` "
                             "tells which one to load",
                             api_version / 10000, api_version / 100 % 100, kMajor));
  }
  auto settings = Settings::from_environment();
  if (!settings) return std::move(settings.error());
  apply_log_settings(*settings);
  auto state = std::make_unique<State>(std::move(*settings));
  void* const block = std::calloc(1, abi::kTransportBytes);
  if (block == nullptr) return Error(Status::no_memory);
  auto* const made = static_cast<Transport*>(block);
  made->api_version = abi::version_of(kMajor);
  made->attr = abi::kConnected;
  made->is_successfully_initialized = true;
  // A fetched value is handed over when it is back: no kernel has to wait for everything else with it.
  made->atomics_complete_on_quiet = false;
  auto& ops = made->host_ops;
  ops.can_reach_peer = can_reach_peer;
  ops.connect_endpoints = connect_endpoints;
  ops.get_mem_handle = get_mem_handle;
  ops.release_mem_handle = release_mem_handle;
  ops.finalize = finalize;
  ops.show_info = show_info;
  ops.progress = progress;
  ops.rma = rma;
  ops.amo = amo;
  ops.fence = fence;
  ops.quiet = quiet;
#if RAILYARD_NVSHMEM_MAJOR >= 4
  ops.put_signal = put_signal;
#endif
  ops.enforce_cst = enforce_cst;
  Alive::instance().add(made);
  made->state = state.release();
  *out = made;
  return {};
}

}  // namespace
}  // namespace railyard::nvshmem

/// The cuda table's layout is the host's own business, and not used.
extern "C" [[gnu::visibility("default")]] int nvshmemt_init(void** transport, void* /*cuda_table*/, int api_version) {
  return railyard::nvshmem::guarded("nvshmemt_init", [&] {
    return railyard::nvshmem::init(reinterpret_cast<railyard::nvshmem::Transport**>(transport), api_version);
  });
}
