#include "fabric/interface_filter.hpp"

namespace railyard::fabric {

InterfaceFilter::InterfaceFilter(std::string_view setting)
    : excludes_(setting.starts_with('^')), list_(setting.substr(excludes_ ? 1 : 0)) {}

bool InterfaceFilter::lists(std::string_view name) const {
  for (std::string_view rest = list_; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    std::string_view entry = rest.substr(0, comma);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    if (entry == name) return true;
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return false;
}

bool InterfaceFilter::takes(std::string_view name) const {
  if (list_.empty()) return true;
  return lists(name) != excludes_;
}

}  // namespace railyard::fabric
