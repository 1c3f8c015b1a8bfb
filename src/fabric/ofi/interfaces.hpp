/// What the operating system knows of a rail's interface.
#pragma once

#include <rdma/fabric.h>

#include <map>
#include <string>
#include <string_view>

namespace railyard::fabric::ofi {

struct Interface {
  bool up = false;
  bool loopback = false;
};

/// The machine's network interfaces by name.
std::map<std::string, Interface, std::less<>> list_interfaces();
/// Bytes per second that the NIC or the kernel claims; 0: unknown.
double line_rate(const fi_info& info);
/// The rail's own address as text, "192.0.2.2"; empty where it has no such form.
std::string address_text(const fi_info& info);

}  // namespace railyard::fabric::ofi
