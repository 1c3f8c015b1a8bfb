/// A stream of checked messages of 256 KiB from rank 0 to rank 1 over MPI, eight under way at a time, for some seconds.
/// mpicxx -std=c++20 -O2 -o mpi_stream bench/peers/mpi_stream.cc
/// mpi_stream SECONDS TIMELINE
#include <mpi.h>

#include <array>
#include <cstdlib>

#include "verified.hpp"

namespace {

constexpr int kDepth = 8;
constexpr int kStream = 1;
constexpr int kTotal = 2;

void send_all(double seconds) {
  std::vector<std::byte> memory(kDepth * peers::kMessage);
  std::array<MPI_Request, kDepth> requests;
  requests.fill(MPI_REQUEST_NULL);
  unsigned long long sent = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    const std::size_t slot = sent % kDepth;
    MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
    std::byte* const message = memory.data() + slot * peers::kMessage;
    peers::fill(message, sent);
    MPI_Isend(message, static_cast<int>(peers::kMessage), MPI_BYTE, 1, kStream, MPI_COMM_WORLD, &requests[slot]);
    ++sent;
  }
  MPI_Waitall(kDepth, requests.data(), MPI_STATUSES_IGNORE);
  MPI_Send(&sent, 1, MPI_UNSIGNED_LONG_LONG, 1, kTotal, MPI_COMM_WORLD);
}

void receive_all(const char* path) {
  peers::TimeLine line(path);
  peers::Arrivals arrivals;
  std::vector<std::byte> memory(kDepth * peers::kMessage);
  std::array<MPI_Request, kDepth + 1> requests;
  const auto receive = [&](int slot) {
    MPI_Irecv(memory.data() + static_cast<std::size_t>(slot) * peers::kMessage, static_cast<int>(peers::kMessage),
              MPI_BYTE, 0, kStream, MPI_COMM_WORLD, &requests[static_cast<std::size_t>(slot)]);
  };
  for (int slot = 0; slot < kDepth; ++slot) receive(slot);
  unsigned long long sent = ~0ULL;
  MPI_Irecv(&sent, 1, MPI_UNSIGNED_LONG_LONG, 0, kTotal, MPI_COMM_WORLD, &requests[kDepth]);
  while (arrivals.come() < sent) {
    int slot = 0;
    MPI_Waitany(kDepth + 1, requests.data(), &slot, MPI_STATUS_IGNORE);
    if (slot == kDepth) continue;
    arrivals.note(memory.data() + static_cast<std::size_t>(slot) * peers::kMessage);
    line.add(peers::kMessage);
    receive(slot);
  }
  line.flush();
  arrivals.print(sent);
  for (int slot = 0; slot < kDepth; ++slot) MPI_Cancel(&requests[static_cast<std::size_t>(slot)]);
  MPI_Waitall(kDepth, requests.data(), MPI_STATUSES_IGNORE);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc != 3) MPI_Abort(MPI_COMM_WORLD, 64);
  if (rank == 0) send_all(std::atof(argv[1]));
  if (rank == 1) receive_all(argv[2]);
  MPI_Finalize();
  return 0;
}
