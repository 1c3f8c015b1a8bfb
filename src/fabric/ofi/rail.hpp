/// One rail over libfabric: a domain with two reliable-datagram endpoints, one for each lane.
///
/// Lanes. Each lane has an endpoint and a completion queue of its own. A libfabric queue is also what moves a manual
/// provider, and over tcp each endpoint costs a system call per look (0.45 us): with one queue for both every 8-byte
/// message would pay for the idle data lane. So the data lane is looked at every time while it has work or lately had
/// some, and every `kIdleLook`-th time otherwise. On providers that move by themselves the second look costs
/// nanoseconds and the rule does no harm.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabric/ofi/fid.hpp"
#include "fabric/ofi/info.hpp"
#include "fabric/ofi/keys.hpp"
#include "fabric/rail.hpp"

namespace railyard::fabric::ofi {

class OfiRail final : public Rail {
 public:
  static Result<std::unique_ptr<OfiRail>> open(const RailOffer& offer);
  ~OfiRail() override;
  OfiRail(const OfiRail&) = delete;
  OfiRail& operator=(const OfiRail&) = delete;

  const Capabilities& capabilities() const override { return capabilities_; }
  std::string name() const override { return name_; }
  std::string fabric() const override { return fabric_name_; }
  std::vector<std::byte> address() const override;

  Result<RemoteId> connect(std::span<const std::byte> address) override;
  void disconnect(RemoteId remote) override;

  Result<Registration> register_memory(std::span<std::byte> memory, Access access) override;
  void deregister_memory(const Registration& registration) override;

  Post send(RemoteId remote, LocalPiece message, PostContext* context) override;
  Post receive(LocalPiece buffer, PostContext* context) override;
  Post write(RemotePiece to, LocalPiece from, WriteOptions options, PostContext* context) override;
  Post read(RemotePiece from, LocalPiece to, PostContext* context) override;
  std::size_t poll(std::span<Event> events) override;
  void stop() override;

  std::string describe_error(int error) const override;
  std::string failure() const override;

 private:
  static constexpr unsigned kIdleLook = 16;     ///< an idle data lane is looked at every so many polls
  static constexpr unsigned kWarmLooks = 1024;  ///< polls that a data lane counts as busy after its last event
  static constexpr std::size_t kReadBatch = 32;

  struct LaneParts {
    Fid<fid_cq> queue;
    Fid<fid_av> addresses;
    Fid<fid_ep> endpoint;  // after what it is bound to: it closes first
    std::vector<std::byte> name;
    std::size_t outstanding = 0;  ///< transmits without their completion yet
  };
  /// Where a remote's lanes are. A slot that is free has no address.
  struct Remote {
    std::array<fi_addr_t, kLanes> lane{FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL};
  };
  /// A registration as libfabric holds it; its key goes back only after it is closed.
  struct Held {
    Fid<fid_mr> object;
    bool own_key = false;
    std::uint64_t key = 0;
  };

  OfiRail() = default;
  LaneParts& part(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  const LaneParts& part(Lane lane) const { return lanes_[static_cast<std::size_t>(lane)]; }

  Result<void> open_lane(Lane lane);
  Result<void> open_queue(LaneParts& parts, std::size_t wanted, std::size_t least);
  void open_landing_receives();
  void set_capabilities(const RailOffer& offer, bool delivery_complete);
  Result<fi_addr_t> insert_address(Lane lane, std::span<const std::byte> name);

  Result<std::uint64_t> hold(std::span<std::byte> memory, Lane lane, std::uint64_t access);
  void release(std::uint64_t id);
  Error registration_error(const char* step, std::span<std::byte> memory, Lane lane, int code) const;

  bool known(RemoteId remote) const { return remote < remotes_.size() && remotes_[remote].lane[0] != FI_ADDR_NOTAVAIL; }
  Post settle(LaneParts& lane, ssize_t code, const char* operation);
  Post fail(const char* operation, int code);
  bool look_at_data_lane();
  std::size_t read_queue(LaneParts& lane, std::span<Event> events);
  bool read_entry(LaneParts& lane, const fi_cq_data_entry& entry, Event& event);
  bool read_error(LaneParts& lane, Event& event);
  bool take_back_landing_receive(void* context);
  void post_landing_receives();

  Capabilities capabilities_;
  std::string name_;
  std::string fabric_name_;
  std::size_t depth_ = 0;     ///< bound of the transmits of each lane, and of the receives
  std::size_t receives_ = 0;  ///< posted on the control lane
  bool stopped_ = false;
  int broken_ = 0;  ///< why the rail can do nothing any more
  unsigned warm_ = 0;
  unsigned idle_looks_ = 0;
  bool data_first_ = false;  ///< the last poll had no room left for the data lane
  const char* failed_operation_ = "";
  int failed_code_ = 0;

  Info info_;
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  std::array<LaneParts, kLanes> lanes_;
  std::vector<Remote> remotes_;
  std::vector<RemoteId> free_remotes_;
  /// Receives that remote immediates use up on the data lane, where the provider wants that (FI_RX_CQ_DATA).
  std::vector<PostContext> landing_receives_;
  std::vector<PostContext*> idle_landing_receives_;  ///< those not posted; never grows past its reserve
  KeyPool keys_;
  std::uint64_t next_held_ = 1;
  std::unordered_map<std::uint64_t, Held> held_;  // last: registrations close before the endpoints they are bound to
};

// A PostContext is the room that FI_CONTEXT2 asks for, at its start.
static_assert(sizeof(fi_context2) <= sizeof(PostContext::driver));

}  // namespace railyard::fabric::ofi
