#include "info_gpus.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "text.hpp"

namespace railyard::tool {

namespace {

using topology::AssignedNic;
using topology::GpuTable;

std::string names_text(const std::vector<AssignedNic>& rails, const GpuTable& table) {
  std::vector<std::string_view> names;
  names.reserve(rails.size());
  for (const AssignedNic& rail : rails) names.push_back(table.nics[rail.nic].name);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

/// Rails given by hand may be near and far.
std::string path_text(const std::vector<AssignedNic>& rails) {
  std::vector<std::string_view> paths;
  for (const AssignedNic& rail : rails)
    if (const char* const path = topology::to_string(rail.path); std::ranges::find(paths, path) == paths.end())
      paths.emplace_back(path);
  return paths.empty() ? "-" : fmt::format("{}", fmt::join(paths, ", "));
}

std::string spare_text(const std::vector<AssignedNic>& spares, const GpuTable& table) {
  if (spares.empty()) return "-";
  return fmt::format("{} ({})", table.nics[spares.front().nic].name, topology::to_string(spares.front().path));
}

void write_assigned(JsonWriter& json, std::string_view name, const std::vector<AssignedNic>& rails,
                    const GpuTable& table) {
  json.key(name).begin_array();
  for (const AssignedNic& rail : rails) {
    json.begin_object()
        .field("name", std::string_view(table.nics[rail.nic].name))
        .field("path", topology::to_string(rail.path))
        .end_object();
  }
  json.end_array();
}

}  // namespace

std::string gpu_table_text(const GpuTable& table) {
  if (table.gpus.empty()) return {};
  Table text(
      {{"GPU", Table::Align::right}, {"PCI"}, {"NUMA"}, {"rails"}, {"over"}, {"from"}, {"first spare"}, {"model"}});
  for (std::size_t i = 0; i < table.gpus.size(); ++i) {
    const topology::Gpu& gpu = table.gpus[i];
    const topology::GpuRails& rails = table.rails[i];
    text.add({fmt::format("{}", i), gpu.address.text(),
              gpu.location.numa < 0 ? "-" : fmt::format("{}", gpu.location.numa), names_text(rails.rails, table),
              path_text(rails.rails), rails.by_hand ? "setting" : "topology", spare_text(rails.spares, table),
              fmt::format("{} {}", gpu.vendor, gpu.model)});
  }
  return text.text();
}

void write_gpus(JsonWriter& json, const GpuTable& table) {
  json.key("gpus").begin_array();
  for (std::size_t i = 0; i < table.gpus.size(); ++i) {
    const topology::Gpu& gpu = table.gpus[i];
    json.begin_object()
        .field("pci", std::string_view(gpu.address.text()))
        .field("vendor", std::string_view(gpu.vendor))
        .field("model", std::string_view(gpu.model))
        .field("numa", gpu.location.numa)
        .field("by_hand", table.rails[i].by_hand);
    write_assigned(json, "rails", table.rails[i].rails, table);
    write_assigned(json, "spares", table.rails[i].spares, table);
    json.end_object();
  }
  json.end_array();
}

}  // namespace railyard::tool
