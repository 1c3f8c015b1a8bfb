/// What can be measured on channels. Both processes call the same test; rank 0 returns the figures.
#pragma once

#include <map>
#include <string>

#include "pair.hpp"

namespace railyard::bench {

using Figures = std::map<std::string, double>;

/// Ping-pong of `bytes` on the first channel, or on all of them at once.
Figures measure_latency(Side& side);
/// Both ends send `bytes` on a channel of their own at the same time, and receive the other's.
Figures measure_exchange(Side& side);
/// A stream of `bytes` from rank 0 to rank 1 on the first channel, or on `streams` of them.
Figures measure_stream(Side& side);
/// Equal streams on `streams` channels: how equal are they?
Figures measure_fairness(Side& side);
/// A ping-pong of 8 bytes, by turns alone and beside a stream of `bytes`.
Figures measure_interference(Side& side);

}  // namespace railyard::bench
