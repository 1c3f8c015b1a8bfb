#include "topology/gpu_rails.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/nearest.hpp"
#include "fabric/rail.hpp"

namespace railyard::topology {

namespace {

constexpr std::string_view kByHandSetting = "RAILYARD_GPU_RAILS";

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <typename... Parts>
Error wrong_setting(Status status, fmt::format_string<Parts...> format, Parts&&... parts) {
  return Error(status, fmt::format("{}: {}", kByHandSetting, fmt::format(format, std::forward<Parts>(parts)...)));
}

/// A GPU by its number in `railyard info` or by its PCI address.
Result<std::size_t> find_gpu(std::string_view name, std::span<const Gpu> gpus) {
  std::size_t number = 0;
  const char* const end = name.data() + name.size();
  if (const auto [stopped, failure] = std::from_chars(name.data(), end, number);
      failure == std::errc() && stopped == end) {
    if (number < gpus.size()) return number;
    return wrong_setting(Status::not_found,
                         "no GPU {}: this host has {}, counted from 0 in the order of their addresses", name,
                         gpus.size());
  }
  const auto address = parse_pci_address(name);
  if (!address)
    return wrong_setting(Status::invalid, "'{}' is neither the number nor the PCI address (0000:17:00.0) of a GPU",
                         name);
  const auto found = std::ranges::find(gpus, *address, &Gpu::address);
  if (found == gpus.end()) {
    std::vector<std::string> known;
    for (const Gpu& gpu : gpus) known.push_back(gpu.address.text());
    return wrong_setting(Status::not_found, "no GPU at {}: there are {}", address->text(), fmt::join(known, ", "));
  }
  return static_cast<std::size_t>(found - gpus.begin());
}

Result<std::vector<std::size_t>> find_nics(std::string_view list, std::span<const Nic> nics) {
  std::vector<std::string_view> known;
  for (const Nic& nic : nics) known.push_back(nic.name);
  std::vector<std::size_t> found;
  for (const std::string_view name : split(list, ',')) {
    const auto nic = static_cast<std::size_t>(std::ranges::find(known, name) - known.begin());
    if (nic == known.size()) {
      if (known.empty()) return wrong_setting(Status::not_found, "no NIC '{}': there is none", name);
      return wrong_setting(Status::not_found, "no NIC '{}'; did you mean {}?", name, nearest_name(name, known));
    }
    if (std::ranges::find(found, nic) != found.end())
      return wrong_setting(Status::invalid, "'{}' names {} twice", list, name);
    found.push_back(nic);
  }
  return found;
}

/// "0=mlx5_0,mlx5_1;0000:9a:00.0=mlx5_2": for each GPU its NICs, or none.
Result<std::vector<std::vector<std::size_t>>> parse_by_hand(std::string_view text, std::span<const Gpu> gpus,
                                                            std::span<const Nic> nics) {
  std::vector<std::vector<std::size_t>> all(gpus.size());
  if (text.empty()) return all;
  for (const std::string_view part : split(text, ';')) {
    const std::size_t equals = part.find('=');
    if (equals == 0 || equals == std::string_view::npos || equals + 1 == part.size())
      return wrong_setting(Status::invalid, "'{}' is not GPU=NIC,NIC; parts are separated by ;", part);
    // Settings are the same on all hosts of a job; one without GPUs has no use for this one.
    if (gpus.empty()) continue;
    auto gpu = find_gpu(part.substr(0, equals), gpus);
    if (!gpu) return std::move(gpu.error());
    if (!all[*gpu].empty())
      return wrong_setting(Status::invalid, "the GPU at {} is named twice", gpus[*gpu].address.text());
    auto chosen = find_nics(part.substr(equals + 1), nics);
    if (!chosen) return std::move(chosen.error());
    all[*gpu] = std::move(*chosen);
  }
  return all;
}

}  // namespace

Result<std::string> GpuTable::interfaces_of(std::string_view gpu) const {
  const auto address = parse_pci_address(gpu);
  if (!address) return Error(Status::invalid, fmt::format("'{}' is no PCI address (0000:17:00.0)", gpu));
  const auto found = std::ranges::find(rails, *address, &GpuRails::gpu);
  if (found == rails.end())
    return Error(Status::not_found, fmt::format("there is no GPU at {} on this host", address->text()));
  std::vector<std::string_view> names;
  for (const AssignedNic& rail : found->rails) names.push_back(nics[rail.nic].name);
  return fmt::format("{}", fmt::join(names, ","));
}

Result<GpuTable> make_gpu_table(const Settings& settings, Machine machine, std::vector<Nic> nics) {
  for (Nic& nic : nics) {
    const auto address = parse_pci_address(nic.location.function());
    if (!address) continue;
    const auto known = machine.devices.find(*address);
    if (known == machine.devices.end()) continue;
    std::string path = std::move(nic.location.path);
    nic.location = known->second;
    nic.location.path = std::move(path);
  }
  AssignmentOptions options;
  options.most_per_gpu = settings.rails_per_gpu;
  auto by_hand = parse_by_hand(settings.gpu_rails, machine.gpus, nics);
  if (!by_hand) return std::move(by_hand.error());
  options.by_hand = std::move(*by_hand);
  GpuTable table;
  table.rails = assign_nics(machine.gpus, nics, options);
  table.gpus = std::move(machine.gpus);
  table.nics = std::move(nics);
  return table;
}

Result<GpuTable> find_gpu_table(const Settings& settings) {
  auto machine = read_machine();
  if (!machine) return std::move(machine.error());
  auto offers = fabric::chosen_offers(settings);
  if (!offers) return std::move(offers.error());
  return make_gpu_table(settings, std::move(*machine), nics_of(*offers));
}

}  // namespace railyard::topology
