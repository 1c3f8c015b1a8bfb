/// What the provider offers: limits, and fi_getinfo.
#pragma once

#include <cstdint>

#include "objects.hpp"

namespace railyard::provider {

inline constexpr std::size_t kInjectBytes = 4096;
inline constexpr std::size_t kMostIov = 4;
inline constexpr std::size_t kMostRemoteIov = 4;
inline constexpr std::size_t kTransmits = 4096;

int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags, const fi_info* hints,
             fi_info** result);

/// The modes that FI_MR_BASIC and FI_MR_SCALABLE stand for; others as they are.
int plain_registration_mode(int mode);

}  // namespace railyard::provider
