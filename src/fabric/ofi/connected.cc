/// Set-up of a connected rail: event queue, completion queues, shared receives and the listener.
#include "fabric/ofi/connected.hpp"

#include <utility>

namespace railyard::fabric::ofi {

Result<std::unique_ptr<Rail>> ConnectedRail::open(const RailOffer& offer, const Choice& choice,
                                                  std::span<const std::byte> job_key) {
  std::unique_ptr<ConnectedRail> rail(new ConnectedRail);
  if (auto opened = rail->open_domain(offer, choice); !opened) return std::move(opened.error());
  rail->capabilities_.fencing = Fencing::exact;
  rail->capabilities_.inject_bytes = rail->info_->tx_attr->inject_size;
  rail->injected_.reserve(rail->depth_);
  if (auto opened = rail->admission_.open(job_key); !opened) return std::move(opened.error());
  if (auto opened = rail->open_parts(); !opened) return std::move(opened.error());
  return std::unique_ptr<Rail>(std::move(rail));
}

ConnectedRail::~ConnectedRail() {
  ConnectedRail::stop();
  for (auto& queue : queues_) queue.reset();
  events_.reset();
  // libfabric's tcp provider (1.17) forgets the sockets of requests that were not whole when their listener was closed.
  close_leftovers(leftovers_);
}

void ConnectedRail::stop() {
  if (stopped_) return;
  while (broken_ == 0 && !running_out_.empty()) run_out();  // each within its time
  stopped_ = true;
  if (broken_ == 0) broken_ = FI_ESHUTDOWN;
  close_registrations();
  running_out_.clear();
  links_.clear();
  end_names_.clear();
  inbound_.clear();
  accepted_.clear();
  // Requests that wait hold a socket each, and libfabric leaves them behind: they are refused, and those whose sender
  // is gone half-way come to their end within a few looks.
  for (int look = 0; listener_ && look < kLastLooks; ++look) read_connections();
  if (listener_) leftovers_ = sockets_at(listener_name_);
  listener_.reset();
  for (auto& receives : shared_receives_) receives.reset();
  pending_.clear();
}

Result<void> ConnectedRail::open_parts() {
  fi_eq_attr attributes{};
  attributes.wait_obj = FI_WAIT_NONE;
  fid_eq* events = nullptr;
  if (int code = fi_eq_open(fabric_object_.get(), &attributes, &events, nullptr); code != 0)
    return set_up_error("open the event queue", code);
  events_.reset(events);
  for (const QueueName name : {kMessages, kInboundLinkData, kLinkData}) {
    const std::size_t least = 2 * depth_;
    auto queue = open_queue(least + (name == kInboundLinkData ? kLandingRoom : 0), least);
    if (!queue) return std::move(queue.error());
    queues_[name] = std::move(*queue);
  }
  if (auto opened = open_shared_receives(Lane::control, kMessages); !opened) return opened;
  if ((info_->mode & FI_RX_CQ_DATA) != 0) {
    if (auto opened = open_shared_receives(Lane::data, kInboundLinkData); !opened) return opened;
    landing_.open(shared_receives_[index_of(Lane::data)].get(), depth_);
  }
  return open_listener();
}

Result<void> ConnectedRail::open_shared_receives(Lane lane, QueueName queue) {
  fi_rx_attr attributes = *info_->rx_attr;
  fid_ep* receives = nullptr;
  if (int code = fi_srx_context(domain_.get(), &attributes, &receives, nullptr); code != 0)
    return set_up_error("open a shared receive context", code);
  shared_receives_[index_of(lane)].reset(receives);
  // Some providers report its receives through the endpoints' queues and want no binding, but all may be told.
  if (int code = fi_ep_bind(receives, &queues_[queue]->fid, FI_RECV); code != 0 && code != -FI_ENOSYS)
    return set_up_error("bind the shared receive context", code);
  return {};
}

Result<void> ConnectedRail::open_listener() {
  fid_pep* listener = nullptr;
  if (int code = fi_passive_ep(fabric_object_.get(), info_.get(), &listener, nullptr); code != 0)
    return set_up_error("open a listening endpoint", code);
  listener_.reset(listener);
  if (int code = fi_pep_bind(listener, &events_->fid, 0); code != 0)
    return set_up_error("bind the listening endpoint to its event queue", code);
  if (int code = fi_listen(listener); code != 0) return set_up_error("listen", code);
  auto name = name_of(listener->fid);
  if (!name) return std::move(name.error());
  listener_name_ = std::move(*name);
  close_listener_on_exec(listener_name_);
  return {};
}

Result<Fid<fid_ep>> ConnectedRail::open_endpoint(fi_info& info, Lane lane, bool inbound_link) {
  const bool takes_in = inbound_link || lane == Lane::control;
  fid_ep* const receives = takes_in ? shared_receives_[index_of(lane)].get() : nullptr;
  info.ep_attr->rx_ctx_cnt = receives != nullptr ? FI_SHARED_CONTEXT : 1;
  fid_ep* opened = nullptr;
  if (int code = fi_endpoint(domain_.get(), &info, &opened, nullptr); code != 0)
    return set_up_error("open an endpoint", code);
  Fid<fid_ep> endpoint(opened);
  fid_cq* const queue = queues_[lane == Lane::control ? kMessages : inbound_link ? kInboundLinkData : kLinkData].get();
  if (int code = fi_ep_bind(opened, &events_->fid, 0); code != 0)
    return set_up_error("bind an endpoint to its event queue", code);
  if (receives != nullptr)
    if (int code = fi_ep_bind(opened, &receives->fid, 0); code != 0)
      return set_up_error("bind an endpoint to the shared receives", code);
  if (int code = fi_ep_bind(opened, &queue->fid, FI_TRANSMIT | FI_RECV); code != 0)
    return set_up_error("bind an endpoint to its completion queue", code);
  if (int code = fi_enable(opened); code != 0) return set_up_error("enable an endpoint", code);
  return endpoint;
}

std::vector<std::byte> ConnectedRail::address() const { return own_address().pack(); }

}  // namespace railyard::fabric::ofi
