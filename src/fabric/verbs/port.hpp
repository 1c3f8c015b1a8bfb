/// Ports of RDMA devices that can carry a rail, and what each is like.
#pragma once

#include <string>
#include <vector>

#include "fabric/verbs/handles.hpp"
#include "railyard/settings.hpp"

namespace railyard::fabric::verbs {

struct Port {
  std::string device;  ///< "mlx5_0"
  std::uint8_t number = 1;
  bool infiniband = false;  ///< else RoCE
  ibv_gid gid{};
  int gid_index = 0;
  std::uint16_t lid = 0;
  std::uint16_t pkey_index = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  std::size_t max_message = 0;
  double rate = 0;         ///< bytes per second
  std::string gid_text;    ///< its GID as people write it: "10.0.0.1", "fe80::1"
  std::string fabric;      ///< what it reaches: the subnet
  unsigned interface = 0;  ///< of the host, whose address the GID is; 0: none
  bool loopback = false;   ///< it reaches this machine only
  bool dma_bufs = false;   ///< its device registers the memory of GPUs by dma-buf descriptors

  /// "mlx5_0", or "mlx5_0:2" for a port that is not the first.
  std::string name() const { return number == 1 ? device : device + ":" + std::to_string(number); }
};

struct PortList {
  std::vector<Port> ports;
  std::vector<std::string> unfit;  ///< "mlx5_1 (port 1 is DOWN)"
};

/// Looks at every port of every device. An error: there is no library.
Result<PortList> list_ports(const Settings& settings);
/// Opens a device by its name.
Result<DeviceContext> open_device(const Library& library, const std::string& device);

/// An IPv4 address in a GID; 0: it holds none. In network byte order.
std::uint32_t ipv4_of(const ibv_gid& gid);
bool is_zero(const ibv_gid& gid);
bool same_gid(const ibv_gid& one, const ibv_gid& other);
/// It means something on its own link alone: fe80::/10.
bool is_link_local(const ibv_gid& gid);
/// As people write it: "10.0.0.1", "fe80::1".
std::string text_of(const ibv_gid& gid);
/// Bytes per second of a lane speed and a width as the port tells them.
double rate_of(std::uint8_t speed, std::uint8_t width);

}  // namespace railyard::fabric::verbs
