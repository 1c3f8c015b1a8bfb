#include "sim_queue_pairs.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "json.hpp"
#include "sim/queue_pairs.hpp"
#include "svg.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

using Case = sim::QueuePairCase;

/// What is counted for each size.
struct Row {
  std::uint32_t channels;
  std::uint32_t shared_links;
  bool same_local_rank;
};
constexpr Row kRows[] = {{1, 1, false}, {2, 1, false}, {2, 2, false}, {4, 1, false},
                         {4, 2, false}, {4, 4, false}, {4, 1, true}};
/// The rows that the picture shows.
constexpr std::uint32_t kDrawnChannels = 4;
constexpr std::uint32_t kDrawnLinks = 1;

struct Count {
  Case shape;
  sim::QueuePairs found;
};

/// NCCL's own transport: one queue pair for each connection and NIC, and where the data is in GPU memory one more for
/// each that receives, to flush it.
std::uint64_t nccl(const Case& shape, bool flush) {
  return std::uint64_t{shape.peers()} * shape.rails * shape.channels * (flush ? 3 : 2);
}

/// AMD ANP: the connections to one peer share m queue pairs in each direction; each keeps the one for its flush.
std::uint64_t anp(const Case& shape, bool flush) {
  const std::uint32_t shared = std::min(shape.shared_links, shape.channels);
  return std::uint64_t{shape.peers()} * shape.rails * (2 * shared + (flush ? shape.channels : 0));
}

std::string counts_json(const std::vector<Count>& counts) {
  JsonWriter json;
  json.begin_object().key("rows").begin_array();
  for (const auto& [shape, found] : counts) {
    json.begin_object()
        .field("ranks", shape.ranks)
        .field("rails", shape.rails)
        .field("peers", shape.peers())
        .field("same_local_rank", shape.same_local_rank)
        .field("channels", shape.channels)
        .field("shared_links", shape.shared_links)
        .field("nccl", nccl(shape, false))
        .field("nccl_with_flush", nccl(shape, true))
        .field("anp", anp(shape, false))
        .field("anp_with_flush", anp(shape, true))
        .field("links", std::uint64_t{found.links})
        .field("queue_pairs", std::uint64_t{found.pairs})
        .end_object();
  }
  return json.end_array().end_object().finish();
}

void print_counts(const std::vector<Count>& counts) {
  using Align = Table::Align;
  Table table({{"ranks", Align::right},
               {"peers", Align::right},
               {"channels each way", Align::right},
               {"m", Align::right},
               {"NCCL", Align::right},
               {"with flush", Align::right},
               {"ANP", Align::right},
               {"with flush", Align::right},
               {"Railyard, counted", Align::right}});
  const auto text = [](std::uint64_t number) { return fmt::format("{}", number); };
  std::uint32_t ranks = counts.front().shape.ranks;
  for (const auto& [shape, found] : counts) {
    if (shape.ranks != std::exchange(ranks, shape.ranks)) table.rule();
    table.add({text(shape.ranks), text(shape.peers()), text(shape.channels), text(shape.shared_links),
               text(nccl(shape, false)), text(nccl(shape, true)), text(anp(shape, false)), text(anp(shape, true)),
               text(found.pairs)});
  }
  fmt::print("{}", table.text());
}

constexpr double kWidth = 1060;  // the names of curves are to the right of them
constexpr double kHeight = 470;
constexpr double kLeft = 90;
constexpr double kRight = 740;
constexpr double kTop = 90;
constexpr double kBottom = 410;
/// max_qp of AMD's NIC, the smallest limit that was seen.
constexpr std::uint32_t kSmallNic = 4096;
constexpr const char* kLimit = "#b42318";

using Anchor = Svg::Anchor;

/// Queue pairs of one rank over the ranks of its job, both by powers.
class QueuePairPlot {
 public:
  QueuePairPlot(Svg& svg, const std::vector<Count>& counts) : svg_(svg), counts_(counts) {
    std::vector<double> ranks;
    std::vector<double> values;
    for (const Count& each : counts) {
      ranks.push_back(each.shape.ranks);
      values.push_back(static_cast<double>(each.found.pairs));
      values.push_back(static_cast<double>(nccl(each.shape, false)));
    }
    first_ = std::log2(std::ranges::min(ranks));
    last_ = std::max(std::log2(std::ranges::max(ranks)), first_ + 1);  // a single size still needs a width
    low_ = std::pow(10, std::floor(std::log10(std::ranges::min(values))));
    high_ = std::pow(10, std::ceil(std::log10(std::ranges::max(values))));
  }

  void draw() {
    for (double value = low_; value <= high_; value *= 10) {
      svg_.line({kLeft, y_of(value)}, {kRight, y_of(value)}, value == low_ ? kAxis : kGrid);
      svg_.text({kLeft - 8, y_of(value) + 4}, fmt::format("{:.0f}", value),
                {.size = 12, .anchor = Anchor::end, .colour = kMuted});
    }
    draw_limit(kSmallNic * counts_.front().shape.rails);
    for (double power = std::ceil(first_); power <= last_; ++power) {
      svg_.text({x_of(std::exp2(power)), kBottom + 18}, fmt::format("{:.0f}", std::exp2(power)),
                {.size = 12, .anchor = Anchor::middle, .colour = kMuted});
    }
    svg_.text({(kLeft + kRight) / 2, kBottom + 38}, "ranks of the job",
              {.size = 12, .anchor = Anchor::middle, .colour = kMuted});
    draw_curve("#d55e00", "NCCL, to every rank", false, [](const Count& each) { return nccl(each.shape, false); });
    draw_curve("#e69f00", "ANP, m = 1", false, [](const Count& each) { return anp(each.shape, false); });
    draw_curve("#0072b2", "Railyard, m = 1", false, [](const Count& each) { return each.found.pairs; });
    draw_curve("#56b4e9", "Railyard, same local rank on each node", true,
               [](const Count& each) { return each.found.pairs; });
  }

 private:
  double x_of(double ranks) const { return kLeft + (kRight - kLeft) * (std::log2(ranks) - first_) / (last_ - first_); }
  double y_of(double value) const {
    return kBottom - (kBottom - kTop) * std::log(value / low_) / std::log(high_ / low_);
  }

  void draw_limit(double limit) {
    if (limit > high_) return;
    svg_.line({kLeft, y_of(limit)}, {kRight, y_of(limit)}, kLimit);
    svg_.text({kLeft + 6, y_of(limit) - 6}, fmt::format("NIC with max_qp {}", kSmallNic),
              {.size = 12, .colour = kLimit});
  }

  template <typename Value>
  void draw_curve(const char* colour, const char* name, bool same_local_rank, Value&& value) {
    std::vector<Svg::Point> points;
    std::uint64_t last = 0;
    for (const Count& each : counts_) {
      const Case& shape = each.shape;
      if (shape.channels != kDrawnChannels || shape.shared_links != kDrawnLinks ||
          shape.same_local_rank != same_local_rank) {
        continue;
      }
      last = value(each);
      points.push_back({x_of(shape.ranks), y_of(static_cast<double>(last))});
    }
    svg_.curve(points, colour);
    svg_.text({points.back().x + 10, points.back().y + 4}, fmt::format("{}: {}", name, last),
              {.size = 12, .colour = colour});
  }

  Svg& svg_;
  const std::vector<Count>& counts_;
  double first_ = 0;  ///< of the powers of two below
  double last_ = 1;
  double low_ = 1;  ///< a power of ten
  double high_ = 10;
};

std::string picture(const std::vector<Count>& counts, std::uint32_t rails) {
  Svg svg(kWidth, kHeight);
  svg.text({24, 36}, "Queue pairs of one rank", {.size = 18, .bold = true});
  svg.text(
      {24, 62},
      fmt::format("{} connections to each peer in each direction, {} rail{}, 8 ranks a node. NCCL and ANP by their "
                  "formulas, without flush; Railyard counted.",
                  kDrawnChannels, rails, rails == 1 ? "" : "s"),
      {.size = 13, .colour = kMuted});
  QueuePairPlot(svg, counts).draw();
  return svg.finish();
}

}  // namespace

int run_queue_pairs_command(std::span<const std::uint32_t> ranks, std::uint32_t rails, const std::string& json,
                            const std::string& svg) {
  std::vector<Count> counts;
  for (const std::uint32_t number : ranks) {
    fmt::print(stderr, "railyard sim: opening the channels of {} ranks\n", number);
    for (const Row& row : kRows) {
      const Case shape{number, rails, row.channels, row.shared_links, row.same_local_rank};
      const auto found = sim::count_queue_pairs(shape);
      if (!found) return report_error("sim", found.error());
      counts.push_back({shape, *found});
    }
  }
  print_counts(counts);
  if (!json.empty()) {
    if (auto written = write_text(json, counts_json(counts)); !written) return report_error("sim", written.error());
  }
  if (!svg.empty()) {
    if (auto written = write_text(svg, picture(counts, rails)); !written) return report_error("sim", written.error());
  }
  return kExitOk;
}

}  // namespace railyard::tool
