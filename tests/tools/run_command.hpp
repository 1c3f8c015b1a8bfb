/// Runs a program as a user would and keeps what it said.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace railyard::testing {

/// A folder that goes with its owner.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "railyard-tools-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Outcome {
  int exit_code = -1;  ///< 128 and the signal for a program that was ended by one
  std::string output;
  std::string errors;
};

using Variables = std::map<std::string, std::string>;

/// The environment without any RAILYARD_ variable of whoever runs the tests, and with `more`.
inline std::vector<std::string> clean_environment(const Variables& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    if (name.rfind("RAILYARD_", 0) != 0 && more.find(name) == more.end()) all.push_back(text);
  }
  for (const auto& [name, value] : more) all.push_back(name + "=" + value);
  return all;
}

inline std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// Runs `words` and waits for its end. The tests' own limit ends a hang.
inline Outcome run(std::vector<std::string> words, const Variables& more = {}) {
  const ScratchFolder scratch;
  std::vector<std::string> environment = clean_environment(more);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, scratch.file("out").c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, scratch.file("err").c_str(), flags, 0600);
  pid_t child = -1;
  Outcome outcome;
  if (posix_spawn(&child, words.front().c_str(), &actions, nullptr, pointers(words).data(),
                  pointers(environment).data()) == 0) {
    int status = 0;
    waitpid(child, &status, 0);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  posix_spawn_file_actions_destroy(&actions);
  outcome.output = read_file(scratch.file("out"));
  outcome.errors = read_file(scratch.file("err"));
  return outcome;
}

/// The same for the railyard command of this build.
inline Outcome railyard_command(const std::vector<std::string>& arguments, const Variables& more = {}) {
  std::vector<std::string> words{RAILYARD_COMMAND};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run(std::move(words), more);
}

/// Rails that every machine has, and no other.
inline Variables on_loopback(Variables more = {}) {
  more.emplace("RAILYARD_SHARED_MEMORY", "off");
  more.emplace("RAILYARD_DRIVER", "tcp");
  more.emplace("RAILYARD_INTERFACES", "lo");
  return more;
}

}  // namespace railyard::testing
