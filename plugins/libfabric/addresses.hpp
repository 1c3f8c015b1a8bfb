/// Address vector: names of peers, by number.
///
/// An address is text. `fi_railyard://` and 32 digits name an endpoint by its identity, which no other ever has;
/// `fi_ns://` and any text name whoever holds that name now.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "domain.hpp"

namespace railyard::provider {

inline constexpr std::string_view kIdentityPrefix = "fi_railyard://";
inline constexpr std::string_view kNamePrefix = "fi_ns://";

/// Whether the text is an address as it stands.
bool is_address(const char* text);
/// Whether what `node` names can be reached: an address, this host, or a name that somebody holds now.
bool is_here(const char* node, const char* service);
/// The address that node and service stand for.
std::string address_text(const char* node, const char* service);

struct Addresses {
  explicit Addresses(Domain& owner) : domain(owner) {}
  fid_av fid{};
  Domain& domain;
  References references;
  std::vector<std::string> entries;    ///< empty text: not in use
  std::vector<std::uint32_t> inserts;  ///< an address inserted twice is removed twice
  std::unordered_map<std::string, fi_addr_t> numbers;
  /// Changes with every insert and remove: who remembers a number looks again.
  std::atomic<std::uint64_t> generation{1};

  fi_addr_t number_of(const std::string& address) {
    Guard guard(domain.tables);
    const auto it = numbers.find(address);
    return it == numbers.end() ? FI_ADDR_NOTAVAIL : it->second;
  }
  /// Empty: no such number.
  std::string address_of(fi_addr_t number) {
    Guard guard(domain.tables);
    return number < entries.size() ? entries[number] : std::string();
  }
  fi_addr_t insert(std::string address);
};

}  // namespace railyard::provider
