#include "endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "log.hpp"

namespace railyard::provider {

namespace {

int close_endpoint(fid* fid) {
  Endpoint* const endpoint = &Endpoint::of(fid);
  Lock& lock = endpoint->domain.lock;
  Guard guard(lock);
  delete endpoint;
  return 0;
}
int bind_endpoint(fid* fid, struct fid* to, std::uint64_t flags) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  return endpoint.bind(to, flags);
}
int control_endpoint(fid* fid, int command, void* argument) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  if (command == FI_ENABLE) return endpoint.enable();
  if (command == FI_GETOPSFLAG || command == FI_SETOPSFLAG) {
    auto& flags = *static_cast<std::uint64_t*>(argument);
    const bool transmit = (flags & FI_TRANSMIT) != 0;
    if (transmit == ((flags & FI_RECV) != 0))
      return refuse(-FI_EINVAL,
                    "the flags of an endpoint are those of FI_TRANSMIT or those of FI_RECV: name one of them");
    std::uint64_t& own = transmit ? endpoint.transmit_flags : endpoint.receive_flags;
    if (command == FI_SETOPSFLAG) {
      own = flags & ~static_cast<std::uint64_t>(FI_TRANSMIT | FI_RECV);
    } else {
      flags = own;
    }
    return 0;
  }
  return refuse(-FI_ENOSYS, fmt::format("command {} of fi_control is not offered for an endpoint", command));
}

ssize_t cancel_operation(fid* fid, void* context) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  return endpoint.cancel(context);
}
int get_option(fid* fid, int level, int option, void* value, std::size_t* bytes) {
  if (level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV)
    return refuse(-FI_ENOPROTOOPT, fmt::format("option {} of level {} is not known here", option, level));
  if (*bytes < sizeof(std::size_t)) return -FI_ETOOSMALL;
  *static_cast<std::size_t*>(value) = Endpoint::of(fid).least_multi_receive();
  *bytes = sizeof(std::size_t);
  return 0;
}
int set_option(fid* fid, int level, int option, const void* value, std::size_t bytes) {
  if (level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV)
    return refuse(-FI_ENOPROTOOPT, fmt::format("option {} of level {} is not known here", option, level));
  if (bytes != sizeof(std::size_t)) return refuse(-FI_EINVAL, "FI_OPT_MIN_MULTI_RECV is a size_t");
  Endpoint::of(fid).least_multi_receive() = *static_cast<const std::size_t*>(value);
  return 0;
}

int get_name(fid* fid, void* address, std::size_t* bytes) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  return endpoint.get_name(address, bytes);
}
int set_name(fid* fid, void* address, std::size_t bytes) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  return endpoint.set_name(address, bytes);
}

fi_ops endpoint_fid_calls{sizeof(fi_ops),
                          close_endpoint,
                          bind_endpoint,
                          control_endpoint,
                          not_offered<&fi_ops::ops_open>,
                          not_offered<&fi_ops::tostr>,
                          not_offered<&fi_ops::ops_set>};
fi_ops_ep endpoint_calls{sizeof(fi_ops_ep),
                         cancel_operation,
                         get_option,
                         set_option,
                         not_offered<&fi_ops_ep::tx_ctx>,
                         not_offered<&fi_ops_ep::rx_ctx>,
                         not_offered<&fi_ops_ep::rx_size_left>,
                         not_offered<&fi_ops_ep::tx_size_left>};
fi_ops_cm name_calls{sizeof(fi_ops_cm),
                     set_name,
                     get_name,
                     not_offered<&fi_ops_cm::getpeer>,
                     not_offered<&fi_ops_cm::connect>,
                     not_offered<&fi_ops_cm::listen>,
                     not_offered<&fi_ops_cm::accept>,
                     not_offered<&fi_ops_cm::reject>,
                     not_offered<&fi_ops_cm::shutdown>,
                     not_offered<&fi_ops_cm::join>};

int code_of_opening(Status status) {
  switch (status) {
    case Status::busy:
      return -FI_EADDRINUSE;
    case Status::invalid:
      return -FI_EINVAL;
    case Status::refused:
      return -FI_EACCES;
    default:
      return -FI_ENOMEM;
  }
}

/// Calls of an endpoint that is not enabled. Tables of their own: the calls themselves need not ask.
template <typename Member>
struct NotYet;
template <typename Table, typename Answer, typename... Arguments>
struct NotYet<Answer (*Table::*)(Arguments...)> {
  static Answer call(Arguments...) {
    return refuse(-FI_EOPBADSTATE, "the endpoint is not enabled: fi_ep_bind what it needs, then fi_enable");
  }
};
template <auto Member>
inline constexpr auto not_yet = &NotYet<decltype(Member)>::call;

fi_ops_msg messages_not_yet{sizeof(fi_ops_msg),
                            not_yet<&fi_ops_msg::recv>,
                            not_yet<&fi_ops_msg::recvv>,
                            not_yet<&fi_ops_msg::recvmsg>,
                            not_yet<&fi_ops_msg::send>,
                            not_yet<&fi_ops_msg::sendv>,
                            not_yet<&fi_ops_msg::sendmsg>,
                            not_yet<&fi_ops_msg::inject>,
                            not_yet<&fi_ops_msg::senddata>,
                            not_yet<&fi_ops_msg::injectdata>};
fi_ops_tagged tagged_not_yet{sizeof(fi_ops_tagged),
                             not_yet<&fi_ops_tagged::recv>,
                             not_yet<&fi_ops_tagged::recvv>,
                             not_yet<&fi_ops_tagged::recvmsg>,
                             not_yet<&fi_ops_tagged::send>,
                             not_yet<&fi_ops_tagged::sendv>,
                             not_yet<&fi_ops_tagged::sendmsg>,
                             not_yet<&fi_ops_tagged::inject>,
                             not_yet<&fi_ops_tagged::senddata>,
                             not_yet<&fi_ops_tagged::injectdata>};
fi_ops_rma remote_not_yet{sizeof(fi_ops_rma),
                          not_yet<&fi_ops_rma::read>,
                          not_yet<&fi_ops_rma::readv>,
                          not_yet<&fi_ops_rma::readmsg>,
                          not_yet<&fi_ops_rma::write>,
                          not_yet<&fi_ops_rma::writev>,
                          not_yet<&fi_ops_rma::writemsg>,
                          not_yet<&fi_ops_rma::inject>,
                          not_yet<&fi_ops_rma::writedata>,
                          not_yet<&fi_ops_rma::injectdata>};
fi_ops_atomic atomics_not_yet{sizeof(fi_ops_atomic),
                              not_yet<&fi_ops_atomic::write>,
                              not_yet<&fi_ops_atomic::writev>,
                              not_yet<&fi_ops_atomic::writemsg>,
                              not_yet<&fi_ops_atomic::inject>,
                              not_yet<&fi_ops_atomic::readwrite>,
                              not_yet<&fi_ops_atomic::readwritev>,
                              not_yet<&fi_ops_atomic::readwritemsg>,
                              not_yet<&fi_ops_atomic::compwrite>,
                              not_yet<&fi_ops_atomic::compwritev>,
                              not_yet<&fi_ops_atomic::compwritemsg>,
                              atomic_calls.writevalid,
                              atomic_calls.readwritevalid,
                              atomic_calls.compwritevalid};

}  // namespace

int open_endpoint(fid_domain* fid, fi_info* info, fid_ep** result, void* context) {
  if (info == nullptr || info->ep_attr == nullptr || info->tx_attr == nullptr || info->rx_attr == nullptr)
    return refuse(-FI_EINVAL, "fi_endpoint needs the fi_info that fi_getinfo answered, with all its parts");
  if (info->ep_attr->type != FI_EP_RDM && info->ep_attr->type != FI_EP_UNSPEC)
    return refuse(-FI_EINVAL, "only FI_EP_RDM endpoints are offered");
  if (info->ep_attr->tx_ctx_cnt > 1 || info->ep_attr->rx_ctx_cnt > 1)
    return refuse(-FI_EINVAL, "an endpoint has one transmit and one receive context");
  auto endpoint = std::make_unique<Endpoint>(*object_of<Domain>(fid), *info);
  endpoint->fid()->fid.context = context;
  *result = endpoint.release()->fid();
  return 0;
}

Endpoint::Endpoint(Domain& owner, const fi_info& info)
    : domain(owner),
      transmit_flags(info.tx_attr->op_flags),
      receive_flags(info.rx_attr->op_flags),
      messages(FI_RECV | FI_MSG),
      tagged(FI_RECV | FI_TAGGED),
      directed_((info.caps & FI_DIRECTED_RECV) != 0),
      sourced_((info.caps & FI_SOURCE) != 0) {
  shell_.endpoint = this;
  fid_.fid.fclass = FI_CLASS_EP;
  fid_.fid.ops = &endpoint_fid_calls;
  fid_.ops = &endpoint_calls;
  fid_.cm = &name_calls;
  fid_.msg = &messages_not_yet;
  fid_.tagged = &tagged_not_yet;
  fid_.rma = &remote_not_yet;
  fid_.atomic = &atomics_not_yet;
  if (info.src_addr != nullptr && info.src_addrlen != 0) set_name(info.src_addr, info.src_addrlen);
  domain.references.add();
}

Endpoint::~Endpoint() {
  if (core_) domain.leaves(*this);
  for (Watch* watch : watches()) watch->remove(*this);
  core_.reset();
  for (Receives* receives : {&messages, &tagged}) {
    while (Incoming* const incoming = receives->unexpected.first()) {
      receives->unexpected.remove(*incoming);
      if (!incoming->several) pool_.incoming.give(*incoming);
    }
    for (const auto& [context, incoming] : receives->claimed)
      if (!incoming->several) pool_.incoming.give(*incoming);
  }
  for (const auto& source : sources_) {
    for (Incoming* incoming : source->open) {
      // A multi receive that takes no more is nowhere but here.
      Receive* const receive = incoming->receive;
      if (receive != nullptr && (!receive->multi || (--receive->active == 0 && receive->finished)))
        pool_.receives.give(*receive);
      pool_.incoming.give(*incoming);
    }
  }
  for (Receives* receives : {&messages, &tagged}) {
    while (Receive* const receive = receives->posted.first()) {
      receives->posted.remove(*receive);
      pool_.receives.give(*receive);
    }
  }
  if (bound_.addresses != nullptr) bound_.addresses->references.drop();
  for (Queue* queue : {bound_.transmit, bound_.receive})
    if (queue != nullptr) queue->references.drop();
  for (Counter* counter :
       {bound_.send, bound_.recv, bound_.read, bound_.write, bound_.remote_read, bound_.remote_write})
    if (counter != nullptr) counter->references.drop();
  domain.references.drop();
}

std::vector<Watch*> Endpoint::watches() const {
  std::vector<Watch*> all;
  for (Queue* queue : {bound_.transmit, bound_.receive})
    if (queue != nullptr) all.push_back(&queue->watch);
  for (Counter* counter :
       {bound_.send, bound_.recv, bound_.read, bound_.write, bound_.remote_read, bound_.remote_write})
    if (counter != nullptr) all.push_back(&counter->watch);
  return all;
}

bool Endpoint::watched_by(const Watch& watch) const {
  const std::vector<Watch*> own = watches();
  return std::find(own.begin(), own.end(), &watch) != own.end();
}

int Endpoint::bind_counter(Counter& counter, std::uint64_t flags) {
  constexpr std::uint64_t kKnown = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if ((flags & kKnown) == 0 || (flags & ~kKnown) != 0)
    return refuse(-FI_EBADFLAGS,
                  fmt::format("a counter is bound with FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ "
                              "and FI_REMOTE_WRITE; flags were {:#x}",
                              flags));
  const auto set = [&](std::uint64_t flag, Counter*& place) {
    if ((flags & flag) == 0 || place != nullptr) return;
    place = &counter;
    counter.references.add();
  };
  set(FI_SEND, bound_.send);
  set(FI_RECV, bound_.recv);
  set(FI_READ, bound_.read);
  set(FI_WRITE, bound_.write);
  set(FI_REMOTE_READ, bound_.remote_read);
  set(FI_REMOTE_WRITE, bound_.remote_write);
  return 0;
}

int Endpoint::bind(struct fid* to, std::uint64_t flags) {
  if (core_) return refuse(-FI_EOPBADSTATE, "fi_ep_bind after fi_enable: bind first");
  switch (to->fclass) {
    case FI_CLASS_EQ:
      return 0;
    case FI_CLASS_AV:
      if (bound_.addresses != nullptr) return refuse(-FI_EINVAL, "the endpoint has an address vector already");
      bound_.addresses = object_of<Addresses>(to);
      bound_.addresses->references.add();
      return 0;
    case FI_CLASS_CQ: {
      const std::uint64_t known = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
      if ((flags & ~known) != 0 || (flags & (FI_TRANSMIT | FI_RECV)) == 0)
        return refuse(-FI_EBADFLAGS, fmt::format("a completion queue is bound with FI_TRANSMIT, FI_RECV and "
                                                 "FI_SELECTIVE_COMPLETION; flags were {:#x}",
                                                 flags));
      const bool transmit = (flags & FI_TRANSMIT) != 0;
      const bool receive = (flags & FI_RECV) != 0;
      if ((transmit && bound_.transmit != nullptr) || (receive && bound_.receive != nullptr))
        return refuse(-FI_EINVAL, "the endpoint has a completion queue for that direction already");
      auto* queue = object_of<Queue>(to);
      const bool selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
      if (transmit) {
        bound_.transmit = queue;
        bound_.transmit_selective = selective;
        queue->references.add();
      }
      if (receive) {
        bound_.receive = queue;
        bound_.receive_selective = selective;
        queue->references.add();
      }
      return 0;
    }
    case FI_CLASS_CNTR:
      return bind_counter(*object_of<Counter>(to), flags);
    default:
      return refuse(-FI_EINVAL,
                    "an endpoint is bound to event queues, address vectors, completion queues and counters");
  }
}

int Endpoint::enable() {
  if (core_) return refuse(-FI_EOPBADSTATE, "the endpoint is enabled already");
  if (bound_.addresses == nullptr) return refuse(-FI_ENOAV, "fi_enable: fi_ep_bind an address vector first");
  if (watches().empty()) return refuse(-FI_ENOCQ, "fi_enable: fi_ep_bind a completion queue or a counter first");
  const std::vector<Watch*> all = watches();
  const bool can_sleep =
      std::any_of(all.begin(), all.end(), [](const Watch* watch) { return watch->waiting.sleeps(); });
  shm::Endpoint::Options options;
  options.name = wanted_name_;
  options.can_sleep = can_sleep;
  auto core = shm::Endpoint::open(options, *this);
  if (!core) return refuse(code_of_opening(core.status()), core.error().text());
  core_ = std::move(*core);
  own_address_ = wanted_name_.empty() ? std::string(kIdentityPrefix) + core_->identity().text() : wanted_name_;
  for (Watch* watch : all) watch->add(*this);
  domain.joined(*this);
  fid_.msg = &message_calls;
  fid_.tagged = &tagged_calls;
  fid_.rma = &remote_calls;
  fid_.atomic = &atomic_calls;
  return 0;
}

int Endpoint::get_name(void* address, std::size_t* bytes) const {
  if (!core_) return refuse(-FI_EOPBADSTATE, "fi_getname before fi_enable: the endpoint has no address yet");
  const std::size_t needed = own_address_.size() + 1;
  if (address != nullptr) std::memcpy(address, own_address_.c_str(), std::min(*bytes, needed));
  const bool fits = *bytes >= needed;
  *bytes = needed;
  return fits ? 0 : -FI_ETOOSMALL;
}

int Endpoint::set_name(const void* address, std::size_t bytes) {
  if (core_) return refuse(-FI_EOPBADSTATE, "fi_setname after fi_enable");
  if (address == nullptr) return refuse(-FI_EINVAL, "fi_setname without a name");
  const char* const text = static_cast<const char*>(address);
  std::string name(text, ::strnlen(text, bytes));
  // An identity is given, never chosen; the one of zeros that fi_getinfo answers means "none yet".
  if (name.starts_with(kIdentityPrefix)) return 0;
  if (!name.starts_with(kNamePrefix))
    return refuse(-FI_EINVAL, fmt::format("an endpoint's name begins with {}; this is '{}'", kNamePrefix, name));
  wanted_name_ = std::move(name);
  return 0;
}

int Endpoint::cancel(void* context) {
  for (Receives* receives : {&tagged, &messages}) {
    for (Receive* receive = receives->posted.first(); receive != nullptr; receive = receive->next) {
      if (receive->context != context) continue;
      receives->posted.remove(*receive);
      fail_receive(*receive, FI_ECANCELED, receives->operation);
      receive->finished = true;
      if (receive->active == 0) pool_.receives.give(*receive);
      return 0;
    }
  }
  return -FI_ENOENT;
}

void Endpoint::left(Inbound& from, bool) {
  auto* const source = static_cast<Source*>(from.user);
  if (source == nullptr) return;
  // Messages that will never be whole: their receives fail, also those that come later. The others stay as they are.
  const std::vector<Incoming*> open = source->open;
  for (Incoming* incoming : open) {
    if (incoming->whole()) continue;
    incoming->aborted = true;
    const bool waits_for_receive =
        incoming->receives != nullptr && incoming->receive == nullptr && !incoming->discarded;
    if (!waits_for_receive) abort(*incoming);
  }
  source->in = nullptr;
  source->back = nullptr;
  from.user = nullptr;
  std::erase_if(sources_, [](const auto& each) { return each->in == nullptr && each->held == 0; });
}

void Endpoint::abort(Incoming& incoming) {
  Source& source = *incoming.source;
  std::erase(source.open, &incoming);
  if (incoming.receive != nullptr) {
    Receive& receive = *incoming.receive;
    fail_receive(receive, FI_ECONNABORTED, incoming.receives->operation);
    if (receive.multi) --receive.active;
    if (!receive.multi || (receive.finished && receive.active == 0)) pool_.receives.give(receive);
  }
  --source.held;
  pool_.incoming.give(incoming);
}

void Endpoint::lost(Outbound& to) {
  if (const auto it = paths_.find(&to); it != paths_.end()) lose(*it->second);
}

void Endpoint::lose(Path& path) {
  for (const auto& transfer : transfers_)
    if (transfer->path == &path) finish(*transfer, FI_EHOSTDOWN);
  std::erase(busy_, &path);
  std::replace(by_number_.begin(), by_number_.end(), &path, static_cast<Path*>(nullptr));
  std::erase_if(by_address_, [&path](const auto& entry) { return entry.second == &path; });
  for (const auto& source : sources_)
    if (source->back == &path) source->back = nullptr;
  paths_.erase(path.out);
}

}  // namespace railyard::provider
