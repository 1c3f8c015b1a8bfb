#include "bootstrap/hosting.hpp"

#include <string>
#include <utility>
#include <vector>

namespace railyard::bootstrap {

namespace {

/// The rendezvous lives as long as its client.
class Hosting final : public Bootstrap {
 public:
  Hosting(std::unique_ptr<Server> server, std::unique_ptr<Bootstrap> client)
      : server_(std::move(server)), client_(std::move(client)) {}

  int rank() const override { return client_->rank(); }
  int size() const override { return client_->size(); }
  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override {
    return client_->allgather(mine, deadline);
  }
  Result<void> barrier(Deadline deadline) override { return client_->barrier(deadline); }
  std::string describe() const override { return client_->describe(); }

 private:
  std::unique_ptr<Server> server_;
  std::unique_ptr<Bootstrap> client_;  ///< destroyed first: it says good-bye to the server
};

}  // namespace

Result<std::unique_ptr<Bootstrap>> open_hosting(std::unique_ptr<Server> server, const ClientOptions& client) {
  if (auto started = server->start(); !started) return std::move(started.error());
  auto own = open_client(client);
  if (!own) return std::move(own.error());
  return std::unique_ptr<Bootstrap>(std::make_unique<Hosting>(std::move(server), std::move(*own)));
}

}  // namespace railyard::bootstrap
