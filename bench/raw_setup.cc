/// Set-up of the bare libfabric endpoint: discovery, endpoint, registrations, the peer's address.
#include <fmt/core.h>
#include <rdma/fi_atomic.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/shared_library.hpp"
#include "bench/raw_libfabric.hpp"

namespace railyard::bench {

namespace {

constexpr std::size_t kMostInFlight = 1024;
constexpr std::size_t kReceives = 64;
constexpr std::size_t kMessageBytes = 64;
constexpr std::uint32_t kPatience = 128;

Error raw_error(const RawDomain& where, const char* call, int code) {
  return Error(Status::rail_failed, fmt::format("bare libfabric on {} {}: {}: {}", where.provider, where.domain, call,
                                                fabric::ofi::library().strerror(-code)));
}

/// An empty name stands for any.
bool is_name(const char* given, const std::string& wanted) {
  return wanted.empty() || (given != nullptr && wanted == given);
}

bool is_domain(const fi_info& info, const RawDomain& where) {
  return is_name(info.fabric_attr->prov_name, where.provider) && is_name(info.domain_attr->name, where.domain) &&
         is_name(info.fabric_attr->name, where.fabric);
}

/// A libfabric string attribute, to be freed with its fi_info.
char* owned_string(const std::string& text) { return text.empty() ? nullptr : ::strdup(text.c_str()); }

/// One core for both ranks: spinning would only delay the peer.
bool single_core() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return true;
  // Pinned ranks have one core each: then the machine's count says whether they share it.
  return CPU_COUNT(&allowed) == 1 && sysconf(_SC_NPROCESSORS_ONLN) == 1;
}

}  // namespace

Result<std::unique_ptr<RawRail>> RawRail::open(const RawDomain& where, std::span<std::byte> exposed,
                                               std::span<std::byte> buffer, bool atomics, std::uint32_t timeout_ms) {
  if (auto loaded = fabric::ofi::load_library(); !loaded) return std::move(loaded.error());
  const KeepSignals keep;
  std::unique_ptr<RawRail> rail(new RawRail());
  rail->where_ = where;
  rail->timeout_ns_ = std::int64_t{timeout_ms} * 1'000'000;
  rail->exposed_ = exposed;
  rail->buffer_ = buffer;
  rail->patience_ = single_core() ? 0 : kPatience;
  if (auto opened = rail->open_endpoint(atomics); !opened) return std::move(opened.error());
  if (auto registered = rail->register_all(); !registered) return std::move(registered.error());
  if (auto posted = rail->keep_receives(); !posted) return std::move(posted.error());
  return rail;
}

std::string RawRail::name() const { return fmt::format("raw {} {}", where_.provider, where_.domain); }

Result<void> RawRail::find_domain(bool atomics) {
  const std::unique_ptr<fi_info, InfoCloser> hints(fabric::ofi::library().dupinfo(nullptr));
  if (!hints) return Error(Status::no_memory, "fi_allocinfo");
  hints->caps = FI_MSG | FI_RMA | (atomics ? FI_ATOMIC : 0);
  hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->name = owned_string(where_.domain);
  hints->fabric_attr->prov_name = owned_string(where_.provider);
  hints->fabric_attr->name = owned_string(where_.fabric);
  fi_info* found = nullptr;
  const int code = fabric::ofi::library().getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found);
  if (code != 0) return raw_error(where_, "fi_getinfo", code);
  // A layered provider answers with every interface, whatever the hints name.
  const std::unique_ptr<fi_info, InfoCloser> all(found);
  for (const fi_info* one = found; one != nullptr; one = one->next) {
    if (!is_domain(*one, where_)) continue;
    info_.reset(fabric::ofi::library().dupinfo(one));
    return info_ ? Result<void>{} : Error(Status::no_memory, "fi_dupinfo");
  }
  return raw_error(where_, "fi_getinfo", -FI_ENODATA);
}

Result<void> RawRail::open_endpoint(bool atomics) {
  auto found = find_domain(atomics);
  has_atomics_ = atomics && found.ok();
  if (!found && atomics) found = find_domain(false);
  if (!found) return found;
  if (info_->domain_attr->cq_data_size < 4) {
    return Error(Status::unsupported,
                 fmt::format("provider {} carries no data with a write; --beside raw needs it", where_.provider));
  }
  fid_fabric* fabric = nullptr;
  if (int code = fabric::ofi::library().fabric(info_->fabric_attr, &fabric, nullptr))
    return raw_error(where_, "fi_fabric", code);
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  if (int code = fi_domain(fabric, info_.get(), &domain, nullptr)) return raw_error(where_, "fi_domain", code);
  domain_.reset(domain);

  fi_cq_attr queue_attributes{};
  queue_attributes.format = FI_CQ_FORMAT_DATA;
  queue_attributes.wait_obj = FI_WAIT_NONE;
  queue_attributes.size = info_->tx_attr->size + info_->rx_attr->size;
  fid_cq* queue = nullptr;
  if (int code = fi_cq_open(domain, &queue_attributes, &queue, nullptr)) return raw_error(where_, "fi_cq_open", code);
  queue_.reset(queue);
  fi_av_attr address_attributes{};
  address_attributes.type = FI_AV_TABLE;
  address_attributes.count = 1;
  fid_av* addresses = nullptr;
  if (int code = fi_av_open(domain, &address_attributes, &addresses, nullptr)) {
    return raw_error(where_, "fi_av_open", code);
  }
  addresses_.reset(addresses);

  fid_ep* endpoint = nullptr;
  if (int code = fi_endpoint(domain, info_.get(), &endpoint, nullptr)) return raw_error(where_, "fi_endpoint", code);
  endpoint_.reset(endpoint);
  if (int code = fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV)) return raw_error(where_, "fi_ep_bind", code);
  if (int code = fi_ep_bind(endpoint, &addresses->fid, 0)) return raw_error(where_, "fi_ep_bind", code);
  if (int code = fi_enable(endpoint)) return raw_error(where_, "fi_enable", code);
  // Some providers list FI_ATOMIC and have no fetching addition.
  std::size_t most = 0;
  has_atomics_ = has_atomics_ && fi_fetch_atomicvalid(endpoint, FI_UINT64, FI_SUM, &most) == 0 && most > 0;
  uses_receives_ = (info_->mode & FI_RX_CQ_DATA) != 0 || (atomics && !has_atomics_);
  return {};
}

Result<void> RawRail::register_memory(std::span<std::byte> memory, std::uint64_t access, Fid<fid_mr>& registration) {
  fid_mr* made = nullptr;
  // Keys need only differ within this domain; a provider with FI_MR_PROV_KEY ignores the wish.
  if (int code = fi_mr_reg(domain_.get(), memory.data(), memory.size(), access, 0, next_key_++, 0, &made, nullptr)) {
    return raw_error(where_, "fi_mr_reg", code);
  }
  registration.reset(made);
  if ((info_->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    if (int code = fi_mr_bind(made, &endpoint_->fid, 0)) return raw_error(where_, "fi_mr_bind", code);
    if (int code = fi_mr_enable(made)) return raw_error(where_, "fi_mr_enable", code);
  }
  return {};
}

Result<void> RawRail::register_all() {
  if (auto done = register_memory(exposed_, FI_REMOTE_READ | FI_REMOTE_WRITE, exposed_registration_); !done)
    return done;
  messages_.resize(kReceives * kMessageBytes);
  if ((info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0) {
    const std::uint64_t local = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    if (auto done = register_memory(buffer_, local, buffer_registration_); !done) return done;
    if (auto done = register_memory(messages_, FI_RECV, message_registration_); !done) return done;
  }
  contexts_.resize(std::min(kMostInFlight, info_->tx_attr->size));
  for (fi_context2& context : contexts_) free_contexts_.push_back(&context);
  receive_contexts_.resize(uses_receives_ ? std::min(kReceives, info_->rx_attr->size) : 0);
  for (fi_context2& context : receive_contexts_) free_receives_.push_back(&context);
  return {};
}

Result<void> RawRail::keep_receives() {
  while (!free_receives_.empty()) {
    fi_context2* context = free_receives_.back();
    const auto index = static_cast<std::size_t>(context - receive_contexts_.data());
    void* descriptor = message_registration_ ? fi_mr_desc(message_registration_.get()) : nullptr;
    const ssize_t code = fi_recv(endpoint_.get(), messages_.data() + index * kMessageBytes, kMessageBytes, descriptor,
                                 FI_ADDR_UNSPEC, context);
    if (code == -FI_EAGAIN) return {};
    if (code != 0) return raw_error(where_, "fi_recv", static_cast<int>(code));
    free_receives_.pop_back();
  }
  return {};
}

std::vector<std::byte> RawRail::contribution() const {
  std::size_t length = 0;
  fi_getname(&endpoint_->fid, nullptr, &length);
  const bool virtual_addresses = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  const std::uint64_t words[2] = {virtual_addresses ? reinterpret_cast<std::uint64_t>(exposed_.data()) : 0,
                                  fi_mr_key(exposed_registration_.get())};
  std::vector<std::byte> out(sizeof(words) + length);
  std::memcpy(out.data(), words, sizeof(words));
  if (fi_getname(&endpoint_->fid, out.data() + sizeof(words), &length) != 0) out.resize(sizeof(words));
  return out;
}

Result<void> RawRail::connect(std::span<const std::byte> contribution) {
  std::uint64_t words[2];
  if (contribution.size() <= sizeof(words)) {
    return Error(Status::rail_failed,
                 fmt::format("bare libfabric on {} {}: the peer has no address there", where_.provider, where_.domain));
  }
  std::memcpy(words, contribution.data(), sizeof(words));
  peer_base_ = words[0];
  peer_key_ = words[1];
  const int inserted = fi_av_insert(addresses_.get(), contribution.data() + sizeof(words), 1, &peer_, 0, nullptr);
  if (inserted != 1) return raw_error(where_, "fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL);
  return {};
}

}  // namespace railyard::bench
