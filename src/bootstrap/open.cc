#include "bootstrap/open.hpp"

#include <fmt/format.h>

#include <utility>

#include "bootstrap/client.hpp"
#include "bootstrap/hosting.hpp"
#include "bootstrap/pmix.hpp"
#include "bootstrap/server.hpp"
#include "bootstrap/single.hpp"

namespace railyard {

using namespace bootstrap;

namespace {

std::int64_t timeout_of(const Settings& settings) { return std::int64_t{settings.bootstrap_timeout_ms} * 1'000'000; }

Result<void> check_rendezvous_settings(const Settings& settings) {
  const auto missing = [](std::string_view name, std::string_view what) {
    return Error(Status::invalid, fmt::format("{} is not set: {} (railyard launch sets all of RAILYARD_RENDEZVOUS, "
                                              "RAILYARD_RANK, RAILYARD_SIZE and RAILYARD_JOB_KEY)",
                                              name, what));
  };
  if (settings.rendezvous.empty()) return missing("RAILYARD_RENDEZVOUS", "give host:port of rank 0");
  if (settings.rank < 0) return missing("RAILYARD_RANK", "give this process's number, from 0");
  if (settings.size < 0) return missing("RAILYARD_SIZE", "give the number of ranks of the job");
  if (settings.job_key.empty()) return missing("RAILYARD_JOB_KEY", "give every rank the same secret");
  if (settings.rank >= settings.size) {
    return Error(Status::out_of_range,
                 fmt::format("RAILYARD_RANK={} is outside a job of RAILYARD_SIZE={}: ranks are 0 to {}", settings.rank,
                             settings.size, settings.size - 1));
  }
  return {};
}

Result<std::unique_ptr<Bootstrap>> open_rendezvous(const Settings& settings) {
  if (auto checked = check_rendezvous_settings(settings); !checked) return std::move(checked.error());
  auto address = Address::parse(settings.rendezvous);
  if (!address) return Error(address.status(), "RAILYARD_RENDEZVOUS: " + address.error().message());
  const bool launcher = settings.rendezvous_host == "launcher";

  ClientOptions client;
  client.address = *address;
  client.rank = settings.rank;
  client.size = settings.size;
  client.job_key = settings.job_key;
  client.timeout_ns = timeout_of(settings);
  if (launcher) client.description = "launcher";
  if (settings.rank != 0 || launcher) return open_client(client);

  if (address->kind == Address::Kind::tcp && address->port == 0) {
    return Error(Status::invalid, "RAILYARD_RENDEZVOUS: nobody can meet at port 0; name a port");
  }
  ServerOptions options;
  options.address = *address;
  options.size = settings.size;
  options.job_key = settings.job_key;
  options.wrong_key_ends = settings.wrong_key == "end";
  auto server = Server::open(options);
  if (!server) return Error(server.status(), "rank 0 cannot serve the rendezvous: " + server.error().message());
  return open_hosting(std::move(*server), client);
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> open_bootstrap(const Settings& settings) {
  if (settings.bootstrap == "single") return open_single();
  if (settings.bootstrap == "tcp") return open_rendezvous(settings);
  if (settings.bootstrap == "pmix") return open_pmix(timeout_of(settings));
  if (!settings.bootstrap.empty()) {
    return Error(Status::invalid,
                 fmt::format("RAILYARD_BOOTSTRAP='{}' is not allowed; use tcp, pmix, single or leave it empty",
                             settings.bootstrap));
  }
  if (!settings.rendezvous.empty()) return open_rendezvous(settings);
  if (started_by_pmix()) return open_pmix(timeout_of(settings));
  if (settings.size > 1) {
    return Error(Status::invalid, fmt::format("RAILYARD_SIZE={} ranks need a place to meet: set RAILYARD_RENDEZVOUS to "
                                              "host:port of rank 0, or start them with railyard launch or mpirun",
                                              settings.size));
  }
  return open_single();
}

}  // namespace railyard
