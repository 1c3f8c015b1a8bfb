/// Which interfaces or NICs the settings let through.
#pragma once

#include <string_view>

namespace railyard::fabric {

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

}  // namespace railyard::fabric
