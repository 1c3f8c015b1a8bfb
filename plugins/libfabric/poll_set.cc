/// Poll set: several queues and counters looked at in one call.
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "counter.hpp"
#include "domain.hpp"
#include "log.hpp"
#include "queue.hpp"

namespace railyard::provider {

namespace {

struct PollSet {
  explicit PollSet(Domain& owner) : domain(owner) {}
  struct Member {
    struct fid* object;
    std::uint64_t seen;  ///< a counter's value when it was reported last
  };
  fid_poll fid{};
  Domain& domain;
  std::mutex mutex;
  std::vector<Member> members;
};

References& references_of(struct fid* object) {
  return object->fclass == FI_CLASS_CQ ? object_of<Queue>(object)->references : object_of<Counter>(object)->references;
}

/// Moves the object on; true when there is something to read. Of a counter that is a change.
bool has_news(PollSet::Member& member) {
  if (member.object->fclass == FI_CLASS_CQ) {
    auto* queue = object_of<Queue>(member.object);
    Guard guard(queue->domain.lock);
    queue->watch.progress();
    return !queue->empty();
  }
  auto* counter = object_of<Counter>(member.object);
  Guard guard(counter->domain.lock);
  counter->watch.progress();
  const std::uint64_t now = counter->value.load() + counter->errors.load();
  return std::exchange(member.seen, now) != now;
}

int poll_members(fid_poll* fid, void** contexts, int count) {
  auto* set = object_of<PollSet>(fid);
  const std::lock_guard guard(set->mutex);
  int found = 0;
  for (PollSet::Member& member : set->members) {
    if (found == count) break;
    if (has_news(member)) contexts[found++] = member.object->context;
  }
  return found;
}

int add_member(fid_poll* fid, struct fid* object, std::uint64_t flags) {
  auto* set = object_of<PollSet>(fid);
  if (flags != 0) return refuse(-FI_EBADFLAGS, "fi_poll_add takes no flags");
  if (object->fclass != FI_CLASS_CQ && object->fclass != FI_CLASS_CNTR)
    return refuse(-FI_EINVAL, "a poll set holds completion queues and counters only");
  const std::lock_guard guard(set->mutex);
  set->members.push_back({object, 0});
  references_of(object).add();
  return 0;
}

int remove_member(fid_poll* fid, struct fid* object, std::uint64_t) {
  auto* set = object_of<PollSet>(fid);
  const std::lock_guard guard(set->mutex);
  const auto it = std::find_if(set->members.begin(), set->members.end(),
                               [object](const PollSet::Member& member) { return member.object == object; });
  if (it == set->members.end()) return refuse(-FI_EINVAL, "fi_poll_del: the object is not in this poll set");
  references_of(object).drop();
  set->members.erase(it);
  return 0;
}

int close_set(fid* fid) {
  auto* set = object_of<PollSet>(fid);
  if (!set->members.empty())
    return refuse(-FI_EBUSY, "fi_close: the poll set still has members; fi_poll_del them first");
  set->domain.references.drop();
  delete set;
  return 0;
}

fi_ops set_fid_calls{sizeof(fi_ops),
                     close_set,
                     not_offered<&fi_ops::bind>,
                     not_offered<&fi_ops::control>,
                     not_offered<&fi_ops::ops_open>,
                     not_offered<&fi_ops::tostr>,
                     not_offered<&fi_ops::ops_set>};
fi_ops_poll set_calls{sizeof(fi_ops_poll), poll_members, add_member, remove_member};

}  // namespace

int open_poll_set(fid_domain* fid, fi_poll_attr* attributes, fid_poll** result) {
  if (attributes != nullptr && attributes->flags != 0) return refuse(-FI_EINVAL, "fi_poll_open takes no flags");
  Domain& domain = *object_of<Domain>(fid);
  auto set = std::make_unique<PollSet>(domain);
  set->fid.fid.fclass = FI_CLASS_POLL;
  set->fid.fid.ops = &set_fid_calls;
  set->fid.ops = &set_calls;
  domain.references.add();
  *result = &set.release()->fid;
  return 0;
}

}  // namespace railyard::provider
