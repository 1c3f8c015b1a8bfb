#include "topology/pci.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <fstream>

namespace railyard::topology {

namespace {

/// Whether `text` has the shape of `pattern`, in which 'x' stands for a hexadecimal digit.
bool has_shape(std::string_view text, std::string_view pattern) {
  constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
  return std::ranges::equal(text, pattern, [&](char character, char expected) {
    return expected == 'x' ? kDigits.find(character) != std::string_view::npos : character == expected;
  });
}

/// "0000:17:00.0"; a domain made up by a hypervisor may have more digits.
bool is_function(std::string_view name) {
  return has_shape(name, "xxxx:xx:xx.x") || has_shape(name, "xxxxx:xx:xx.x") || has_shape(name, "xxxxxxxx:xx:xx.x");
}

/// "pci0000:17"
bool is_host_bridge(std::string_view name) {
  return has_shape(name, "pcixxxx:xx") || has_shape(name, "pcixxxxx:xx") || has_shape(name, "pcixxxxxxxx:xx");
}

std::string resolve(const std::string& link) {
  std::array<char, PATH_MAX> path{};
  return ::realpath(link.c_str(), path.data()) == nullptr ? std::string() : std::string(path.data());
}

std::uint32_t hexadecimal(std::string_view digits) {
  std::uint32_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  return number;
}

}  // namespace

std::string PciAddress::text() const { return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function); }

std::optional<PciAddress> parse_pci_address(std::string_view text) {
  constexpr std::size_t kShort = 7;  // "17:00.0"
  if (!is_function(text) && !has_shape(text, "xx:xx.x")) return std::nullopt;
  PciAddress address;
  if (text.size() > kShort) address.domain = hexadecimal(text.substr(0, text.size() - kShort - 1));
  text.remove_prefix(text.size() - kShort);
  address.bus = hexadecimal(text.substr(0, 2));
  address.device = hexadecimal(text.substr(3, 2));
  address.function = hexadecimal(text.substr(6));
  return address;
}

PciLocation parse_pci_path(std::string_view path) {
  PciLocation location;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = path.substr(begin, end - begin);
    if (is_host_bridge(name)) {
      location.root = name;
      location.bridges.clear();
    }
    if (is_function(name)) {
      location.path = path.substr(0, end);
      location.bridges.emplace_back(name);
      if (location.root.empty())
        location.root = name;  // a bus without a named bridge: what hangs from one function is near
    }
    begin = end + 1;
  }
  if (location.path.empty()) return {};
  if (!location.bridges.empty()) location.bridges.pop_back();  // the last one is the device itself
  return location;
}

PciLocation find_pci_location(std::string_view nic, const std::string& sys) {
  // A name is one folder: anything else would lead out of the class.
  if (nic.empty() || nic.starts_with('.') || nic.find('/') != std::string_view::npos) return {};
  // libfabric puts the kind of endpoint behind the name of some RDMA devices, our verbs rails the number of the port.
  const std::string_view device = nic.substr(0, nic.find_last_of("-:"));
  for (const auto& link :
       {fmt::format("{}/class/net/{}/device", sys, nic), fmt::format("{}/class/infiniband/{}/device", sys, nic),
        fmt::format("{}/class/infiniband/{}/device", sys, device)}) {
    PciLocation location = parse_pci_path(resolve(link));
    if (location.path.empty()) continue;
    std::ifstream(location.path + "/numa_node") >> location.numa;
    return location;
  }
  return {};
}

std::vector<int> near_processors(const PciAddress& address, const std::string& sys) {
  constexpr int kMost = 65536;
  std::string list;  // "0-15,32-47"
  std::ifstream(fmt::format("{}/bus/pci/devices/{}/local_cpulist", sys, address.text())) >> list;
  std::vector<int> found;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) return {};
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') parsed = std::from_chars(parsed.ptr + 1, end, last);
    if (parsed.ec != std::errc() || first < 0 || last < first || last >= kMost) return {};
    for (int number = first; number <= last; ++number) found.push_back(number);
    if (parsed.ptr < end && *parsed.ptr != ',') return {};
    at = parsed.ptr + 1;
  }
  return found;
}

}  // namespace railyard::topology
