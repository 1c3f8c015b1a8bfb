/// The rendezvous: listens where the ranks of one job meet and serves them from a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "railyard/result.hpp"
#include "rendezvous/address.hpp"

namespace railyard::bootstrap {

using rendezvous::Address;
using rendezvous::Listener;

struct ServerOptions {
  Address address;
  std::int32_t size = 1;
  std::string job_key;
  std::int64_t handshake_timeout_ns = 10'000'000'000;
  bool wrong_key_ends = false;           ///< a wrong proof for a rank that is still awaited ends the job
  std::size_t most_unauthenticated = 0;  ///< connections that have proven nothing yet; 0: by the job's size
};

class Server {
 public:
  /// Listens. Ranks may connect from now on; they are answered after `start`.
  static Result<std::unique_ptr<Server>> open(const ServerOptions& options);
  /// The same over a socket that listens already: its address was told before the number of ranks was known. The
  /// options' address is not used.
  static Result<std::unique_ptr<Server>> open(const ServerOptions& options, Listener listener);
  /// Delivers what is on its way, closes every connection, removes its socket file.
  ~Server();

  /// Starts the thread. Separate from `open`, so that a launcher can fork in between.
  Result<void> start();
  /// Where it listens: the port is known here when the options' was 0.
  const Address& address() const;
  /// Tells the ranks that wait for `rank` that its process ended. Any thread.
  void process_ended(std::int32_t rank, std::string how);
  /// For a forked child: lets go of the sockets and leaves the file alone.
  void abandon();

 private:
  class Loop;
  explicit Server(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace railyard::bootstrap
