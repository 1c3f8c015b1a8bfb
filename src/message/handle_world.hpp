/// How ranks that were given nothing but each other's handles become a world: each listens and hands its handle out,
/// everybody gets the handle of rank 0, and rank 0 serves the rendezvous of all (src/bootstrap) where it listens.
///
/// What it needs to say fits a channel's handle: addresses, port, and a secret, which is the key of the job.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "railyard/bootstrap.hpp"
#include "railyard/channel.hpp"
#include "railyard/settings.hpp"
#include "rendezvous/address.hpp"

namespace railyard::message {

/// Before it is known how many ranks there will be, and which of them this one is. Never blocks.
class HandleListener {
 public:
  /// Its addresses are those of the settings' interfaces.
  static Result<HandleListener> open(const Settings& settings);

  const Handle& handle() const { return handle_; }

 private:
  friend struct HandleWorld;
  HandleListener(rendezvous::Listener listener, const Handle& handle)
      : listener_(std::move(listener)), handle_(handle) {}

  rendezvous::Listener listener_;
  Handle handle_;
};

/// The ranks that met.
struct HandleWorld {
  std::unique_ptr<Bootstrap> bootstrap;
  std::string job_key;  ///< known to them alone

  /// Returns when all ranks are there, or with who is missing after `timeout_ns`. `first` is the handle of rank 0;
  /// `own` is used up.
  static Result<HandleWorld> open(const Handle& first, HandleListener own, int rank, int size, std::int64_t timeout_ns);
};

}  // namespace railyard::message
