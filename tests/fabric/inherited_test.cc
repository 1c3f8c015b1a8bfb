/// What a program that this process starts gets of its rails: no connection and no listener.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "fabric/two_rails.hpp"

namespace railyard::fabric {
namespace {

class Inherited : public TwoRails {
 protected:
  /// Internet sockets that a child would have.
  static std::size_t open_to_children() {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int number = std::atoi(entry.path().filename().c_str());
      struct stat status {};
      int family = 0;
      socklen_t bytes = sizeof(family);
      if (::fstat(number, &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
      if (::getsockopt(number, SOL_SOCKET, SO_DOMAIN, &family, &bytes) != 0) continue;
      if (family != AF_INET && family != AF_INET6) continue;
      if ((::fcntl(number, F_GETFD) & FD_CLOEXEC) == 0) ++count;
    }
    return count;
  }
};

TEST_P(Inherited, NoSocketOfALinkThatStands) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "the listener's descriptor is not looked for under the thread sanitizer";
#endif
#endif
  ASSERT_TRUE(delivers());
  PostContext context;
  ASSERT_EQ(insist([&] {
              return a_.rail->write({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(0, 8, kData), {}, &context);
            }),
            Post::posted);
  ASSERT_TRUE(pump_until([&] { return told(a_, &context) == 1; }));
  // A rail marks a connection when it is told that it stands, which may be after the first bytes.
  EXPECT_TRUE(pump_until([&] { return open_to_children() == 0; })) << open_to_children();
}

const Bed kConnected{"tcp_connected", "tcp", "lo", "connected"};
INSTANTIATE_TEST_SUITE_P(Beds, Inherited, ::testing::Values(kConnected),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace railyard::fabric
