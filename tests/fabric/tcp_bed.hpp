/// Tcp rails of one process over a loopback address, for tests of what their sockets are told.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "fabric/rail.hpp"
#include "fabric/tcp/driver.hpp"
#include "fabric/tcp/interface.hpp"

namespace railyard::fabric {

/// An offer on loopback at that address.
inline RailOffer loopback_offer(const char* address) {
  tcp::Interface interface;
  interface.device = "lo";
  interface.loopback = true;
  sockaddr_storage storage{};
  if (::inet_pton(AF_INET, address, &reinterpret_cast<sockaddr_in&>(storage).sin_addr) == 1)
    storage.ss_family = AF_INET;
  else if (::inet_pton(AF_INET6, address, &reinterpret_cast<sockaddr_in6&>(storage).sin6_addr) == 1)
    storage.ss_family = AF_INET6;
  interface.address = tcp::Endpoint::from(reinterpret_cast<const sockaddr&>(storage));
  RailOffer offer;
  offer.driver = offer.provider = "tcp";
  offer.domain = "lo";
  offer.loopback = true;
  offer.driver_data = std::make_shared<tcp::Interface>(interface);
  return offer;
}

/// The port that a rail listens at.
inline std::uint16_t port_of(const Rail& rail) {
  const auto address = tcp::TcpRailAddress::parse(rail.address(), "a test's rail");
  EXPECT_TRUE(address.ok());
  if (!address) return 0;
  return ntohs(address->endpoint.family() == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(address->endpoint.get())->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(address->endpoint.get())->sin_port);
}

/// Two rails, and a link from the first to the second.
struct TcpBed {
  std::unique_ptr<Rail> from;
  std::unique_ptr<Rail> to;
  RemoteId link = 0;

  static Result<TcpBed> open(const Settings& settings, const char* address = "127.0.0.1") {
    const RailOffer offer = loopback_offer(address);
    auto from = open_tcp(offer, settings);
    if (!from) return std::move(from.error());
    auto to = open_tcp(offer, settings);
    if (!to) return std::move(to.error());
    return TcpBed{std::move(*from), std::move(*to)};
  }
  void poll() {
    std::array<Event, 16> events;
    for (Rail* rail : {from.get(), to.get()}) rail->poll(events);
  }
  bool poll_until(const std::function<bool()>& done) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      poll();
    }
    return true;
  }
  /// Connects, and sends `bytes` over the link in one message.
  bool connect_and_send(LinkTag tag, std::size_t bytes) {
    const auto remote = from->connect(to->address(), tag);
    if (!remote) return false;
    link = *remote;
    return send(bytes);
  }
  bool send(std::size_t bytes) {
    std::vector<std::byte> source(bytes), target(bytes);
    PostContext sent, received;
    if (to->receive({target.data(), bytes}, &received) != Post::posted) return false;
    bool arrived = false, gone = false;
    Post answer = Post::busy;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    std::array<Event, 16> events;
    while (!arrived || !gone) {
      if (answer == Post::busy) answer = from->send(link, {source.data(), bytes}, &sent);
      if (answer == Post::failed || std::chrono::steady_clock::now() > give_up) return false;
      from->ring();
      for (std::size_t i = 0, count = from->poll(events); i < count; ++i) gone |= events[i].context == &sent;
      for (std::size_t i = 0, count = to->poll(events); i < count; ++i) arrived |= events[i].context == &received;
    }
    return true;
  }
};

/// The connected TCP sockets of this process whose one end is a rail's port.
inline std::vector<int> sockets_at(std::uint16_t port) {
  const auto port_of_name = [](const sockaddr_storage& name) {
    return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                            : reinterpret_cast<const sockaddr_in&>(name).sin_port);
  };
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    sockaddr_storage here{}, there{};
    socklen_t here_length = sizeof here, there_length = sizeof there;
    if (::getsockname(number, reinterpret_cast<sockaddr*>(&here), &here_length) != 0) continue;
    if (::getpeername(number, reinterpret_cast<sockaddr*>(&there), &there_length) != 0) continue;
    if (here.ss_family != AF_INET && here.ss_family != AF_INET6) continue;
    if (port_of_name(here) == port || port_of_name(there) == port) found.push_back(number);
  }
  return found;
}

}  // namespace railyard::fabric
