/// One-sided calls that move data. They touch nothing but their group.
#include <utility>

#include "gin.hpp"
#include "gin_calls.hpp"
#include "log.hpp"

namespace railyard::nccl::gin {

namespace {

GroupComm* group_of(void* group_or_context) {
  auto* const known = static_cast<Comm*>(group_or_context);
  if (known == nullptr) return nullptr;
  if (known->kind == Comm::Kind::group) return static_cast<GroupComm*>(known);
  return known->kind == Comm::Kind::group_context ? &static_cast<GroupContext*>(known)->group : nullptr;
}

GroupComm* group_of(Queue queue) {
  auto* const known = static_cast<Comm*>(queue.group_or_context);
  if (known != nullptr && known->kind == Comm::Kind::group_context) {
    const auto& context = *static_cast<GroupContext*>(known);
    if (queue.number < 0 || queue.number >= context.contexts) return nullptr;
  }
  return group_of(queue.group_or_context);
}

/// Memory of the group; null: it is not.
GroupMemory* memory_of(const GroupComm& group, void* memory) {
  auto* const known = static_cast<Comm*>(memory);
  if (known == nullptr || known->kind != Comm::Kind::group_memory) return nullptr;
  auto* const found = static_cast<GroupMemory*>(known);
  return &found->group() == &group ? found : nullptr;
}

/// Whether these bytes lie in this process's part of it. Those of the target are the library's to check.
bool fits(const GroupMemory& memory, std::uint64_t offset, std::size_t bytes) {
  const std::size_t size = memory.memory().size();
  return offset <= size && bytes <= size - offset;
}

/// Runs an operation: the group and the rank are known, `*request` is what it answers.
template <typename Body>
nccl_result operate(const char* call, Queue queue, std::uint32_t rank, void** request, Body&& body) noexcept {
  return guarded(call, [&]() -> nccl_result {
    if (request == nullptr) return misuse(call, "no place for the request");
    *request = nullptr;
    GroupComm* const group = group_of(queue);
    if (group == nullptr) return misuse(call, "this is no group of ranks, or a context that it has not");
    if (rank >= static_cast<std::uint32_t>(group->size())) return misuse(call, "a rank that the group has not");
    const char* wrong = nullptr;
    auto made = body(*group, static_cast<int>(rank), wrong);
    if (wrong != nullptr) return misuse(call, wrong);
    if (!made) return fail(call, made.error());
    *request = *made;
    return NCCL_OK;
  });
}

constexpr const char* kNoMemory = "memory that this group has not registered";
constexpr const char* kTooFar = "more bytes than this rank has registered";

/// Source and target of a put. Nothing to move needs neither.
const char* find_put(const GroupComm& group, const Transfer& transfer, MemoryRange& from, MemoryRange& to) {
  if (transfer.bytes == 0) return nullptr;
  from = {memory_of(group, transfer.from), transfer.from_offset};
  to = {memory_of(group, transfer.to), transfer.to_offset};
  if (from.memory == nullptr || to.memory == nullptr) return kNoMemory;
  return fits(*from.memory, from.offset, transfer.bytes) ? nullptr : kTooFar;
}

}  // namespace

nccl_result put(Queue queue, const Transfer& transfer, void** request) noexcept {
  return operate("iput", queue, transfer.rank, request,
                 [&](GroupComm& group, int rank, const char*& wrong) -> Result<GroupRequest*> {
                   MemoryRange from;
                   MemoryRange to;
                   wrong = find_put(group, transfer, from, to);
                   return wrong != nullptr ? nullptr : group.put(rank, from, transfer.bytes, to, nullptr);
                 });
}

nccl_result put_signal(Queue queue, const Transfer& transfer, const Signal& signal, void** request) noexcept {
  return operate("iputSignal", queue, transfer.rank, request,
                 [&](GroupComm& group, int rank, const char*& wrong) -> Result<GroupRequest*> {
                   MemoryRange from;
                   MemoryRange to;
                   wrong = find_put(group, transfer, from, to);
                   if (wrong != nullptr) return nullptr;
                   if (signal.op != NCCL_SIGNAL_INC && signal.op != NCCL_SIGNAL_ADD) {
                     wrong = "a signal is changed by INC (1) or ADD (2)";
                     return nullptr;
                   }
                   const WordAdd add{{memory_of(group, signal.memory), signal.offset},
                                     signal.op == NCCL_SIGNAL_INC ? 1 : signal.value};
                   if (add.at.memory == nullptr) {
                     wrong = kNoMemory;
                     return nullptr;
                   }
                   return group.put(rank, from, transfer.bytes, to, &add);
                 });
}

nccl_result get(Queue queue, const Transfer& transfer, void** request) noexcept {
  return operate("iget", queue, transfer.rank, request,
                 [&](GroupComm& group, int rank, const char*& wrong) -> Result<GroupRequest*> {
                   MemoryRange from{memory_of(group, transfer.from), transfer.from_offset};
                   MemoryRange to{memory_of(group, transfer.to), transfer.to_offset};
                   if (transfer.bytes == 0) return group.get(rank, from, 0, to);
                   if (from.memory == nullptr || to.memory == nullptr)
                     wrong = kNoMemory;
                   else if (!fits(*to.memory, to.offset, transfer.bytes))
                     wrong = kTooFar;
                   return wrong != nullptr ? nullptr : group.get(rank, from, transfer.bytes, to);
                 });
}

nccl_result flush(Queue queue, void* /*memory*/, std::uint32_t rank, void** request) noexcept {
  return operate("iflush", queue, rank, request,
                 [](GroupComm& group, int to, const char*& /*wrong*/) { return group.flush(to); });
}

nccl_result test(void* group, void* request, int* done) noexcept {
  return guarded("test", [&]() -> nccl_result {
    if (done == nullptr) return misuse("test", "no place for the answer");
    *done = 0;
    GroupComm* const known = group_of(group);
    auto* const asked = static_cast<GroupRequest*>(request);
    if (known == nullptr || asked == nullptr || !known->owns(*asked))
      return misuse("test", "this request is not under way in this group");
    auto ended = known->test(*asked);
    if (!ended) return std::exchange(asked->told, true) ? code_of(ended.error()) : fail("test", ended.error());
    *done = *ended ? 1 : 0;
    return NCCL_OK;
  });
}

nccl_result progress(void* group_or_context) noexcept {
  return guarded("progress", [&]() -> nccl_result {
    GroupComm* const known = group_of(group_or_context);
    if (known == nullptr) return misuse("progress", "this is no group of ranks");
    known->progress();
    return NCCL_OK;
  });
}

nccl_result last_error(void* context, bool* failed) noexcept {
  if (failed == nullptr) return misuse("queryLastError", "no place for the answer");
  // NCCL 2.30.3 asks with a context of its own, which is none of ours: nothing is known of it.
  const GroupComm* const known = group_of(context);
  *failed = known != nullptr && known->failed();
  return NCCL_OK;
}

}  // namespace railyard::nccl::gin
