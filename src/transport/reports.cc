#include "transport/reports.hpp"

#include <algorithm>
#include <cstring>

#include "transport/scheduler.hpp"

namespace railyard::transport {
namespace {

constexpr std::size_t kMostReports = 256;
constexpr std::size_t kReportsPerLink = 16;  // one that takes none away must not leave the others without
constexpr std::size_t kReportsPerBlock = 64;
/// Notices in flight on a link: one that swallows them must not take the buffers of all others.
constexpr std::uint32_t kMostNotices = 8;
/// An acknowledgement that nobody waits for waits so long, in nanoseconds, for a frame to ride on: as a message of its
/// own it costs both ends a system call, often between a message and its answer. Through memory it costs nothing.
constexpr std::int64_t kPatience = 50'000;

}  // namespace

Result<void> Reports::open(std::size_t flows) {
  const std::size_t most = std::max(kMostReports, kReportsPerLink * core_.rails.size() * flows);
  auto buffers = memory::Slab::open(core_.rails.views(), wire::kNoticeBytes, kReportsPerBlock, most);
  if (!buffers) return std::move(buffers.error());
  buffers_.emplace(std::move(*buffers));
  return {};
}

void Reports::begin(Flow& flow) {
  if (!flow.heard) {
    flow.heard = true;
    core_.grants.begin();
  }
  if (!flow.in_reporting) {
    flow.in_reporting = true;
    flow.reporting_since = core_.now;
    owing_.push_back(&flow);
  }
}

inline bool Reports::may_wait(const Flow& flow) const {
  return flow.inbox != nullptr && !flow.receiver.report_awaited() && !flow.route->in_memory &&
         core_.now - flow.reporting_since < kPatience;
}

bool Reports::send(When when) {
  bool moved = false;
  std::size_t kept = 0;
  const std::size_t turns = std::min<std::size_t>(owing_.size(), core_.settings.batch);
  due_ = turns < owing_.size();
  for (std::size_t i = 0; i < turns; ++i) {
    Flow& flow = *owing_[i];
    const bool now = when == When::now || (when == When::idle && !may_wait(flow)) || flow.receiver.report_due();
    if (flow.receiver.owes_report() && now) moved |= acknowledge(flow);
    if (!flow.receiver.owes_report() || flow.failed.load(std::memory_order_relaxed)) {
      flow.in_reporting = false;
    } else {
      due_ |= flow.receiver.report_due();
      owing_[kept++] = &flow;
    }
  }
  owing_.erase(owing_.begin() + static_cast<std::ptrdiff_t>(kept), owing_.begin() + static_cast<std::ptrdiff_t>(turns));
  std::rotate(owing_.begin(), owing_.begin() + static_cast<std::ptrdiff_t>(kept), owing_.end());
  return moved;
}

bool Reports::acknowledge(Flow& flow) {
  for (Scheduler::Tried tried = 0;;) {
    Link* link = Scheduler::link_for_report(flow, tried);
    memory::Buffer* buffer = link != nullptr ? buffers_->take() : nullptr;
    if (buffer == nullptr) return false;
    buffer->bytes = wire::kRecordsAt;
    flow.write_header(buffer->data, wire::FrameKind::acknowledge, 0, 0, buffer->bytes, core_.grants.each());
    if (post(flow, *link, buffer)) break;
    tried = Scheduler::with(tried, flow, *link);
  }
  ++core_.counts.acknowledgements_sent;
  return true;
}

bool Reports::send_notice(Flow& flow, Link& link, const wire::RecordHeader& record, std::span<const std::byte> body) {
  memory::Buffer* buffer = link.reports_in_flight() < kMostNotices ? buffers_->take() : nullptr;
  if (buffer == nullptr) return false;
  buffer->bytes = wire::kRecordsAt;
  std::byte* body_at = wire::FrameWriter::append(buffer->data, buffer->bytes, record);
  if (!body.empty()) std::memcpy(body_at, body.data(), body.size());
  flow.write_header(buffer->data, wire::FrameKind::notice, 1, flow.sender.next_sequence(), buffer->bytes,
                    core_.grants.each());
  return post(flow, link, buffer);
}

bool Reports::send_notice(Flow& flow, const wire::RecordHeader& record, std::span<const std::byte> body) {
  for (Scheduler::Tried tried = 0;;) {
    Link* link = Scheduler::link_for_notice(flow, tried);
    if (link == nullptr) return false;
    if (send_notice(flow, *link, record, body)) return true;
    tried = Scheduler::with(tried, flow, *link);
  }
}

/// Its header tells the peer all. Takes the buffer in any case.
bool Reports::post(Flow& flow, Link& link, memory::Buffer* buffer) {
  buffer->tag = static_cast<std::uint8_t>(Tag::report);
  buffer->owner = &link;
  if (poster_.post_report(flow, link, *buffer) != fabric::Post::posted) {
    buffers_->give(buffer);
    return false;
  }
  flow.receiver.reported();
  return true;
}

void Reports::over(memory::Buffer* buffer) {
  static_cast<Link*>(buffer->owner)->report_done();
  buffers_->give(buffer);
}

void Reports::forget(Flow& flow) {
  std::erase(owing_, &flow);
  flow.in_reporting = false;
  if (flow.heard) core_.grants.end();
}

}  // namespace railyard::transport
