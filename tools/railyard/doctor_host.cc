/// Reads what the checks of `railyard doctor` look at.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "doctor_checks.hpp"

namespace railyard::tool {

const char* to_string(Verdict verdict) noexcept {
  static constexpr const char* kNames[] = {"ok", "n/a", "warn", "FAIL"};
  return kNames[static_cast<std::size_t>(verdict)];
}

std::optional<std::string> HostFiles::read(const std::string& name) const {
  std::ifstream in(path(name), std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  std::string content = text.str();
  while (!content.empty() && content.back() == '\n') content.pop_back();
  return content;
}

std::optional<double> HostFiles::number(const std::string& name) const {
  const auto text = read(name);
  if (!text) return std::nullopt;
  double value = 0;
  const auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (failure != std::errc()) return std::nullopt;
  return value;
}

std::vector<std::string> HostFiles::list(const std::string& name) const {
  std::vector<std::string> names;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(path(name), failure), end; !failure && entry != end;
       entry.increment(failure))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

bool HostFiles::exists(const std::string& name) const {
  std::error_code failure;
  return std::filesystem::exists(path(name), failure);
}

std::vector<std::pair<std::string, std::string>> HostFiles::environment() const {
  std::vector<std::pair<std::string, std::string>> all;
  std::istringstream in(read(of_process("environ")).value_or(""));
  for (std::string line; std::getline(in, line, '\0');) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) all.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  std::ranges::sort(all);
  return all;
}

std::vector<std::string> HostFiles::interfaces_up() const {
  std::vector<std::string> names = list("sys/class/net");
  std::erase_if(names, [this](const std::string& name) {
    return name == "lo" || read("sys/class/net/" + name + "/operstate") != "up";
  });
  return names;
}

}  // namespace railyard::tool
