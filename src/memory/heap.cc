#include "memory/heap.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/file_limit.hpp"

namespace railyard::memory {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kMostText = 64;

/// The machine's name for its present life; empty where it has none.
std::string boot_name() {
  const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, kMostText> text{};
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : 0;
  std::string name(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

std::uint64_t pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

Error system_error(const char* call) { return {Status::no_memory, fmt::format("{}: {}", call, std::strerror(errno))}; }

Error unfit(const char* why) { return {Status::not_found, why}; }

}  // namespace

void HeapName::write(ByteWriter& writer) const {
  writer.text(boot);
  writer.u64(pid_namespace);
  writer.i32(pid);
  writer.i32(fd);
  writer.u64(device);
  writer.u64(inode);
  writer.u64(bytes);
  writer.raw(std::as_bytes(std::span(identity.bytes)));
}

HeapName HeapName::read(ByteReader& reader) {
  HeapName name;
  name.boot = reader.text(kMostText);
  name.pid_namespace = reader.u64();
  name.pid = reader.i32();
  name.fd = reader.i32();
  name.device = reader.u64();
  name.inode = reader.u64();
  name.bytes = reader.u64();
  const auto identity = reader.raw(name.identity.bytes.size());
  if (!identity.empty()) std::memcpy(name.identity.bytes.data(), identity.data(), identity.size());
  return name;
}

HeapName HeapName::of_process() {
  HeapName name;
  name.boot = boot_name();
  name.pid_namespace = memory::pid_namespace();
  name.pid = ::getpid();
  return name;
}

Result<void> HeapName::check_here() const {
  if (boot.empty() || boot != boot_name()) return unfit("it is of another machine");
  if (pid_namespace == 0 || pid_namespace != memory::pid_namespace()) return unfit("it is of another process space");
  return {};
}

Heap::~Heap() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

Result<void> Heap::map_file(const Fd& file, std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return system_error("mmap");
  memory_ = {static_cast<std::byte*>(address), bytes};
  return {};
}

Result<Heap> Heap::open(std::size_t bytes) {
  if (bytes > SIZE_MAX / 2) return Error(Status::no_memory, "longer than the address space");
  Heap heap;
  heap.file_ = Fd(::memfd_create("railyard heap", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!heap.file_) return system_error("memfd_create");
  const std::size_t whole = (bytes + 2 * kTail - 1) / kTail * kTail;
  if (longer_than_allowed(whole)) return Error(Status::no_memory, "longer than RLIMIT_FSIZE allows");
  if (::ftruncate(heap.file_.get(), static_cast<off_t>(whole)) != 0) return system_error("ftruncate");
  if (::fcntl(heap.file_.get(), F_ADD_SEALS, kSeals) != 0) return system_error("sealing");
  struct stat status {};
  if (::fstat(heap.file_.get(), &status) != 0) return system_error("fstat");
  if (auto mapped = heap.map_file(heap.file_, whole); !mapped) return std::move(mapped.error());
  heap.name_ = HeapName::of_process();
  heap.name_.fd = heap.file_.get();
  heap.name_.device = status.st_dev;
  heap.name_.inode = status.st_ino;
  heap.name_.bytes = whole;
  heap.name_.identity = Identity::make();
  const auto& identity = heap.name_.identity.bytes;
  std::memcpy(heap.memory_.data() + whole - kTail, identity.data(), identity.size());
  return heap;
}

Result<Heap> Heap::map(const HeapName& name) {
  if (auto here = name.check_here(); !here) return std::move(here.error());
  if (name.bytes <= kTail || name.bytes > SIZE_MAX / 2) return unfit("its size is impossible");
  // What a wrong name leads to may be anything, also something that opening would change or wait for: so it is looked
  // at before it is opened.
  const Fd found(::open(fmt::format("/proc/{}/fd/{}", name.pid, name.fd).c_str(), O_PATH | O_CLOEXEC));
  if (!found) return unfit("its owner's descriptor cannot be reached");
  struct stat status {};
  if (::fstat(found.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_dev != name.device ||
      status.st_ino != name.inode || status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) != name.bytes) {
    return unfit("the file is not the one that was named");
  }
  const Fd file(::open(fmt::format("/proc/self/fd/{}", found.get()).c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return unfit("the file cannot be opened");
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return unfit("the file is not sealed");
  Heap heap;
  if (auto mapped = heap.map_file(file, name.bytes); !mapped) return std::move(mapped.error());
  const auto& identity = name.identity.bytes;
  if (std::memcmp(heap.memory_.data() + name.bytes - kTail, identity.data(), identity.size()) != 0) {
    return unfit("the file holds another identity");
  }
  heap.name_ = name;
  return heap;
}

}  // namespace railyard::memory
