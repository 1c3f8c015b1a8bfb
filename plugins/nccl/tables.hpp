/// What the exported tables have in common.
#pragma once

#include "abi.h"

#define RAILYARD_EXPORT __attribute__((visibility("default"))) extern constinit const

namespace railyard::nccl {

inline constexpr const char* kName = "Railyard";

/// Properties in the form of an older version.
template <typename Properties>
void take_properties(Properties& properties, const nccl_properties_v12& all) noexcept {
  properties = Properties{};
  properties.name = all.name;
  properties.pciPath = all.pciPath;
  properties.guid = all.guid;
  properties.ptrSupport = all.ptrSupport;
  properties.regIsGlobal = all.regIsGlobal;
  properties.speed = all.speed;
  properties.port = all.port;
  properties.latency = all.latency;
  properties.maxComms = all.maxComms;
  properties.maxRecvs = all.maxRecvs;
  properties.netDeviceType = all.netDeviceType;
  properties.netDeviceVersion = all.netDeviceVersion;
  if constexpr (requires { properties.vProps; }) {
    properties.forceFlush = all.forceFlush;
    properties.vProps.ndevs = all.vProps.ndevs;
    properties.vProps.devs[0] = all.vProps.devs[0];
    properties.maxP2pBytes = all.maxP2pBytes;
    properties.maxCollBytes = all.maxCollBytes;
  }
  if constexpr (requires { properties.maxMultiRequestSize; }) properties.maxMultiRequestSize = all.maxMultiRequestSize;
  if constexpr (requires { properties.railId; }) {
    properties.railId = all.railId;
    properties.planeId = all.planeId;
  }
}

}  // namespace railyard::nccl
