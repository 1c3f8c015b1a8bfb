/// Poster: hands a segment or a report to the rail of a link, and counts it there. Nothing else posts. A post that
/// fails is a link that broke, found out in the middle of a turn: it is written down, and the loop has Failover deal
/// with it when the turns are over.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/core.hpp"
#include "transport/flow.hpp"

namespace railyard::transport {

class Poster {
 public:
  explicit Poster(Core& core) : core_(core) {}

  /// A frame, its header written last: it says where the flow stands now. `index`: of the link.
  fabric::Post post_frame(Flow& flow, Segment& segment, const memory::Buffer& buffer, std::uint16_t records, Link& link,
                          std::uint16_t index);
  /// A segment of any kind, for the first time or again.
  [[gnu::hot]] fabric::Post post(Flow& flow, Segment& segment, Link& link);
  /// A message outside the sequence.
  fabric::Post post_report(const Flow& flow, Link& link, memory::Buffer& buffer);

  /// Now and then: the next frame is timed, however few there are.
  void time_next() { until_timed_ = 1; }

  struct FailedPost {
    Route* route = nullptr;
    std::uint16_t link = 0;
    std::uint32_t epoch = 0;
    std::string why;
  };
  bool any_failed() const { return !failed_.empty(); }
  /// What has failed since the last call.
  std::vector<FailedPost> take_failed() { return std::exchange(failed_, {}); }
  /// The route goes.
  void forget(const Route& route) {
    std::erase_if(failed_, [&route](const FailedPost& post) { return post.route == &route; });
  }

 private:
  fabric::Post post_chunk(Flow& flow, Segment& segment, Link& link);
  fabric::Post hand_over(Flow& flow, Segment& segment, const Link& link);
  void posted(Flow& flow, Segment& segment, Link& link, std::uint16_t index);
  [[gnu::noinline, gnu::cold]] void note_up(const Flow& flow, const Link& link) const;
  [[gnu::noinline, gnu::cold]] void begin_timing(Segment& segment);
  [[gnu::noinline, gnu::cold]] void note_failed(const Flow& flow, const Link& link);

  static constexpr std::uint32_t kFramesPerTimed = 256;

  Core& core_;
  std::uint32_t until_timed_ = kFramesPerTimed;
  std::vector<FailedPost> failed_;  ///< one for each link at most
};

/// The link's rail has taken the segment.
inline void Poster::posted(Flow& flow, Segment& segment, Link& link, std::uint16_t index) {
  segment.link = index;
  segment.epoch = link.health.epoch;
  segment.posted = segment.in_flight = true;
  ++flow.posted;
  if (link.health.taken()) [[unlikely]]
    note_up(flow, link);
  core_.trace.posted(flow, segment, link);
}

[[gnu::always_inline]] inline fabric::Post Poster::post_frame(Flow& flow, Segment& segment,
                                                              const memory::Buffer& buffer, std::uint16_t records,
                                                              Link& link, std::uint16_t index) {
  flow.write_header(buffer.data, wire::FrameKind::sequenced, records, segment.sequence, buffer.bytes,
                    core_.grants.each());
  RailState& rail = core_.rails.state(link.rail());
  const fabric::Post answer = rail.rail->send(link.remote(), buffer.chunk(link.rail()), &segment);
  if (answer != fabric::Post::posted) [[unlikely]] {
    if (answer == fabric::Post::failed) note_failed(flow, link);
    return answer;
  }
  posted(flow, segment, link, index);
  link.frame_posted();
  ++flow.shares[index].frames;
  flow.receiver.reported();
  ++rail.statistics.frames_sent;
  rail.statistics.bytes_sent += buffer.bytes;
  if (--until_timed_ == 0) [[unlikely]]
    begin_timing(segment);
  return answer;
}

}  // namespace railyard::transport
