/// What must come of one direction of a channel: which message goes into which slot of which receive. The messages of
/// one tag are a stream of their own: the first goes into the first slot of that tag, over all receives in the order in
/// which they were posted. Written as simply as can be, and apart from the library's own matching.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "railyard/channel.hpp"
#include "sim/findings.hpp"
#include "sim/pattern.hpp"

namespace railyard::sim {

class ChannelModel {
 public:
  struct Message {
    int tag = 0;
    Pattern pattern;
    std::vector<std::byte> bytes;
    std::unique_ptr<Memory> memory;
    Request* request = nullptr;  ///< null: done, or given up
    bool done = false;           ///< its send was said to be
    bool placed = false;         ///< a slot for it has been posted
    bool received = false;
  };
  struct Slot {
    int tag = 0;
    std::vector<std::byte> memory;
    std::unique_ptr<Memory> registered;
    std::optional<std::size_t> message;
  };
  struct Receive {
    std::vector<Slot> slots;
    Request* request = nullptr;  ///< null: done, or given up
    bool completion_optional = false;
    bool returned = false;  ///< its memory is the user's again, who uses it for something else
    bool full() const;
  };

  /// What a slot holds before a message.
  static constexpr std::byte kUnused{0xee};

  ChannelModel(std::string name, Findings& findings) : name_(std::move(name)), findings_(&findings) {}

  void add(Message message);
  void add(Receive receive);

  /// The tag that the oldest unfilled receive waits for; nothing: there is none.
  std::optional<int> wanted() const;
  /// The tag of the oldest message without a slot; `done_only`: of one whose send is done.
  std::optional<int> unplaced(bool done_only) const;
  /// Whether every message whose send is done has been received.
  bool done_messages_received() const;
  /// Whether each of the receive's messages was sent, and its send is done.
  bool all_done(const Receive& receive) const;

  /// A send of that message is said to be done. A large one cannot be before its receive is there.
  void sent(Message& message, std::uint64_t size, std::uint32_t eager_bytes);
  void received(Receive& receive, std::span<const std::uint64_t> sizes);
  /// Once everything has arrived: receives whose completion says nothing.
  void check_optional();
  /// The user has a receive's memory back, finished or not, and uses it for something else.
  static void return_memory(Receive& receive);
  void return_all_memory();
  /// Memory that the user had back is as the user left it.
  void check_ghosts();

  std::deque<Message>& messages() { return messages_; }
  const std::deque<Message>& messages() const { return messages_; }
  std::deque<Receive>& receives() { return receives_; }
  const std::deque<Receive>& receives() const { return receives_; }
  void find(Finding finding, const std::string& what);

 private:
  void assign();
  Slot* free_slot(int tag);
  void check(Receive& receive, std::span<const std::uint64_t> sizes);

  std::string name_;
  Findings* findings_;
  std::deque<Message> messages_;
  std::deque<Receive> receives_;
  std::vector<std::size_t> unplaced_;
};

}  // namespace railyard::sim
