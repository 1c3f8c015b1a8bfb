/// A rail of two reliable-datagram endpoints (FI_EP_RDM), one for each lane: for providers that have nothing better.
///
/// Lanes. Each lane has an endpoint and a completion queue of its own. A libfabric queue is also what moves a manual
/// provider, and over tcp each endpoint costs a system call per look (0.45 us): with one queue for both every 8-byte
/// message would pay for the idle data lane. So the data lane is looked at every time while it has work or lately had
/// some, and every `kIdleLook`-th time otherwise. On providers that move by themselves the second look costs
/// nanoseconds and the rule does no harm.
///
/// Links. The endpoint serves all remotes, so a link stands at once, nothing tells when one breaks but its operations,
/// and the target cannot shut one out: fencing is timed. `disconnect` takes the remote's address back; libfabric has no
/// call that recalls a transmit from such an endpoint, so contexts that are still out come back when the provider gives
/// them up, and until then it may touch the memory that they name. Nor can it end what a peer has half written:
/// `revoke` turns away what comes after it, and is exact where the NIC checks every packet's key (efa, cxi, opx), not
/// over tcp.
///
/// There is no admission: endpoints know no connections, so whoever reaches one may use up receives and try keys.
#pragma once

#include "fabric/ofi/rail.hpp"

namespace railyard::fabric::ofi {

class DatagramRail final : public OfiRail {
 public:
  static Result<std::unique_ptr<Rail>> open(const RailOffer& offer, const Choice& choice);
  ~DatagramRail() override;

  std::vector<std::byte> address() const override;
  Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) override;
  void disconnect(RemoteId remote) override;
  bool fence(LinkTag tag) override;

  Post send(RemoteId remote, const LocalChunk& message, PostContext* context) override;
  Post receive(const LocalChunk& buffer, PostContext* context) override;
  Post write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) override;
  Post read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) override;
  std::size_t poll(std::span<Event> events) override;
  void stop() override;

 private:
  static constexpr unsigned kIdleLook = 16;     ///< an idle data lane is looked at every so many polls
  static constexpr unsigned kWarmLooks = 1024;  ///< polls that a data lane counts as busy after its last event
  static constexpr int kLastLooks = 1000;       ///< at transmits under way before their registrations are closed

  struct LaneParts {
    Fid<fid_cq> queue;
    Fid<fid_av> addresses;
    Fid<fid_ep> endpoint;  // after what it is bound to: it closes first
    std::vector<std::byte> name;
    std::size_t outstanding = 0;  ///< transmits without their completion yet
  };
  /// Where a remote's lanes are.
  struct DatagramLink : Link {
    std::array<fi_addr_t, kLanes> lane{FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL};
  };

  LaneParts& part(Lane lane) { return lanes_[index_of(lane)]; }
  fid_ep* endpoint_for(Lane lane) override { return part(lane).endpoint.get(); }
  Result<void> open_lane(Lane lane);
  Result<fi_addr_t> insert_address(Lane lane, const std::vector<std::byte>& name);

  DatagramLink* ready(RemoteId remote) { return broken_ != 0 ? nullptr : links_.ready(remote); }
  void let_transmits_end();
  Post refuse_post(const char* operation);
  Post settle(LaneParts& lane, ssize_t code, const char* operation);
  bool look_at_data_lane();
  std::size_t read_lanes(std::span<Event> events);
  std::size_t read_queue(LaneParts& lane, std::span<Event> events);
  bool read_entry(LaneParts& lane, const fi_cq_data_entry& entry, Event& event);
  bool read_failure(LaneParts& lane, Event& event);

  unsigned warm_ = 0;
  unsigned idle_looks_ = 0;
  bool data_first_ = false;  ///< the last poll had no room left for the data lane
  std::array<LaneParts, kLanes> lanes_;
  Links<DatagramLink> links_{pending_};
};

}  // namespace railyard::fabric::ofi
