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
/// A word that only processes share which reach each other over this machine's inside: its boot, its network namespace,
/// its shared memory.
std::string machine_word();

/// RAILYARD_INTERFACES: "a,b" takes these, "^a,b" all but these, "" all.
class InterfaceFilter {
 public:
  explicit InterfaceFilter(std::string_view setting);
  bool takes(std::string_view name) const;
  /// Whether the setting asks for it by name.
  bool names(std::string_view name) const { return !excludes_ && lists(name); }

 private:
  bool lists(std::string_view name) const;
  bool excludes_ = false;
  std::string_view list_;
};

}  // namespace railyard::fabric::ofi
