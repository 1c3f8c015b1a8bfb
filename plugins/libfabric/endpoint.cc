#include "endpoint.hpp"

#include <algorithm>
#include <cstring>

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
    if (transmit == ((flags & FI_RECV) != 0)) return -FI_EINVAL;
    std::uint64_t& own = transmit ? endpoint.transmit_flags : endpoint.receive_flags;
    if (command == FI_SETOPSFLAG) {
      own = flags & ~static_cast<std::uint64_t>(FI_TRANSMIT | FI_RECV);
    } else {
      flags = own;
    }
    return 0;
  }
  return -FI_ENOSYS;
}

ssize_t cancel_operation(fid* fid, void* context) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  return endpoint.cancel(context);
}
int get_option(fid* fid, int level, int option, void* value, std::size_t* bytes) {
  if (level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (*bytes < sizeof(std::size_t)) return -FI_ETOOSMALL;
  *static_cast<std::size_t*>(value) = Endpoint::of(fid).least_multi_receive();
  *bytes = sizeof(std::size_t);
  return 0;
}
int set_option(fid* fid, int level, int option, const void* value, std::size_t bytes) {
  if (level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV || bytes != sizeof(std::size_t))
    return -FI_ENOPROTOOPT;
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

}  // namespace

int open_endpoint(fid_domain* fid, fi_info* info, fid_ep** result, void* context) {
  if (info == nullptr || info->ep_attr == nullptr || info->tx_attr == nullptr || info->rx_attr == nullptr)
    return -FI_EINVAL;
  if (info->ep_attr->type != FI_EP_RDM && info->ep_attr->type != FI_EP_UNSPEC) return -FI_EINVAL;
  if (info->ep_attr->tx_ctx_cnt > 1 || info->ep_attr->rx_ctx_cnt > 1) return -FI_EINVAL;
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
  fid_.msg = &message_calls;
  fid_.tagged = &tagged_calls;
  fid_.rma = &remote_calls;
  fid_.atomic = &atomic_calls;
  if (info.src_addr != nullptr && info.src_addrlen != 0) set_name(info.src_addr, info.src_addrlen);
  domain.references.add();
}

Endpoint::~Endpoint() {
  for (Watch* watch : watches()) watch->remove(*this);
  core_.reset();
  for (Receives* receives : {&messages, &tagged}) {
    while (Receive* const receive = receives->posted.first()) {
      receives->posted.remove(*receive);
      pool_.receives.give(*receive);
    }
    while (Incoming* const incoming = receives->unexpected.first()) {
      receives->unexpected.remove(*incoming);
      if (!incoming->several) pool_.incoming.give(*incoming);
    }
  }
  for (const auto& source : sources_) {
    for (Incoming* incoming : source->open) {
      if (incoming->receive != nullptr && !incoming->receive->multi) pool_.receives.give(*incoming->receive);
      pool_.incoming.give(*incoming);
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

void Endpoint::bind_counter(Counter& counter, std::uint64_t flags) {
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
}

int Endpoint::bind(struct fid* to, std::uint64_t flags) {
  if (core_) return -FI_EOPBADSTATE;
  switch (to->fclass) {
    case FI_CLASS_EQ:
      return 0;
    case FI_CLASS_AV:
      if (bound_.addresses != nullptr) return -FI_EINVAL;
      bound_.addresses = object_of<Addresses>(to);
      bound_.addresses->references.add();
      return 0;
    case FI_CLASS_CQ: {
      const std::uint64_t known = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
      if ((flags & ~known) != 0 || (flags & (FI_TRANSMIT | FI_RECV)) == 0) return -FI_EBADFLAGS;
      const bool transmit = (flags & FI_TRANSMIT) != 0;
      const bool receive = (flags & FI_RECV) != 0;
      if ((transmit && bound_.transmit != nullptr) || (receive && bound_.receive != nullptr)) return -FI_EINVAL;
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
      bind_counter(*object_of<Counter>(to), flags);
      return 0;
    default:
      return -FI_EINVAL;
  }
}

int Endpoint::enable() {
  if (core_) return -FI_EOPBADSTATE;
  if (bound_.addresses == nullptr) return -FI_ENOAV;
  if (bound_.transmit == nullptr && bound_.receive == nullptr && watches().empty()) return -FI_ENOCQ;
  const std::vector<Watch*> all = watches();
  const bool can_sleep =
      std::any_of(all.begin(), all.end(), [](const Watch* watch) { return watch->waiting.sleeps(); });
  fabric::shm::Endpoint::Options options;
  options.name = wanted_name_;
  options.can_sleep = can_sleep;
  auto core = fabric::shm::Endpoint::open(options, *this);
  if (!core) {
    switch (core.status()) {
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
  core_ = std::move(*core);
  own_address_ = wanted_name_.empty() ? std::string(kIdentityPrefix) + core_->identity().text() : wanted_name_;
  for (Watch* watch : all) watch->add(*this);
  return 0;
}

int Endpoint::get_name(void* address, std::size_t* bytes) const {
  if (!core_) return -FI_EOPBADSTATE;
  const std::size_t needed = own_address_.size() + 1;
  if (address != nullptr) std::memcpy(address, own_address_.c_str(), std::min(*bytes, needed));
  const bool fits = *bytes >= needed;
  *bytes = needed;
  return fits ? 0 : -FI_ETOOSMALL;
}

int Endpoint::set_name(const void* address, std::size_t bytes) {
  if (core_) return -FI_EOPBADSTATE;
  const char* const text = static_cast<const char*>(address);
  std::string name(text, ::strnlen(text, bytes));
  // An identity is given, never chosen.
  if (!name.starts_with(kNamePrefix)) return -FI_EINVAL;
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
