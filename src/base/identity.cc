#include "base/identity.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <span>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "base/entropy.hpp"
#include "base/sha256.hpp"

namespace railyard {

namespace {

// Where the system gives no random bytes an identity must still differ from every other: it is no secret, so what only
// this process has at this moment will do.
Identity without_entropy() {
  static std::atomic<std::uint64_t> made{0};
  ByteWriter unique;
  unique.u64(made.fetch_add(1, std::memory_order_relaxed));
  unique.i64(SteadyClock().now());
  unique.i64(getpid());
  unique.u64(reinterpret_cast<std::uintptr_t>(&made));
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  unique.text(host.data());
  const Digest digest = sha256(unique.bytes());
  Identity identity;
  std::transform(digest.begin(), digest.begin() + 16, identity.bytes.begin(),
                 [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  return identity;
}

}  // namespace

Identity Identity::make() {
  Identity identity;
  if (!fill_random(std::as_writable_bytes(std::span(identity.bytes)))) return without_entropy();
  return identity;
}

std::string Identity::text() const {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string machine_word() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  struct stat memory {};
  // Where one of them cannot be asked it stays zero: a coarser word, never a wrong refusal.
  (void)stat("/proc/self/ns/net", &network);
  (void)stat("/dev/shm", &memory);
  return fmt::format("{}.{:x}.{:x}", boot.substr(0, 8), network.st_ino, memory.st_dev);
}

}  // namespace railyard
