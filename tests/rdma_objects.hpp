/// What the kernel says a process has of RDMA devices (`rdma resource show`).
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace railyard {

/// Of a kind ("qp", "cq", "pd", "mr"), those whose line has this word in it. Each is listed under the thread that made
/// it, which must still be there.
inline std::size_t rdma_objects(const std::string& kind, pid_t process, const std::string& word = "") {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> table(::popen(("rdma resource show " + kind).c_str(), "r"),
                                                              &::pclose);
  const std::string threads = "/proc/" + std::to_string(process) + "/task/";
  std::array<char, 1024> line{};
  std::size_t count = 0;
  while (table && std::fgets(line.data(), line.size(), table.get()) != nullptr) {
    const std::string text = line.data();
    const std::size_t at = text.find(" pid ");
    if (at == std::string::npos || text.find(word) == std::string::npos) continue;
    if (std::filesystem::exists(threads + std::to_string(std::atoi(text.c_str() + at + 5)))) ++count;
  }
  return count;
}

}  // namespace railyard
