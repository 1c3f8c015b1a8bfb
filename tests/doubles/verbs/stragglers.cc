/// Packets that the network keeps: the sender gives up, and they arrive all the same if the other end still listens.
#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

void Core::keep_packets(QueuePair& pair, std::uint32_t end) {
  for (; pair.copied != end; ++pair.copied) {
    WorkRequest& request = *pair.sends.at(pair.copied);
    if (request.opcode > IBV_WR_SEND_WITH_IMM) continue;  // what asks for an answer does no harm late
    Location source{request.inline_bytes()};
    if ((request.flags & IBV_SEND_INLINE) == 0) {
      source = local(pair, request.lkey, request.address, request.length, false);
    }
    if (!source && request.length != 0) continue;
    Straggler straggler;
    straggler.pair = &pair;
    straggler.request.resize(1 + (request.length + sizeof request - 1) / sizeof request);
    WorkRequest& copy = straggler.request.front();
    copy = request;
    copy.flags |= IBV_SEND_INLINE;
    if (request.length != 0) move_bytes({copy.inline_bytes()}, source, request.length);
    stragglers.push_back(std::move(straggler));
  }
}

void Core::deliver_stragglers(Device& from) {
  for (Straggler& straggler : stragglers) {
    // A pair that has not given up sends it again by itself.
    if (straggler.pair->owner == &from && straggler.pair->now != IBV_QPS_RTS) {
      execute(*straggler.pair, straggler.request.front());
    }
  }
  std::erase_if(stragglers, [&from](const Straggler& straggler) { return straggler.pair->owner == &from; });
}

}  // namespace railyard::verbs_double
