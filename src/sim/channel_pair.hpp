/// ChannelPair: one channel of a schedule, its two ends played at random and everything that they see checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/random.hpp"
#include "railyard/settings.hpp"
#include "sim/channel_model.hpp"
#include "sim/channel_processes.hpp"

namespace railyard::sim {

struct ChannelBehaviour {
  std::uint64_t most_bytes = 64 * 1024;
  std::uint32_t eager_bytes = Settings{}.eager_bytes;
  std::size_t most_outstanding = 24;
  std::uint32_t tags = 4;
  std::uint32_t group_percent = 40;
  std::uint32_t registered_percent = 30;
  std::uint32_t optional_percent = 10;
};

class ChannelPair {
 public:
  ChannelPair(ChannelProcesses& processes, ChannelEnds ends, std::size_t from, std::size_t to,
              const ChannelBehaviour& behaviour, const std::string& name, Findings& findings);

  /// One random act of one end. Returns whether something was begun.
  bool act(Random& random);
  /// What is missing so that everything that was begun can end. Returns whether there was anything.
  bool wind_up(Random& random);
  /// Asks after everything that is under way. Returns whether anything ended.
  bool look();
  /// Whether nothing is under way that must still end, and everything has arrived that must.
  bool settled();
  void close(std::size_t end);
  /// Takes memory back under its requests and uses it for something else, as an abort does; the end is closed later.
  /// `all`: all of it; else that of one request.
  void take_memory_back(std::size_t end, bool all, Random& random);
  bool closed(std::size_t end) const { return closed_[end] || !processes_.alive(owners_[end]); }
  bool over() const { return closed(0) && closed(1); }
  bool aborted(std::size_t end) const { return aborted_[end]; }
  /// The two processes may have given each other up although both live.
  void allow_loss() { loss_allowed_ = true; }
  std::size_t owner(std::size_t end) const { return owners_[end]; }
  void check_ghosts();
  std::size_t messages() const { return halves_[0].model.messages().size() + halves_[1].model.messages().size(); }
  /// Where it hangs, for a stuck run.
  std::string describe() const;

 private:
  struct Half {
    ChannelState* sender;
    ChannelState* receiver;
    ChannelModel model;
  };

  /// It says and hears nothing any more that counts.
  bool gone(std::size_t end) const { return closed(end) || aborted_[end] || failed_[end]; }
  bool able(std::size_t end) const { return !gone(end) && processes_.able(owners_[end]); }
  /// Both ends are there and nothing was taken back.
  bool healthy() const { return !gone(0) && !gone(1); }
  bool may_send(std::size_t end, std::size_t more) const;
  bool may_receive(std::size_t end, std::size_t more) const;
  std::size_t sends(std::size_t end) const;
  std::size_t receives(std::size_t end) const;
  /// What the peer of a closed end can still have from it.
  bool owes_messages(std::size_t end) const;
  std::uint64_t draw_size(Random& random) const;
  std::unique_ptr<Memory> perhaps_register(std::size_t end, std::span<std::byte> memory, Random& random);
  bool send(std::size_t end, Random& random, std::optional<int> tag);
  /// `tells`: its completion says that the bytes are there.
  bool receive(std::size_t end, Random& random, std::optional<int> tag, bool tells = false);
  void ask_after_loss(std::size_t end, Random& random);
  bool look_at_sends(std::size_t end);
  bool look_at_receives(std::size_t end);
  bool end_of_sends(std::size_t end, const char* call, const Error& error);
  bool end_of_calls(std::size_t end, const char* call, const Error& error);
  void forget_memory(std::size_t end);

  ChannelProcesses& processes_;
  ChannelBehaviour behaviour_;
  std::array<Half, 2> halves_;  ///< by the end that sends
  std::array<std::shared_ptr<ChannelState>, 2> ends_;
  std::array<std::size_t, 2> owners_;  ///< processes
  std::array<bool, 2> closed_{};
  std::array<bool, 2> failed_{};
  std::array<bool, 2> unheard_{};  ///< its sends fail: the peer has closed. What the peer had sent can still be had
  std::array<bool, 2> aborted_{};
  std::array<std::optional<std::uint64_t>, 2> asked_after_loss_{};  ///< when it had received so many
  std::uint64_t looks_ = 0;
  std::uint64_t drawn_ = 0;  ///< messages, for their bytes
  std::uint64_t seed_;
  bool asks_ = false;
  bool loss_allowed_ = false;
};

}  // namespace railyard::sim
