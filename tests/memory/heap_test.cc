#include "memory/heap.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace railyard::memory {
namespace {

constexpr std::size_t kBytes = 10'000;

/// Tells a heap's name to a process that has nothing of it, as a peer would be told.
template <typename Body>
bool in_another_process(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Heap, IsZeroedAndSharedWithWhoMapsIt) {
  auto heap = Heap::open(kBytes);
  ASSERT_TRUE(heap) << heap.error().text();
  ASSERT_GE(heap->memory().size(), kBytes);
  for (const std::byte byte : heap->memory()) ASSERT_EQ(byte, std::byte{0});
  heap->memory()[1] = std::byte{7};
  const HeapName name = heap->name();
  EXPECT_TRUE(in_another_process([&] {
    auto mapped = Heap::map(name);
    if (!mapped || mapped->memory().size() != heap->memory().size()) return false;
    mapped->memory()[kBytes - 1] = std::byte{9};
    return mapped->memory()[1] == std::byte{7};
  }));
  EXPECT_EQ(heap->memory()[kBytes - 1], std::byte{9});
}

TEST(Heap, NamesTravel) {
  auto heap = Heap::open(kBytes);
  ASSERT_TRUE(heap);
  ByteWriter writer;
  heap->name().write(writer);
  ByteReader reader(writer.bytes());
  const HeapName name = HeapName::read(reader);
  EXPECT_TRUE(reader.done());
  EXPECT_TRUE(Heap::map(name));
  ByteReader cut(writer.bytes().first(writer.size() - 1));
  HeapName::read(cut);
  EXPECT_FALSE(cut.done());
}

TEST(Heap, AMappingOutlivesItsOwner) {
  auto heap = Heap::open(kBytes);
  ASSERT_TRUE(heap);
  heap->memory()[0] = std::byte{1};
  auto mapped = Heap::map(heap->name());
  ASSERT_TRUE(mapped);
  const HeapName name = heap->name();
  *heap = Heap();
  EXPECT_EQ(mapped->memory()[0], std::byte{1});
  mapped->memory()[kBytes - 1] = std::byte{2};
  EXPECT_FALSE(Heap::map(name)) << "its owner has closed it";
}

TEST(Heap, CannotBeCutShort) {
  auto heap = Heap::open(kBytes);
  ASSERT_TRUE(heap);
  EXPECT_NE(::ftruncate(heap->name().fd, 0), 0);
  EXPECT_NE(::ftruncate(heap->name().fd, 1 << 20), 0);
}

void expect_refused(const HeapName& name, const char* why) {
  const auto mapped = Heap::map(name);
  ASSERT_FALSE(mapped) << why;
  EXPECT_NE(mapped.error().message().find(why), std::string::npos) << mapped.error().text();
}

TEST(Heap, AWrongNameIsRefused) {
  auto heap = Heap::open(kBytes);
  auto other = Heap::open(kBytes);
  ASSERT_TRUE(heap && other);
  const HeapName right = heap->name();
  const auto with = [&](auto&& change) {
    HeapName name = right;
    change(name);
    return name;
  };
  EXPECT_TRUE(Heap::map(right));
  expect_refused(with([](HeapName& name) { name.boot[0] ^= 1; }), "another machine");
  expect_refused(with([](HeapName& name) { name.boot.clear(); }), "another machine");
  expect_refused(with([](HeapName& name) { ++name.pid_namespace; }), "process space");
  expect_refused(with([](HeapName& name) { name.pid = -1; }), "cannot be reached");
  expect_refused(with([](HeapName& name) { name.fd = 1'000'000; }), "cannot be reached");
  expect_refused(with([&](HeapName& name) { name.fd = other->name().fd; }), "not the one");
  expect_refused(with([](HeapName& name) { ++name.inode; }), "not the one");
  expect_refused(with([](HeapName& name) { ++name.device; }), "not the one");
  expect_refused(with([](HeapName& name) { name.bytes += 4096; }), "not the one");
  expect_refused(with([](HeapName& name) { name.bytes -= 64; }), "not the one");
  expect_refused(with([](HeapName& name) { name.bytes = 64; }), "impossible");
  expect_refused(with([](HeapName& name) { name.bytes = UINT64_MAX; }), "impossible");
  expect_refused(with([](HeapName& name) { name.identity.bytes[3] ^= 1; }), "another identity");
}

/// The name of a file that is no heap, right in everything that can be asked of it.
HeapName name_of(int fd) {
  auto model = Heap::open(kBytes);
  HeapName name = model->name();
  struct stat status {};
  ::fstat(fd, &status);
  name.fd = fd;
  name.device = status.st_dev;
  name.inode = status.st_ino;
  name.bytes = static_cast<std::uint64_t>(status.st_size);
  return name;
}

TEST(Heap, WhatIsNoHeapIsNotEvenOpened) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const Fd in(pipe[0]);
  const Fd out(pipe[1]);
  HeapName name = name_of(in.get());
  name.bytes = 4096;
  expect_refused(name, "not the one");
}

TEST(Heap, AFileThatCouldBeCutShortIsRefused) {
  const Fd file(::memfd_create("no heap", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(file);
  ASSERT_EQ(::ftruncate(file.get(), 8192), 0);
  expect_refused(name_of(file.get()), "not sealed");
  ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  expect_refused(name_of(file.get()), "not sealed");
  ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), 0);
  expect_refused(name_of(file.get()), "another identity");
}

TEST(Heap, ALimitOnFilesIsAnErrorAndNotASignal) {
  EXPECT_TRUE(in_another_process([] {
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return !Heap::open(kBytes) && Heap::open(1000);
  }));
}

}  // namespace
}  // namespace railyard::memory
