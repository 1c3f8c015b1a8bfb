/// Rank 0's bootstrap where nobody else serves the rendezvous.
#pragma once

#include <memory>

#include "bootstrap/client.hpp"
#include "bootstrap/server.hpp"
#include "railyard/bootstrap.hpp"

namespace railyard::bootstrap {

/// Starts `server`, which lives as long as what is returned, and joins it.
Result<std::unique_ptr<Bootstrap>> open_hosting(std::unique_ptr<Server> server, const ClientOptions& client);

}  // namespace railyard::bootstrap
