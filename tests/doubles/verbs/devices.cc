/// Devices, their ports and addresses, and who is found under an address.
#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

constexpr std::uint64_t kPageSizes = 0xfffff000;
constexpr std::uint32_t kLongestMessage = 1u << 30;
constexpr std::uint16_t kDefaultPartition = 0xffff;
/// Tables have room for more than they hold.
constexpr int kEmptyGids = 4;

ibv_gid link_local(std::size_t device, std::size_t port) {
  ibv_gid gid{};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  gid.raw[8] = 0x02;
  gid.raw[11] = 0xff;
  gid.raw[12] = 0xfe;
  gid.raw[14] = static_cast<std::uint8_t>(port);
  gid.raw[15] = static_cast<std::uint8_t>(device + 1);
  return gid;
}

/// ::ffff:127.0.PORT.(DEVICE + 1)
ibv_gid mapped(std::size_t device, std::size_t port) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[14] = static_cast<std::uint8_t>(port);
  gid.raw[15] = static_cast<std::uint8_t>(device + 1);
  return gid;
}

ibv_device** get_device_list(int* count) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  if (const int error = core.wanted_failure("get_device_list"); error != 0) return no<ibv_device*>(error);
  auto** const list = new ibv_device* [core.devices.size() + 1] {};
  int found = 0;
  for (const auto& device : core.devices) {
    if (device->dead) continue;
    const std::string& path = device->options.system_path;
    std::snprintf(device->dev_path, sizeof device->dev_path, "%s%s",
                  path.empty() ? "/sys/class/infiniband_verbs/" : path.c_str(), path.empty() ? device->name : "");
    list[found++] = device.get();
  }
  if (count != nullptr) *count = found;
  return list;
}

void free_device_list(ibv_device** list) { delete[] list; }

const char* get_device_name(ibv_device* device) { return device->name; }

ibv_context* open_device(ibv_device* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto& device = static_cast<Device&>(*handle);
  if (const int error = refused(device, "open_device"); error != 0) return no<ibv_context>(error);
  set_up_ports(device);
  auto* const context = new DoubleContext();
  context->device = &device;
  context->owner = &device;
  context->cmd_fd = -1;
  context->async_fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  context->num_comp_vectors = 1;
  add_datapath(context->ops);
  device.contexts.push_back(context);
  core.born(device, Kind::context, context);
  return context;
}

int close_device(ibv_context* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const context = static_cast<DoubleContext*>(handle);
  if (!core.known(context, "close_device")) return EINVAL;
  if (context->children != 0) return EBUSY;
  ::close(context->async_fd);
  context->async_fd = -1;
  std::erase(context->owner->contexts, context);
  core.bury(*context->owner, Kind::context, context);
  return 0;
}

int query_device(ibv_context* handle, ibv_device_attr* attributes) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  if (!core.known(static_cast<DoubleContext*>(handle), "query_device")) return EINVAL;
  Device& device = device_of(handle);
  if (const int error = refused(device, "query_device"); error != 0) return error;
  const Limits& limits = device.options.limits;
  *attributes = {};
  std::strncpy(attributes->fw_ver, "1.0", sizeof attributes->fw_ver);
  attributes->max_mr_size = ~0ull;
  attributes->page_size_cap = kPageSizes;
  attributes->max_qp = limits.max_qp;
  attributes->max_qp_wr = limits.max_qp_wr;
  attributes->max_sge = limits.max_sge;
  attributes->max_sge_rd = limits.max_sge;
  attributes->max_cq = limits.max_cq;
  attributes->max_cqe = limits.max_cqe;
  attributes->max_mr = limits.max_mr;
  attributes->max_pd = limits.max_pd;
  attributes->max_qp_rd_atom = limits.max_rd_atomic;
  attributes->max_res_rd_atom = limits.max_rd_atomic * limits.max_qp;
  attributes->max_qp_init_rd_atom = limits.max_rd_atomic;
  attributes->atomic_cap = device.options.atomics ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
  attributes->max_ah = limits.max_ah;
  attributes->max_srq = limits.max_srq;
  attributes->max_srq_wr = limits.max_srq_wr;
  attributes->max_srq_sge = limits.max_sge;
  attributes->max_pkeys = 1;
  attributes->phys_port_cnt = device.options.ports;
  return 0;
}

/// The port, or why not.
int look_at_port(ibv_context* handle, std::uint32_t number, std::string_view name, Port** port) {
  Core& core = here();
  if (!core.known(static_cast<DoubleContext*>(handle), std::string(name).c_str())) return EINVAL;
  Device& device = device_of(handle);
  if (const int error = refused(device, name); error != 0) return error;
  *port = device.port(number);
  return *port == nullptr ? EINVAL : 0;
}

int query_port(ibv_context* handle, std::uint8_t number, _compat_ibv_port_attr* attributes) {
  const std::lock_guard lock(here().lock);
  Port* port = nullptr;
  if (const int error = look_at_port(handle, number, "query_port", &port); error != 0) return error;
  const DeviceOptions& options = device_of(handle).options;
  ibv_port_attr answer{};
  answer.state = port->active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  answer.max_mtu = options.max_mtu;
  answer.active_mtu = options.active_mtu;
  answer.gid_tbl_len = static_cast<int>(port->gids.size()) + kEmptyGids;
  answer.max_msg_sz = kLongestMessage;
  answer.pkey_tbl_len = 1;
  answer.lid = port->lid;
  answer.sm_lid = port->lid == 0 ? std::uint16_t{0} : std::uint16_t{0x7fff};
  answer.active_width = options.active_width;
  answer.active_speed = options.active_speed;
  answer.phys_state = port->active ? 5 : 3;
  answer.link_layer = options.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  // The call is older than the last field: it fills what stands before.
  std::memcpy(static_cast<void*>(attributes), &answer, offsetof(ibv_port_attr, port_cap_flags2));
  return 0;
}

int query_gid(ibv_context* handle, std::uint8_t number, int index, ibv_gid* gid) {
  const std::lock_guard lock(here().lock);
  Port* port = nullptr;
  if (look_at_port(handle, number, "query_gid", &port) != 0 || index < 0 ||
      index >= static_cast<int>(port->gids.size()) + kEmptyGids) {
    return -1;
  }
  *gid = index < static_cast<int>(port->gids.size()) ? port->gids[static_cast<std::size_t>(index)].gid : ibv_gid{};
  return 0;
}

int query_gid_ex(ibv_context* handle, std::uint32_t number, std::uint32_t index, ibv_gid_entry* entry,
                 std::uint32_t flags, std::size_t entry_bytes) {
  const std::lock_guard lock(here().lock);
  Port* port = nullptr;
  if (const int error = look_at_port(handle, number, "query_gid_ex", &port); error != 0) return error;
  if (flags != 0) return EOPNOTSUPP;
  if (entry_bytes < sizeof *entry || index >= port->gids.size() + kEmptyGids) return EINVAL;
  if (index >= port->gids.size()) return ENODATA;
  *entry = {};
  entry->gid = port->gids[index].gid;
  entry->gid_index = index;
  entry->port_num = number;
  entry->gid_type = static_cast<std::uint32_t>(port->gids[index].type);
  entry->ndev_ifindex = device_of(handle).options.infiniband ? 0 : 1;
  return 0;
}

int query_pkey(ibv_context* handle, std::uint8_t number, int index, __be16* pkey) {
  const std::lock_guard lock(here().lock);
  Port* port = nullptr;
  if (look_at_port(handle, number, "query_pkey", &port) != 0 || index != 0) return -1;
  *pkey = kDefaultPartition;
  return 0;
}

bool same(const ibv_gid& one, const ibv_gid& other) { return std::memcmp(one.raw, other.raw, sizeof one.raw) == 0; }

}  // namespace

DoubleContext::~DoubleContext() {
  if (async_fd >= 0) ::close(async_fd);
}

void set_up_ports(Device& device) {
  if (!device.ports.empty()) return;
  device.ports.assign(device.options.ports, Port{});
  for (std::size_t i = 0; i < device.ports.size(); ++i) {
    Port& port = device.ports[i];
    port.active = device.options.port_active;
    const ibv_gid local = link_local(device.number, i);
    if (device.options.infiniband) {
      port.lid = static_cast<std::uint16_t>(device.number * 16 + i + 1);
      port.gids = {{local, IBV_GID_TYPE_IB}};
      continue;
    }
    ibv_gid routed = mapped(device.number, i);
    if (!device.options.address.empty()) (void)::inet_pton(AF_INET6, device.options.address.c_str(), routed.raw);
    port.gids = {{local, IBV_GID_TYPE_ROCE_V1},
                 {local, IBV_GID_TYPE_ROCE_V2},
                 {routed, IBV_GID_TYPE_ROCE_V1},
                 {routed, IBV_GID_TYPE_ROCE_V2}};
  }
}

void Core::switch_port(Device& device, std::uint8_t port, bool active) {
  set_up_ports(device);
  device.ports.at(port - 1u).active = active;
  tell_port(device, active ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port);
}

Core::Destination Core::find(const ibv_ah_attr& address, const Device& from) {
  const bool global = address.is_global != 0;
  const Port& own = from.ports[address.port_num - 1u];
  const Gid& source = own.gids[global ? address.grh.sgid_index : 0u];
  for (const auto& device : devices) {
    if (device->options.infiniband != from.options.infiniband) continue;
    for (Port& port : device->ports) {
      if (!global) {
        if (port.lid == address.dlid) return {device.get(), &port};
        continue;
      }
      const bool here = std::any_of(port.gids.begin(), port.gids.end(), [&](const Gid& gid) {
        return gid.type == source.type && same(gid.gid, address.grh.dgid);
      });
      if (here) return {device.get(), &port};
    }
  }
  return {};
}

bool Core::path_open(const Device& from, std::uint8_t from_port, const Destination& to) const {
  if (to.device == nullptr || !to.port->active || !from.ports[from_port - 1u].active) return false;
  if (from.cut || to.device->cut || from.dead || to.device->dead) return false;
  return cut_paths.empty() || !cut_paths.contains(std::minmax(from.number, to.device->number));
}

void add_device_calls(fabric::verbs::Library& calls) {
  calls.get_device_list = get_device_list;
  calls.free_device_list = free_device_list;
  calls.get_device_name = get_device_name;
  calls.open_device = open_device;
  calls.close_device = close_device;
  calls.query_device = query_device;
  calls.query_port = query_port;
  calls.query_gid = query_gid;
  calls.query_gid_ex = query_gid_ex;
  calls.query_pkey = query_pkey;
}

}  // namespace railyard::verbs_double
