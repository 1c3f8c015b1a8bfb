/// Libraries found at run time: what they do to the program's signals is undone, and a machine without them still has
/// rails.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

#include "base/shared_library.hpp"
#include "fabric/beds.hpp"
#include "sanitized.hpp"

namespace railyard::fabric {
namespace {

void own_handler(int /*signal*/) {}

/// The status of a child that ran `work`. A fresh process: an earlier test may have loaded libraries in this one.
int status_of_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    (void)::setrlimit(RLIMIT_CORE, &no_core);
    work();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

void open_ofi_rails() {
  auto rails = open_rails(settings_for({"tcp", "tcp", "lo", "connected"}, 1));
  if (!rails) ::_exit(90);
}

/// Ends the process with 1 where a disposition is not the expected one.
void expect_handlers(void (*expected)(int)) {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGTERM, SIGUSR1}) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) != 0 || now.sa_handler != expected) ::_exit(1);
  }
}

void set_handlers(void (*handler)(int)) {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGTERM, SIGUSR1})
    ::signal(number, handler);
}

TEST(Libraries, LeaveTheProgramsSignalHandlersAlone) {
  const int status = status_of_child([] {
    set_handlers(&own_handler);
    open_ofi_rails();
    expect_handlers(&own_handler);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Libraries, LeaveDefaultSignalDispositionsAlone) {
  const int status = status_of_child([] {
    set_handlers(SIG_DFL);
    open_ofi_rails();
    (void)discover_verbs(Settings());
    expect_handlers(SIG_DFL);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Libraries, LeaveASegmentationFaultAndAnAbortWhatTheyAre) {
  for (const int number : {SIGSEGV, SIGABRT, SIGTERM}) {
    const int status = status_of_child([&] {
      set_handlers(SIG_DFL);
      open_ofi_rails();
      if (number == SIGABRT) std::abort();
      ::raise(number);
    });
    EXPECT_TRUE(WIFSIGNALED(status)) << number << ": " << status;
    EXPECT_EQ(WTERMSIG(status), number);
  }
}

TEST(Libraries, KeepAHandlerThatTheProgramInstallsMeanwhile) {
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR2, nullptr, &before), 0);
  {
    const KeepSignals keep;
    std::thread([] { ::signal(SIGUSR2, &own_handler); }).join();
  }
  struct sigaction now {};
  ASSERT_EQ(::sigaction(SIGUSR2, &before, &now), 0);
  EXPECT_EQ(now.sa_handler, &own_handler);
}

TEST(Libraries, WithoutLibfabricAnErrorSaysWhatToInstall) {
  Settings settings = settings_for({"tcp", "tcp", "lo", "connected"}, 1);
  settings.libfabric = "libfabric-that-is-not-here.so.1";
  const auto rails = open_rails(settings);
  ASSERT_EQ(rails.status(), Status::not_found);
  const std::string text = rails.error().text();
  EXPECT_NE(text.find("libfabric1"), std::string::npos) << text;
  EXPECT_NE(text.find("RAILYARD_LIBFABRIC"), std::string::npos) << text;
}

TEST(Libraries, WithoutANetworkThisHostsMemoryIsTheRail) {
  Settings settings;
  settings.driver = "shm";
  auto rails = open_rails(settings);
  ASSERT_TRUE(rails.ok()) << rails.error().text();
  ASSERT_EQ(rails->size(), 1u);
  EXPECT_TRUE(rails->front()->fabric().starts_with(kSharedMemoryFabric));
  settings.shared_memory = "off";
  EXPECT_EQ(open_rails(settings).status(), Status::not_found);
}

TEST(Libraries, AutoWithoutLibfabricOpensRails) {
  Settings settings;
  settings.libfabric = "libfabric-that-is-not-here.so.1";
  auto rails = open_rails(settings);
  ASSERT_TRUE(rails.ok()) << rails.error().text();
  EXPECT_TRUE(rails->back()->fabric().starts_with(kSharedMemoryFabric));
}

}  // namespace
}  // namespace railyard::fabric
