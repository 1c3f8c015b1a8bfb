// Heat on a plate, cut into tiles of a grid of ranks. The ranks of each row and of each column of the grid are a world
// of their own (World::split), whose ranks are neighbours. Edges go by put_strided: a row of a tile in one block, a
// column as many. What the plate lost is summed by float atomics.
//
//   railyard launch -n 4 -- example-07-grid-halo

#include <cmath>
#include <cstdio>
#include <vector>

#include "railyard/window.hpp"
#include "railyard/world.hpp"

using railyard::AtomicOp;
using railyard::Comparison;
using railyard::Window;
using railyard::World;

namespace {

constexpr std::size_t kSide = 64;          // cells of a tile, each way
constexpr std::size_t kPitch = kSide + 2;  // with the neighbours' edges around them
constexpr std::size_t kTile = kPitch * kPitch * sizeof(double);
constexpr std::uint64_t kSteps = 100;

bool failed(const char* what, const railyard::Error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.text().c_str());
  return false;
}

std::size_t cell(std::size_t row, std::size_t column) { return row * kPitch + column; }

/// The neighbours along one axis: a window of two tiles that take turns, one for even steps and one for odd ones, so
/// that a neighbour one step ahead does not overwrite what is still read.
struct Axis {
  World world;
  Window window;
  railyard::Strides edge;  // of a tile, as this axis gives it away

  enum Signal : std::size_t { kFromBefore, kFromAfter };

  bool exchange(std::uint64_t step, const std::vector<double>& tile, std::size_t first, std::size_t last,
                std::size_t before_first, std::size_t after_last) {
    const std::size_t turn = step % 2 * kTile;
    const int rank = world.rank();
    const auto give = [&](int to, std::size_t mine, std::size_t theirs, std::size_t signal) {
      auto put = window.put_strided_signal(to, turn + theirs * sizeof(double), tile.data() + mine, edge, {signal});
      // The tile changes in this step: it must have been read.
      if (put) {
        if (auto read = window.wait(*put, railyard::Completion::local); !read) return failed("edge", read.error());
      }
      return put ? true : failed("edge", put.error());
    };
    if (rank > 0 && !give(rank - 1, first, after_last, kFromAfter)) return false;
    if (rank + 1 < world.size() && !give(rank + 1, last, before_first, kFromBefore)) return false;
    const auto take = [&](int from, std::size_t signal) {
      auto came = window.wait_signal(signal, Comparison::greater_equal, step + 1, {}, from);
      return came ? true : failed("neighbour", came.error());
    };
    return (rank == 0 || take(rank - 1, kFromBefore)) && (rank + 1 == world.size() || take(rank + 1, kFromAfter));
  }
  const double* received(std::uint64_t step) const {
    return reinterpret_cast<const double*>(window.local().data()) + step % 2 * kPitch * kPitch;
  }
};

railyard::Result<Axis> open_axis(World& world, int color, railyard::Strides edge) {
  auto part = world.split(color, world.rank());
  if (!part) return std::move(part.error());
  auto window = Window::allocate(**part, 2 * kTile);
  if (!window) return std::move(window.error());
  return Axis{std::move(**part), std::move(*window), edge};
}

bool run() {
  auto world = World::open();
  if (!world) return failed("no world", world.error());
  // As square a grid of ranks as their number allows.
  int columns = static_cast<int>(std::sqrt(world->size()));
  while (world->size() % columns != 0) --columns;
  const int row = world->rank() / columns;
  const int column = world->rank() % columns;
  auto across = open_axis(*world, row, {kSide, sizeof(double), kPitch * sizeof(double), kPitch * sizeof(double)});
  if (!across) return failed("row", across.error());
  auto along = open_axis(*world, column, {1, kSide * sizeof(double), 0, 0});
  if (!along) return failed("column", along.error());
  auto sums = Window::allocate(*world, 2 * sizeof(double));
  if (!sums) return failed("sums", sums.error());

  std::vector<double> tile(kPitch * kPitch);
  double heat = 0;
  for (std::size_t i = 1; i <= kSide; ++i) {
    for (std::size_t j = 1; j <= kSide; ++j) heat += tile[cell(i, j)] = static_cast<double>((i * 7 + j * 13) % 32);
  }
  const auto add = [&](std::size_t index, double value) {
    auto added = sums->atomic<double>(0, index * sizeof(double), AtomicOp::add, value);
    return added ? true : failed("sum", added.error());
  };
  if (!add(0, heat)) return false;

  std::vector<double> next = tile;
  double lost = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    if (!across->exchange(step, tile, cell(1, 1), cell(1, kSide), cell(1, 0), cell(1, kSide + 1))) return false;
    if (!along->exchange(step, tile, cell(1, 1), cell(kSide, 1), cell(0, 1), cell(kSide + 1, 1))) return false;
    for (std::size_t i = 1; i <= kSide; ++i) {
      tile[cell(i, 0)] = across->received(step)[cell(i, 0)];
      tile[cell(i, kSide + 1)] = across->received(step)[cell(i, kSide + 1)];
      tile[cell(0, i)] = along->received(step)[cell(0, i)];
      tile[cell(kSide + 1, i)] = along->received(step)[cell(kSide + 1, i)];
    }
    for (std::size_t i = 1; i <= kSide; ++i) {
      for (std::size_t j = 1; j <= kSide; ++j) {
        const double here = tile[cell(i, j)];
        next[cell(i, j)] = here + 0.125 * (tile[cell(i - 1, j)] + tile[cell(i + 1, j)] + tile[cell(i, j - 1)] +
                                           tile[cell(i, j + 1)] - 4 * here);
      }
    }
    // What leaves over the edges of the plate, whose outside is cold.
    for (std::size_t i = 1; i <= kSide; ++i) {
      if (row == 0) lost += 0.125 * tile[cell(1, i)];
      if (row == world->size() / columns - 1) lost += 0.125 * tile[cell(kSide, i)];
      if (column == 0) lost += 0.125 * tile[cell(i, 1)];
      if (column == columns - 1) lost += 0.125 * tile[cell(i, kSide)];
    }
    tile.swap(next);
  }
  heat = 0;
  for (std::size_t i = 1; i <= kSide; ++i) {
    for (std::size_t j = 1; j <= kSide; ++j) heat += tile[cell(i, j)];
  }
  if (!add(1, heat + lost)) return false;
  if (auto met = sums->barrier(); !met) return failed("barrier", met.error());
  bool right = true;
  if (world->rank() == 0) {
    const auto* const both = reinterpret_cast<const double*>(sums->local().data());
    right = std::abs(both[0] - both[1]) < 1e-9 * both[0];
    std::printf("%d x %d tiles, %llu steps: heat %.6f before, %.6f after with what was lost: %s\n",
                world->size() / columns, columns, static_cast<unsigned long long>(kSteps), both[0], both[1],
                right ? "none is missing" : "SOME IS MISSING");
  }
  for (Window* window : {&across->window, &along->window, &*sums}) {
    if (auto closed = window->close(); !closed) return failed("close", closed.error());
  }
  return right;
}

}  // namespace

int main() { return run() ? 0 : 1; }
