// A plate of cells in GPU memory, cut into bands of rows, one for each rank. In every step each cell becomes a sum over
// its neighbours. The kernel that computes a band's edge row puts it into the neighbour's memory itself, and the
// neighbour's next kernel waits for it there: no host in between, no barrier, and a rank may run a step ahead.
//
//     railyard launch -n 2 ./example-09-halo-exchange-in-kernels
#include <vector>

#include "../cuda_program.cuh"

namespace {

using railyard::device::Comparison;
using railyard::device::Scope;
using railyard::device::Status;
using Cell = unsigned;  // sums wrap: every rank and the undivided plate agree to the last bit

constexpr unsigned kColumns = 1024;
constexpr unsigned kRows = 64;  // of each rank
constexpr unsigned kSteps = 100;
constexpr unsigned kThreads = 256;
constexpr std::uint64_t kRowBytes = kColumns * sizeof(Cell);
// A plate has the neighbours' rows above and below its own; two plates take turns.
constexpr std::uint64_t kPlateCells = std::uint64_t{kRows + 2} * kColumns;
constexpr std::uint64_t kPlateBytes = kPlateCells * sizeof(Cell);
enum : std::uint64_t { kFromAbove = 0, kFromBelow = 1 };  // signals: one for each step

__host__ __device__ Cell next_cell(const Cell* row, unsigned column) {
  const Cell left = column == 0 ? 0 : row[column - 1];
  const Cell right = column + 1 == kColumns ? 0 : row[column + 1];
  const Cell* const above = row - kColumns;
  const Cell* const below = row + kColumns;
  return 3 * row[column] + left + right + 5 * above[column] + 7 * below[column] + 1;
}

/// One block for each row of the band. `step` counts from one.
__global__ void advance(railyard::device::Window window, unsigned step, Status* ended) {
  const auto* const now = reinterpret_cast<const Cell*>(window.local() + (step - 1) % 2 * kPlateBytes);
  auto* const next = reinterpret_cast<Cell*>(window.local() + step % 2 * kPlateBytes);
  const unsigned row = blockIdx.x + 1;
  const bool top = row == 1;
  const bool bottom = row == kRows;
  const int above = window.rank() - 1;
  const int below = window.rank() + 1;
  Status status = Status::ok;
  // The neighbours' rows of the step before. (The first ones were there at the start.) A row that this block has sent
  // is about to be overwritten: it must have left.
  if (top && above >= 0)
    status = window.wait_signal<Scope::block>(kFromAbove, Comparison::greater_equal, step - 1, above);
  if (status == Status::ok && bottom && below < window.size())
    status = window.wait_signal<Scope::block>(kFromBelow, Comparison::greater_equal, step - 1, below);
  if (status == Status::ok && (top || bottom)) status = window.quiet<Scope::block>();
  if (status == Status::ok) {
    for (unsigned column = threadIdx.x; column < kColumns; column += blockDim.x)
      next[row * kColumns + column] = next_cell(now + row * kColumns, column);
    const std::uint64_t plate = step % 2 * kPlateBytes;
    if (top && above >= 0)
      status = window
                   .put_signal<Scope::block>(above, plate + (kRows + 1) * kRowBytes, next + row * kColumns, kRowBytes,
                                             {kFromBelow})
                   .status();
    if (status == Status::ok && bottom && below < window.size())
      status = window.put_signal<Scope::block>(below, plate, next + row * kColumns, kRowBytes, {kFromAbove}).status();
  }
  if (status != Status::ok && threadIdx.x == 0) *ended = status;
}

Cell first_cell(unsigned row, unsigned column) { return row * 2654435761U + column * 40503U; }

/// The whole plate by one processor: what the ranks should come to.
std::vector<Cell> undivided(unsigned rows) {
  std::vector<Cell> now((rows + 2) * kColumns);
  for (unsigned row = 0; row < rows; ++row)
    for (unsigned column = 0; column < kColumns; ++column) now[(row + 1) * kColumns + column] = first_cell(row, column);
  std::vector<Cell> next(now);
  for (unsigned step = 0; step < kSteps; ++step, now.swap(next))
    for (unsigned row = 1; row <= rows; ++row)
      for (unsigned column = 0; column < kColumns; ++column)
        next[row * kColumns + column] = next_cell(now.data() + row * kColumns, column);
  return now;
}

}  // namespace

int main() {
  auto world = must(railyard::World::open());
  CUDA(cudaSetDevice(0));
  std::byte* memory = nullptr;
  Status* ended = nullptr;
  CUDA(cudaMalloc(&memory, 2 * kPlateBytes));
  CUDA(cudaMallocHost(&ended, sizeof *ended));
  *ended = Status::ok;
  // Rows -1 and kRows of the band are the neighbours' first ones; outside the plate they are zero, and stay so.
  const unsigned rows = kRows * static_cast<unsigned>(world.size());
  const unsigned first = kRows * static_cast<unsigned>(world.rank());
  std::vector<Cell> band(kPlateCells);
  for (unsigned row = 0; row < kRows + 2; ++row)
    for (unsigned column = 0; column < kColumns; ++column)
      if (first + row > 0 && first + row <= rows) band[row * kColumns + column] = first_cell(first + row - 1, column);
  CUDA(cudaMemset(memory, 0, 2 * kPlateBytes));
  CUDA(cudaMemcpy(memory, band.data(), kPlateBytes, cudaMemcpyHostToDevice));
  CUDA(cudaDeviceSynchronize());
  auto window = must(railyard::Window::adopt(world, {memory, 2 * kPlateBytes}));
  railyard::DeviceOptions options;
  options.device = 0;
  options.rings = kRows;  // each edge row's block has a ring of its own
  give_memory(options, window);
  {
    auto proxy = must(railyard::DeviceProxy::open(window, options));
    must(window.barrier());
    for (unsigned step = 1; step <= kSteps; ++step) advance<<<kRows, kThreads>>>(proxy.handle(), step, ended);
    CUDA(cudaDeviceSynchronize());
    if (*ended != Status::ok) must(proxy.status());
    must(window.barrier());
    must(proxy.close());
  }
  CUDA(cudaMemcpy(band.data(), memory + kSteps % 2 * kPlateBytes, kPlateBytes, cudaMemcpyDeviceToHost));
  must(window.close());
  const std::vector<Cell> right = undivided(rows);
  std::uint64_t wrong = 0;
  for (unsigned row = 1; row <= kRows; ++row)
    for (unsigned column = 0; column < kColumns; ++column)
      wrong += band[row * kColumns + column] != right[(first + row) * kColumns + column] ? 1 : 0;
  std::printf("rank %d: %u steps of %u rows of %u cells, %llu cells wrong\n", world.rank(), kSteps, kRows, kColumns,
              static_cast<unsigned long long>(wrong));
  return wrong == 0 && *ended == Status::ok ? 0 : 1;
}
