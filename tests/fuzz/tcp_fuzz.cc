/// Bytes that unauthenticated peers write to a tcp rail, and bytes that a peer writes which has proven the secret: to
/// the parsers, and to a rail that has links of its own. Nothing may crash, no byte may land outside of what is
/// registered for peers, and the links of others go on.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "fabric/rail.hpp"
#include "fabric/tcp/frames.hpp"
#include "fabric/tcp/handshake.hpp"

namespace {

using namespace railyard;               // NOLINT(google-build-using-namespace)
using namespace railyard::fabric;       // NOLINT(google-build-using-namespace)
using namespace railyard::fabric::tcp;  // NOLINT(google-build-using-namespace)

void require(bool condition, int line = __builtin_LINE()) {
  if (condition) return;
  std::fprintf(stderr, "tcp_fuzz.cc:%d: not so (errno %d)\n", line, errno);
  std::abort();
}

void parse_all(std::span<const std::byte> bytes) {
  Secret secret{};
  if (bytes.size() >= kHelloBytes) require(!Hello::parse(bytes.first<kHelloBytes>(), secret));
  if (bytes.size() >= kChallengeBytes)
    if (const auto nonce = parse_challenge(bytes.first<kChallengeBytes>()))
      require(std::ranges::equal(pack_challenge(*nonce), bytes.first<kChallengeBytes>()));
  if (bytes.size() >= kVerdictBytes) {
    const auto verdict = parse_verdict(bytes.first<kVerdictBytes>(), {}, secret);
    require(!verdict || !verdict->authentic);
  }
  if (const auto address = tcp::TcpRailAddress::parse(bytes, "fuzz")) {
    const auto again = address->pack();
    require(TcpRailAddress::parse(again, "fuzz").ok());
  }
  for (auto rest = bytes; rest.size() >= Frame::kBytes; rest = rest.subspan(Frame::kBytes)) {
    const auto frame = Frame::parse(rest.first<Frame::kBytes>());
    if (!frame) continue;
    std::array<std::byte, Frame::kBytes> again{};
    frame->pack(again);
    require(std::ranges::equal(again, rest.first<Frame::kBytes>()));
    const bool bulk = frame->kind == FrameKind::write || frame->kind == FrameKind::read_data;
    require(frame->length <= kFragmentBytes && (!bulk || frame->rest() <= kMostWriteBytes));
  }
}

/// Two rails with a link each way, and memory that is watched.
class Victims {
 public:
  Victims() {
    Settings settings;
    settings.driver = "tcp";
    settings.interfaces = "lo";
    settings.shared_memory = "off";
    settings.rails = 2;
    settings.log = "error";
    rails_ = std::move(open_rails(settings).value());
    memory_.assign(kGuard + kRegion + kGuard, std::byte{0});
    registration_ = rails_[0]->register_memory(std::span(memory_).subspan(kGuard, kRegion), {.remote = true}).value();
    there_ = rails_[1]->connect(rails_[0]->address(), {1, 1, 2}).value();
    back_ = rails_[0]->connect(rails_[1]->address(), {2, 1, 1}).value();
    for (PostContext& context : receives_) post_receive(&context);
    require(works());
  }
  void poll() {
    for (auto& rail : rails_) {
      std::array<Event, 16> events;
      const std::size_t count = rail->poll(events);
      for (std::size_t i = 0; i < count; ++i) {
        require(events[i].kind != Event::Kind::lost && events[i].kind != Event::Kind::rail_down);
        if (events[i].kind == Event::Kind::sent) ++sent_;
        if (events[i].kind == Event::Kind::received) post_receive(events[i].context);
      }
    }
  }
  bool works() {
    const std::size_t before = sent_;
    PostContext context;
    std::array<std::byte, 8> word{};
    Post answer = Post::busy;
    for (int i = 0; i < kPatience && answer == Post::busy; ++i) {
      answer = rails_[1]->send(there_, {word.data(), word.size(), nullptr}, &context);
      poll();
    }
    for (int i = 0; i < kPatience && sent_ == before; ++i) poll();
    return sent_ == before + 1;
  }
  bool unharmed() const {
    const auto zero = [](std::byte x) { return x == std::byte{0}; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, zero) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), zero);
  }
  tcp::TcpRailAddress address() const { return tcp::TcpRailAddress::parse(rails_[0]->address(), "fuzz").value(); }
  std::uint64_t key() const { return registration_.key; }

 private:
  static constexpr std::size_t kGuard = 4096;
  static constexpr std::size_t kRegion = 65536;
  static constexpr int kPatience = 100000;

  void post_receive(PostContext* context) {
    require(rails_[0]->receive({buffer_.data(), buffer_.size(), nullptr}, context) == Post::posted);
  }

  std::vector<std::unique_ptr<Rail>> rails_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kMostMessageBytes);
  std::array<PostContext, 16> receives_;
  Registration registration_;
  RemoteId there_ = 0;
  RemoteId back_ = 0;
  std::size_t sent_ = 0;
};

/// Does what a peer does that knows the secret.
bool prove(int socket, Victims& victims) {
  const tcp::TcpRailAddress there = victims.address();
  Transcript transcript;
  transcript.hello.from.fill(std::byte{5});
  static std::uint32_t epoch = 0;
  transcript.hello.tag = {77, ++epoch};
  const auto hello = transcript.hello.pack(there.secret);
  if (::send(socket, hello.data(), hello.size(), MSG_NOSIGNAL) < 0) return false;
  const auto hear = [&](std::span<std::byte> room) {
    std::size_t have = 0;
    for (int i = 0; i < 10000 && have < room.size(); ++i) {
      victims.poll();
      const ssize_t got = ::recv(socket, room.data() + have, room.size() - have, MSG_DONTWAIT);
      if (got == 0) return false;
      if (got > 0) have += static_cast<std::size_t>(got);
    }
    return have == room.size();
  };
  std::array<std::byte, kChallengeBytes> challenge{};
  if (!hear(challenge)) return false;
  transcript.challenge = *parse_challenge(challenge);
  const auto proof = transcript.proof(there.secret);
  if (::send(socket, proof.data(), proof.size(), MSG_NOSIGNAL) < 0) return false;
  std::array<std::byte, kVerdictBytes> verdict{};
  return hear(verdict) && parse_verdict(verdict, transcript, there.secret)->verdict == Verdict::accepted;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  parse_all(bytes);
  if (size < 2) return 0;
  static Victims victims;
  const tcp::TcpRailAddress there = victims.address();
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  require(::connect(socket.get(), there.endpoint.get(), there.endpoint.length) == 0);
  std::vector<std::byte> said(bytes.begin() + 1, bytes.end());
  if ((data[0] & 1) != 0) {
    if (!prove(socket.get(), victims)) return 0;
    // The right key at the right place, so that more than the first check is reached.
    if ((data[0] & 2) != 0) {
      const std::uint64_t key = victims.key();
      for (std::size_t at = 0; at + Frame::kBytes <= said.size(); at += Frame::kBytes)
        std::memcpy(said.data() + at + 16, &key, sizeof key);
    }
  }
  (void)::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  for (std::size_t at = 0; at < said.size(); at += 1000) {
    (void)::send(socket.get(), said.data() + at, std::min<std::size_t>(1000, said.size() - at), MSG_NOSIGNAL);
    for (int i = 0; i < 20; ++i) victims.poll();
  }
  for (int i = 0; i < 100; ++i) victims.poll();
  require(victims.works() && victims.unharmed());
  return 0;
}
