/// Counts the endpoints and completion queues that the library has open: stands before libfabric's `fi_fabric` and puts
/// counting functions into the tables of what comes out of it.
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "fabric/ofi/library.hpp"
#include "pair.hpp"

namespace railyard::bench {
namespace {

std::atomic<std::int64_t> endpoints{0};
std::atomic<std::int64_t> listeners{0};
std::atomic<std::int64_t> queues{0};

/// The providers' own tables, by the object they belong to, and ours, which stay for good.
struct Tables {
  struct Watched {
    fi_ops* ops = nullptr;
    std::atomic<std::int64_t>* count = nullptr;
  };
  std::mutex mutex;
  std::map<fid*, Watched> watched;
  std::deque<fi_ops> closing;
  std::map<fid_fabric*, fi_ops_fabric*> fabrics;
  std::deque<fi_ops_fabric> fabric_tables;
  std::map<fid_domain*, fi_ops_domain*> domains;
  std::deque<fi_ops_domain> domain_tables;
};
Tables& tables() {
  static auto* const all = new Tables;
  return *all;
}

int count_close(fid* object) {
  Tables::Watched watched;
  {
    const std::scoped_lock lock(tables().mutex);
    watched = tables().watched.at(object);
    tables().watched.erase(object);
  }
  object->ops = watched.ops;
  const int code = watched.ops->close(object);
  if (code == 0) watched.count->fetch_sub(1);
  return code;
}

void watch(fid& object, std::atomic<std::int64_t>& count) {
  const std::scoped_lock lock(tables().mutex);
  fi_ops& ops = tables().closing.emplace_back(*object.ops);
  tables().watched[&object] = {object.ops, &count};
  ops.close = count_close;
  object.ops = &ops;
  count.fetch_add(1);
}

fi_ops_domain* own_table(fid_domain* domain) {
  const std::scoped_lock lock(tables().mutex);
  return tables().domains.at(domain);
}
fi_ops_fabric* own_table(fid_fabric* fabric) {
  const std::scoped_lock lock(tables().mutex);
  return tables().fabrics.at(fabric);
}

int count_endpoint(fid_domain* domain, fi_info* info, fid_ep** made, void* context) {
  const int code = own_table(domain)->endpoint(domain, info, made, context);
  if (code == 0) watch((*made)->fid, endpoints);
  return code;
}

int count_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** made, void* context) {
  const int code = own_table(domain)->cq_open(domain, attributes, made, context);
  if (code == 0) watch((*made)->fid, queues);
  return code;
}

int count_listener(fid_fabric* fabric, fi_info* info, fid_pep** made, void* context) {
  const int code = own_table(fabric)->passive_ep(fabric, info, made, context);
  if (code == 0) watch((*made)->fid, listeners);
  return code;
}

int watch_domain(fid_fabric* fabric, fi_info* info, fid_domain** made, void* context) {
  const int code = own_table(fabric)->domain(fabric, info, made, context);
  if (code != 0) return code;
  const std::scoped_lock lock(tables().mutex);
  tables().domains[*made] = (*made)->ops;
  fi_ops_domain& table = tables().domain_tables.emplace_back(*(*made)->ops);
  table.endpoint = count_endpoint;
  table.cq_open = count_queue;
  (*made)->ops = &table;
  return code;
}

/// libfabric's calls, and the same with ours before them.
fabric::ofi::Library own_calls;
fabric::ofi::Library watching_calls;

int watch_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  const int code = own_calls.fabric(attributes, fabric, context);
  if (code != 0) return code;
  const std::scoped_lock lock(tables().mutex);
  tables().fabrics[*fabric] = (*fabric)->ops;
  fi_ops_fabric& table = tables().fabric_tables.emplace_back(*(*fabric)->ops);
  table.domain = watch_domain;
  table.passive_ep = count_listener;
  (*fabric)->ops = &table;
  return code;
}

}  // namespace

void count_fabric_objects() {
  if (!fabric::ofi::load_library()) return;  // then there is nothing to count
  own_calls = watching_calls = fabric::ofi::library();
  watching_calls.fabric = watch_fabric;
  fabric::ofi::replace_library(&watching_calls);
}

FabricObjects fabric_objects() { return {endpoints.load(), listeners.load(), queues.load()}; }

}  // namespace railyard::bench
