/// The machine as a picture: a row for each NUMA node, in it boxes for what hangs together on PCIe, GPUs above NICs,
/// and a line from each GPU to the NICs that serve it, coloured by what lies between them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "svg.hpp"
#include "topo_tree.hpp"

namespace railyard::tool {

namespace {

constexpr double kMargin = 20;
constexpr double kDeviceWidth = 112;
constexpr double kDeviceHeight = 40;
constexpr double kGap = 10;
constexpr double kTitle = 24;
constexpr double kBand = 70;  // between GPUs and NICs, for the lines
constexpr double kMostWidth = 1500;
constexpr std::size_t kMostColumns = 8;
constexpr double kHeader = 84;
constexpr double kLeastGroup = 250;  // room for its title

constexpr const char* kNodeColour = "#f3f5f7";
constexpr const char* kGroupColour = "#e3e8ee";
constexpr const char* kGpuColour = "#bfe8c8";
constexpr const char* kNicColour = "#bddcf7";
constexpr const char* kSpareColour = "#ffffff";
/// By PathKind.
constexpr std::array kPathColours = {"#1a7f37", "#0969da", "#8250df", "#bc4c00", "#cf222e"};

struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

struct Placed {
  std::vector<Box> nodes;
  std::vector<std::vector<Box>> groups;  ///< by node
  std::vector<Box> gpus;                 ///< by index in the table
  std::vector<Box> nics;
  double width = 0;
  double height = 0;
};

std::size_t columns_of(std::size_t devices) { return std::clamp<std::size_t>(devices, 1, kMostColumns); }
std::size_t rows_of(std::size_t devices) { return (devices + kMostColumns - 1) / kMostColumns; }
double span_of(std::size_t devices, double size) { return static_cast<double>(devices) * (size + kGap) - kGap; }

double group_width(const TopoGroup& group) {
  const std::size_t columns = std::max(columns_of(group.gpus.size()), columns_of(group.nics.size()));
  return std::max(span_of(columns, kDeviceWidth) + 2 * kGap, kLeastGroup);
}

/// Puts a row's devices in the middle of their box.
void place_devices(const std::vector<std::size_t>& devices, std::vector<Box>& boxes, const Box& group, double y) {
  const double width = span_of(columns_of(devices.size()), kDeviceWidth);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    boxes[devices[i]] = {
        group.x + (group.width - width) / 2 + static_cast<double>(i % kMostColumns) * (kDeviceWidth + kGap),
        y + static_cast<double>(i / kMostColumns) * (kDeviceHeight + kGap), kDeviceWidth, kDeviceHeight};
  }
}

/// Groups of one line of a node's box: all have their GPUs and NICs at the same height.
double place_line(std::span<const TopoGroup> groups, double x, double y, Placed& placed, std::vector<Box>& boxes) {
  std::size_t gpu_rows = 0;
  std::size_t nic_rows = 0;
  for (const TopoGroup& group : groups) {
    gpu_rows = std::max(gpu_rows, rows_of(group.gpus.size()));
    nic_rows = std::max(nic_rows, rows_of(group.nics.size()));
  }
  const double gpus = gpu_rows == 0 ? 0 : span_of(gpu_rows, kDeviceHeight);
  const double nics = nic_rows == 0 ? 0 : span_of(nic_rows, kDeviceHeight);
  const double band = gpu_rows == 0 || nic_rows == 0 ? 0 : kBand;
  const double height = kTitle + gpus + band + nics + kGap;
  for (const TopoGroup& group : groups) {
    const Box box{x, y, group_width(group), height};
    place_devices(group.gpus, placed.gpus, box, y + kTitle);
    place_devices(group.nics, placed.nics, box, y + kTitle + gpus + band);
    boxes.push_back(box);
    x += box.width + kGap;
  }
  return height;
}

Placed place_all(const TopoTree& tree) {
  Placed placed;
  placed.gpus.resize(tree.table.gpus.size());
  placed.nics.resize(tree.table.nics.size());
  double y = kHeader;
  for (const TopoNode& node : tree.nodes) {
    Box box{kMargin, y, 0, kTitle};
    std::vector<Box>& boxes = placed.groups.emplace_back();
    const std::span<const TopoGroup> all(node.groups);
    for (std::size_t first = 0; first < all.size();) {
      double width = kGap;
      std::size_t count = 0;
      while (first + count < all.size() && (count == 0 || width + group_width(all[first + count]) < kMostWidth))
        width += group_width(all[first + count++]) + kGap;
      box.height += place_line(all.subspan(first, count), box.x + kGap, box.y + box.height, placed, boxes) + kGap;
      box.width = std::max(box.width, width);
      first += count;
    }
    placed.nodes.push_back(box);
    y += box.height + kMargin;
    placed.width = std::max(placed.width, box.width);
  }
  for (Box& node : placed.nodes) node.width = placed.width;
  placed.width = std::max(placed.width + 2 * kMargin, 760.0);
  placed.height = y;
  return placed;
}

void draw_device(Svg& svg, const Box& box, const char* colour, const std::string& name, const std::string& detail) {
  svg.rectangle(box.x - 1, box.y - 1, box.width + 2, box.height + 2, kAxis);
  svg.rectangle(box.x, box.y, box.width, box.height, colour);
  const double middle = box.x + box.width / 2;
  svg.text({middle, box.y + 17}, name, {.size = 13, .anchor = Svg::Anchor::middle, .bold = true});
  svg.text({middle, box.y + 33}, detail, {.size = 11, .anchor = Svg::Anchor::middle, .colour = kMuted});
}

void draw_legend(Svg& svg) {
  double x = kMargin;
  for (std::size_t kind = 0; kind < kPathColours.size(); ++kind) {
    const std::string name = topology::to_string(static_cast<topology::PathKind>(kind));
    svg.line({x, 62}, {x + 24, 62}, kPathColours[kind], 3);
    svg.text({x + 30, 66}, name, {.size = 12, .colour = kMuted});
    x += 50 + 8.0 * static_cast<double>(name.size());
  }
}

std::string shortened(const std::string& text, std::size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 1) + ".";
}

void draw_lines(Svg& svg, const TopoTree& tree, const Placed& placed) {
  for (std::size_t gpu = 0; gpu < tree.table.rails.size(); ++gpu) {
    const Box& from = placed.gpus[gpu];
    for (const topology::AssignedNic& rail : tree.table.rails[gpu].rails) {
      const Box& to = placed.nics[rail.nic];
      const bool below = to.y >= from.y;
      svg.line({from.x + from.width / 2, below ? from.y + from.height : from.y},
               {to.x + to.width / 2, below ? to.y : to.y + to.height},
               kPathColours[static_cast<std::size_t>(rail.path)], 2.5);
    }
  }
}

}  // namespace

std::string topo_picture(const TopoTree& tree) {
  const Placed placed = place_all(tree);
  Svg svg(placed.width, placed.height);
  svg.text({kMargin, 30},
           fmt::format("{} GPU{}, {} NIC{}: which rails serve which GPU", tree.table.gpus.size(),
                       tree.table.gpus.size() == 1 ? "" : "s", tree.table.nics.size(),
                       tree.table.nics.size() == 1 ? "" : "s"),
           {.size = 18, .bold = true});
  draw_legend(svg);
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const Box& node = placed.nodes[i];
    svg.rectangle(node.x, node.y, node.width, node.height, kNodeColour);
    svg.text({node.x + kGap, node.y + 17}, node_title(tree.nodes[i]), {.size = 13, .bold = true});
    for (std::size_t j = 0; j < placed.groups[i].size(); ++j) {
      const Box& group = placed.groups[i][j];
      svg.rectangle(group.x, group.y, group.width, group.height, kGroupColour);
      svg.text({group.x + kGap, group.y + 16}, group_title(tree.nodes[i].groups[j]), {.size = 11, .colour = kMuted});
    }
  }
  draw_lines(svg, tree, placed);
  for (std::size_t i = 0; i < tree.table.gpus.size(); ++i)
    draw_device(svg, placed.gpus[i], kGpuColour, fmt::format("GPU {}", i), tree.table.gpus[i].address.text());
  for (std::size_t i = 0; i < tree.table.nics.size(); ++i) {
    const topology::Nic& nic = tree.table.nics[i];
    const std::string where = nic.location.function();
    draw_device(svg, placed.nics[i], served_by(tree, i).empty() ? kSpareColour : kNicColour, shortened(nic.name, 14),
                where.empty() ? nic.provider : where);
  }
  return svg.finish();
}

}  // namespace railyard::tool
