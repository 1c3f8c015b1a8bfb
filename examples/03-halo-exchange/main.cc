// Heat in a rod, cut over the ranks. In every step each rank puts its two end cells into its neighbours' windows, with
// a signal that counts the steps: no barrier, no message matching, and a rank may run ahead of its neighbour by one
// step.
//
//   railyard launch -n 3 -- example-03-halo-exchange

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "railyard/window.hpp"
#include "railyard/world.hpp"

using railyard::Comparison;

namespace {

constexpr std::size_t kCells = 1000;  // of each rank
constexpr std::uint64_t kSteps = 500;

// A rank's window: the neighbours' end cells, in two sets that take turns, so that a neighbour one step ahead does not
// overwrite what is still to be read.
enum Side : std::size_t { kLeft = 0, kRight = 1 };
std::size_t halo_offset(Side side, std::uint64_t step) { return (side * 2 + step % 2) * sizeof(double); }

bool failed(const char* what, const railyard::Error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.text().c_str());
  return false;
}

double start_value(std::size_t cell, std::size_t cells) {
  return std::sin(3.14159265358979 * static_cast<double>(cell) / static_cast<double>(cells));
}

/// One step of the whole rod; its ends stay at zero.
void advance(const std::vector<double>& now, std::vector<double>& next, double left, double right) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    const double before = i == 0 ? left : now[i - 1];
    const double after = i + 1 == now.size() ? right : now[i + 1];
    next[i] = now[i] + 0.25 * (before - 2 * now[i] + after);
  }
}

/// Gives both neighbours our end cell and takes theirs. `left` and `right` stay zero at the rod's ends.
bool exchange(railyard::Window& window, int rank, int ranks, std::uint64_t step, const std::vector<double>& cells,
              double& left, double& right) {
  if (rank > 0) {
    // put_value takes the value at once; the signal after it arrives when the value has.
    auto put = window.put_value(rank - 1, halo_offset(kRight, step), cells.front());
    if (!put) return failed("put", put.error());
    if (auto told = window.signal(rank - 1, {.index = kRight}); !told) return failed("signal", told.error());
  }
  if (rank + 1 < ranks) {
    auto put = window.put_value(rank + 1, halo_offset(kLeft, step), cells.back());
    if (!put) return failed("put", put.error());
    if (auto told = window.signal(rank + 1, {.index = kLeft}); !told) return failed("signal", told.error());
  }
  const auto take = [&](Side side, double& value) {
    auto came = window.wait_signal(side, Comparison::greater_equal, step + 1);
    if (!came) return failed("halo", came.error());
    std::memcpy(&value, window.local().data() + halo_offset(side, step), sizeof(value));
    return true;
  };
  return (rank == 0 || take(kLeft, left)) && (rank + 1 == ranks || take(kRight, right));
}

bool run() {
  auto world = railyard::World::open();
  if (!world) return failed("no world", world.error());
  auto window = railyard::Window::allocate(*world, 4 * sizeof(double));
  if (!window) return failed("no window", window.error());
  const int rank = world->rank();
  const int ranks = world->size();
  const std::size_t all = kCells * static_cast<std::size_t>(ranks);
  const std::size_t first = kCells * static_cast<std::size_t>(rank);

  std::vector<double> cells(kCells);
  std::vector<double> next(kCells);
  for (std::size_t i = 0; i < kCells; ++i) cells[i] = start_value(first + i, all);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    double left = 0;
    double right = 0;
    if (!exchange(*window, rank, ranks, step, cells, left, right)) return false;
    advance(cells, next, left, right);
    cells.swap(next);
  }
  if (auto closed = window->close(); !closed) return failed("close", closed.error());

  // The same rod on one rank must give the same numbers, to the last bit.
  std::vector<double> alone(all);
  std::vector<double> alone_next(all);
  for (std::size_t i = 0; i < all; ++i) alone[i] = start_value(i, all);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    advance(alone, alone_next, 0, 0);
    alone.swap(alone_next);
  }
  const bool right = std::memcmp(cells.data(), alone.data() + first, kCells * sizeof(double)) == 0;
  std::printf("rank %d of %d: %llu steps, %s\n", rank, ranks, static_cast<unsigned long long>(kSteps),
              right ? "equal to the undivided rod" : "NOT equal to the undivided rod");
  return right;
}

}  // namespace

int main() { return run() ? 0 : 1; }
