#include "top_view.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <iterator>

#include "json.hpp"
#include "telemetry/schema.hpp"
#include "text.hpp"

namespace railyard::tool {
namespace {

using telemetry::FieldInfo;
using telemetry::Kind;
using telemetry::RecordInfo;
using telemetry::Snapshot;

constexpr double kStale = 2.0;           ///< seconds without a publish that are worth telling
constexpr std::ptrdiff_t kMostDead = 4;  ///< processes that were killed, shown beside those that live

/// One process at two moments.
class Change {
 public:
  Change(const Snapshot* before, const Snapshot& now, double seconds)
      : before_(before), now_(&now), seconds_(seconds) {}

  const Snapshot& now() const { return *now_; }
  bool has_rates() const { return before_ != nullptr && seconds_ > 0; }
  /// By how much a counter grew each second; its total where there is no earlier look.
  double rate(const RecordInfo& record, std::string_view field) const {
    const auto value = static_cast<double>(now_->value(record, field));
    if (!has_rates()) return value;
    const RecordInfo* const earlier = find(record);
    const double then = earlier == nullptr ? 0 : static_cast<double>(before_->value(*earlier, field));
    return std::max(0.0, value - then) / seconds_;
  }
  double sum_of_rates(std::string_view group, std::initializer_list<const char*> fields) const {
    double sum = 0;
    for (const RecordInfo* record : now_->of(group))
      for (const char* field : fields) sum += rate(*record, field);
    return sum;
  }
  std::int64_t sum(std::string_view group, std::string_view field) const {
    std::int64_t total = 0;
    for (const RecordInfo* record : now_->of(group)) total += now_->signed_value(*record, field);
    return total;
  }
  double sent() const { return sum_of_rates("rail", {"bytes_sent"}) + sum_of_rates("context", {"direct_bytes_put"}); }
  double received() const {
    return sum_of_rates("rail", {"bytes_received"}) + sum_of_rates("context", {"direct_bytes_got"});
  }
  double operations() const {
    return sum_of_rates("context", {"operations_completed", "direct_puts", "direct_gets", "direct_atomics"});
  }

 private:
  const RecordInfo* find(const RecordInfo& record) const {
    const std::string& group = now_->groups[record.group].name;
    for (const RecordInfo& each : before_->records)
      if (before_->groups[each.group].name == group && each.labels == record.labels) return &each;
    return nullptr;
  }

  const Snapshot* before_;
  const Snapshot* now_;
  double seconds_;
};

Change change_of(const SeenHost& before, const SeenHost& now, const SeenProcess& process) {
  const Snapshot* earlier = nullptr;
  for (const SeenProcess& each : before.processes)
    if (&before != &now && each.now.pid == process.now.pid && each.now.started == process.now.started)
      earlier = &each.now;
  // By the publisher's own clock: what was counted between two publishes was counted in that time.
  double seconds = static_cast<double>(now.at - before.at) * 1e-9;
  if (earlier != nullptr && process.now.published > earlier->published)
    seconds = static_cast<double>(process.now.published - earlier->published) * 1e-9;
  return {earlier, process.now, seconds};
}

std::string rate_text(const Change& change, double bytes) {
  return bytes == 0 ? "-" : readable_bytes(bytes) + (change.has_rates() ? "/s" : "");
}
std::string number_text(const Change& change, double number) {
  return number == 0 ? "-" : readable_number(number) + (change.has_rates() ? "/s" : "");
}
std::string count_text(std::int64_t count) { return count == 0 ? "-" : fmt::format("{}", count); }

/// Not below 0: what is read after the clock was may be younger than `now`.
double seconds_since(std::int64_t then, std::int64_t now) {
  return static_cast<double>(std::max<std::int64_t>(0, now - then)) * 1e-9;
}

std::string waits_text(const Snapshot& from, std::int64_t at) {
  for (const RecordInfo* context : from.of("context")) {
    const auto waiting = from.value(*context, "waiting");
    if (waiting == 0) continue;
    const std::int64_t peer = from.signed_value(*context, "waiting_for_peer");
    const char* const what =
        telemetry::to_string(static_cast<telemetry::Waiting>(std::min<std::uint64_t>(waiting, 255)));
    return fmt::format("{} {} for {:.1f} s", peer < 0 ? std::string("any peer:") : fmt::format("rank {}:", peer), what,
                       seconds_since(from.signed_value(*context, "waiting_since"), at));
  }
  return "";
}

std::string state_text(const SeenProcess& process, std::int64_t at) {
  if (!process.found.alive) return "dead";
  const double age = seconds_since(process.now.published, at);
  return age < kStale ? "" : fmt::format("no pass for {:.0f} s", age);
}

std::string links_text(const Snapshot& from, const RecordInfo& rail) {
  const auto down = from.value(rail, "links_down");
  const auto links = from.value(rail, "links");
  std::string text = fmt::format("{} link{}", links, links == 1 ? "" : "s");
  if (down != 0) text += fmt::format(", {} down", down);
  if (from.value(rail, "up") == 0) text += ", INTERFACE DOWN";
  if (from.value(rail, "sees_one_sided") == 0) text += ", at least";
  return text;
}

const char* link_state(std::uint64_t state) {
  static constexpr std::array<const char*, 5> kStates{"connecting", "up", "suspect", "down", "trying"};
  return state < kStates.size() ? kStates[state] : "?";
}

std::string processes_table(const std::vector<std::pair<const SeenProcess*, Change>>& all, std::int64_t at) {
  constexpr auto kRight = Table::Align::right;
  Table table({{"pid", kRight},
               {"rank", kRight},
               {"command"},
               {"sent", kRight},
               {"received", kRight},
               {"operations", kRight},
               {"queued", kRight},
               {"under way", kRight},
               {"retries", kRight},
               {"suspected", kRight},
               {"failovers", kRight},
               {"stalls", kRight},
               {"waits for"},
               {"state"}});
  for (const auto& [process, change] : all) {
    const Snapshot& now = process->now;
    table.add({fmt::format("{}", now.pid), now.rank < 0 ? "-" : fmt::format("{}/{}", now.rank, now.size), now.command,
               rate_text(change, change.sent()), rate_text(change, change.received()),
               number_text(change, change.operations()), count_text(change.sum("context", "operations_queued")),
               count_text(change.sum("context", "operations_outstanding")),
               count_text(change.sum("context", "segments_replayed")),
               count_text(change.sum("context", "links_suspected")), count_text(change.sum("context", "links_lost")),
               count_text(change.sum("context", "stalls")), waits_text(now, at), state_text(*process, at)});
  }
  return table.text();
}

std::string who(const Snapshot& process) {
  return process.rank < 0 ? fmt::format("{}", process.pid) : fmt::format("{} (rank {})", process.pid, process.rank);
}

std::string rails_table(const std::vector<std::pair<const SeenProcess*, Change>>& all) {
  constexpr auto kRight = Table::Align::right;
  Table table({{"process"},
               {"context"},
               {"rail", kRight},
               {"device"},
               {"sent", kRight},
               {"received", kRight},
               {"in flight", kRight},
               {"delivers", kRight},
               {"retries", kRight},
               {"suspected", kRight},
               {"failovers", kRight},
               {"links"}});
  for (const auto& [process, change] : all) {
    const Snapshot& now = process->now;
    for (const RecordInfo* rail : now.of("rail")) {
      const double rate = now.real(*rail, "rate");
      const auto in_flight = now.value(*rail, "bytes_in_flight");
      table.add({who(now), std::string(rail->label("context")), std::string(rail->label("rail")),
                 std::string(rail->label("device")), rate_text(change, change.rate(*rail, "bytes_sent")),
                 rate_text(change, change.rate(*rail, "bytes_received")),
                 in_flight == 0 ? "-" : readable_bytes(static_cast<double>(in_flight)),
                 rate > 0 && std::isfinite(rate) ? readable_bytes(rate) + "/s" : "-",
                 count_text(now.signed_value(*rail, "segments_replayed")),
                 count_text(now.signed_value(*rail, "links_suspected")),
                 count_text(now.signed_value(*rail, "links_lost")), links_text(now, *rail)});
    }
    for (const RecordInfo* context : now.of("context")) {
      const double put = change.rate(*context, "direct_bytes_put");
      const double got = change.rate(*context, "direct_bytes_got");
      const double operations = change.rate(*context, "direct_puts") + change.rate(*context, "direct_gets") +
                                change.rate(*context, "direct_atomics");
      if (operations == 0 && now.value(*context, "direct_puts") == 0) continue;
      table.add({who(now), std::string(context->label("context")), "", "direct stores and loads",
                 rate_text(change, put), rate_text(change, got), "", "", "", "", "",
                 fmt::format("{} operations", number_text(change, operations))});
    }
  }
  return table.text();
}

/// "shared 1", "own, class 4".
std::string links_of(const RecordInfo& link) {
  const std::string_view service_class = link.label("class");
  std::string text(link.label("links"));
  if (!service_class.empty() && service_class != "0") text += fmt::format(", class {}", service_class);
  return text;
}

std::string links_table(const std::vector<std::pair<const SeenProcess*, Change>>& all) {
  constexpr auto kRight = Table::Align::right;
  Table table({{"process"},
               {"peer"},
               {"route", kRight},
               {"links"},
               {"rail", kRight},
               {"to rail", kRight},
               {"state"},
               {"delivered", kRight},
               {"in flight", kRight},
               {"frames", kRight},
               {"delivers", kRight},
               {"epoch", kRight}});
  for (const auto& [process, change] : all) {
    const Snapshot& now = process->now;
    for (const RecordInfo* link : now.of("link")) {
      const double rate = now.real(*link, "rate");
      table.add({who(now), std::string(link->label("peer")), std::string(link->label("route")), links_of(*link),
                 std::string(link->label("rail")), std::string(link->label("remote_rail")),
                 link_state(now.value(*link, "state")), rate_text(change, change.rate(*link, "bytes_delivered")),
                 readable_bytes(static_cast<double>(now.value(*link, "bytes_in_flight"))),
                 count_text(now.signed_value(*link, "frames_in_flight")),
                 rate > 0 && std::isfinite(rate) ? readable_bytes(rate) + "/s" : "-",
                 fmt::format("{}", now.value(*link, "epoch") + 1)});
    }
  }
  std::string text = table.text();
  Table flows({{"process"},
               {"peer"},
               {"route", kRight},
               {"flow", kRight},
               {"submitted", kRight},
               {"under way", kRight},
               {"queued", kRight},
               {"unacknowledged", kRight},
               {"credits", kRight},
               {"messages out", kRight},
               {"in", kRight},
               {"state"}});
  for (const auto& [process, change] : all) {
    const Snapshot& now = process->now;
    for (const RecordInfo* flow : now.of("flow")) {
      const RecordInfo* channel = nullptr;
      for (const RecordInfo* each : now.of("channel"))
        if (each->labels == flow->labels) channel = each;
      const auto messages = [&, &moved = change](const char* field) {
        return channel == nullptr ? std::string("-") : number_text(moved, moved.rate(*channel, field));
      };
      flows.add({who(now), std::string(flow->label("peer")), std::string(flow->label("route")),
                 std::string(flow->label("flow")), number_text(change, change.rate(*flow, "operations_submitted")),
                 count_text(now.signed_value(*flow, "operations_outstanding")),
                 count_text(now.signed_value(*flow, "operations_queued")),
                 count_text(now.signed_value(*flow, "segments_unacknowledged")),
                 fmt::format("{}", now.signed_value(*flow, "credits")), messages("messages_sent"),
                 messages("messages_received"), now.value(*flow, "failed") != 0 ? "over" : ""});
    }
  }
  return text + "\n" + flows.text();
}

std::string windows_table(const std::vector<std::pair<const SeenProcess*, Change>>& all) {
  constexpr auto kRight = Table::Align::right;
  Table table({{"process"},
               {"context"},
               {"window", kRight},
               {"part", kRight},
               {"puts", kRight},
               {"put", kRight},
               {"gets", kRight},
               {"got", kRight},
               {"signals", kRight},
               {"atomics", kRight},
               {"direct", kRight},
               {"put, 50 %", kRight},
               {"put, 99 %", kRight}});
  for (const auto& [process, change] : all) {
    const Snapshot& now = process->now;
    for (const RecordInfo* window : now.of("window")) {
      const auto number = [&, &moved = change](const char* field) {
        return number_text(moved, moved.rate(*window, field));
      };
      // What went past the rails is part of what the window moved.
      const auto bytes = [&, &moved = change](const char* over_rails, const char* directly) {
        return rate_text(moved, moved.rate(*window, over_rails) + moved.rate(*window, directly));
      };
      const double direct = change.rate(*window, "direct_puts") + change.rate(*window, "direct_gets") +
                            change.rate(*window, "direct_atomics");
      const auto times = now.distribution(*window, "put_latency");
      const auto within = [&](double part) {
        return times.count == 0 ? std::string("-") : readable_nanoseconds(static_cast<double>(times.percentile(part)));
      };
      table.add({who(now), std::string(window->label("context")), std::string(window->label("window")),
                 readable_bytes(static_cast<double>(now.value(*window, "bytes"))), number("puts"),
                 bytes("bytes_put", "direct_bytes_put"), number("gets"), bytes("bytes_got", "direct_bytes_got"),
                 number("signals"), number("atomics"), number_text(change, direct), within(0.5), within(0.99)});
    }
  }
  return table.text();
}

std::string latency_table(const std::vector<std::pair<const SeenProcess*, Change>>& all) {
  constexpr auto kRight = Table::Align::right;
  Table table({{"process"},
               {"context"},
               {"rail", kRight},
               {"what"},
               {"sampled", kRight},
               {"mean", kRight},
               {"50 %", kRight},
               {"90 %", kRight},
               {"99 %", kRight},
               {"99.9 %", kRight}});
  for (const auto& [process, change] : all) {
    const Snapshot& now = process->now;
    std::vector<const RecordInfo*> records = now.of("context");
    std::ranges::copy(now.of("rail"), std::back_inserter(records));
    for (const RecordInfo* record : records) {
      for (const FieldInfo& field : now.groups[record->group].fields) {
        if (field.kind != Kind::histogram) continue;
        const auto times = Snapshot::distribution(*record, field);
        if (times.count == 0) continue;
        const auto at = [&](double part) { return readable_nanoseconds(static_cast<double>(times.percentile(part))); };
        table.add({who(now), std::string(record->label("context")), std::string(record->label("rail")), field.name,
                   fmt::format("{}", times.count),
                   readable_nanoseconds(static_cast<double>(times.sum) / static_cast<double>(times.count)), at(0.5),
                   at(0.9), at(0.99), at(0.999)});
      }
    }
  }
  return table.text();
}

/// Puts those that live first and the newest of the dead behind them; returns how many of these are left out.
std::size_t hide_old_dead(std::vector<std::pair<const SeenProcess*, Change>>& shown) {
  const auto lives = [](const auto& entry) { return entry.first->found.alive; };
  const auto newer = [](const auto& one, const auto& other) {
    return one.first->now.published > other.first->now.published;
  };
  const auto dead = std::stable_partition(shown.begin(), shown.end(), lives);
  if (shown.end() - dead <= kMostDead) return 0;
  std::stable_sort(dead, shown.end(), newer);
  const auto hidden = static_cast<std::size_t>(shown.end() - dead - kMostDead);
  shown.erase(dead + kMostDead, shown.end());
  return hidden;
}

void write_record(JsonWriter& json, const Change& change, const RecordInfo& record) {
  const Snapshot& now = change.now();
  json.begin_object().key("labels").begin_object();
  for (const auto& [key, value] : record.labels) json.field(key, std::string_view(value));
  json.end_object();
  for (const FieldInfo& field : now.groups[record.group].fields) {
    const std::uint64_t word = record.words[field.word];
    switch (field.kind) {
      case Kind::counter:
        json.field(field.name, word);
        if (change.has_rates()) json.field(field.name + "_per_second", change.rate(record, field.name));
        break;
      case Kind::gauge:
        json.field(field.name, static_cast<std::int64_t>(word));
        break;
      case Kind::real:
        json.field(field.name, std::bit_cast<double>(word));
        break;
      case Kind::histogram: {
        const auto times = Snapshot::distribution(record, field);
        json.key(field.name).begin_object();
        json.field("count", times.count).field("sum", times.sum);
        for (const auto& [name, part] : {std::pair("p50", 0.5), {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}})
          json.field(name, times.percentile(part));
        json.end_object();
      }
    }
  }
  json.end_object();
}

}  // namespace

const char* to_string(TopOrder order) {
  static constexpr std::array<const char*, 5> kNames{"pid", "sent", "received", "operations", "under-way"};
  return kNames[static_cast<std::size_t>(order)];
}
const char* to_string(TopDetail detail) {
  static constexpr std::array<const char*, 5> kNames{"processes", "rails", "links", "windows", "latency"};
  return kNames[static_cast<std::size_t>(detail)];
}

std::string top_text(const SeenHost& before, const SeenHost& now, const TopView& view) {
  std::vector<std::pair<const SeenProcess*, Change>> shown;
  for (const SeenProcess& process : now.processes)
    if (view.pid == 0 || process.found.pid == view.pid) shown.emplace_back(&process, change_of(before, now, process));
  const auto key = [&](const auto& entry) -> double {
    switch (view.order) {
      case TopOrder::sent:
        return -entry.second.sent();
      case TopOrder::received:
        return -entry.second.received();
      case TopOrder::operations:
        return -entry.second.operations();
      case TopOrder::outstanding:
        return -static_cast<double>(entry.second.sum("context", "operations_outstanding"));
      case TopOrder::pid:
        break;
    }
    return static_cast<double>(entry.first->now.pid);
  };
  std::ranges::stable_sort(shown, {}, key);
  const std::size_t hidden = hide_old_dead(shown);
  const bool rates = std::ranges::any_of(shown, [](const auto& entry) { return entry.second.has_rates(); });
  std::string text = fmt::format(
      "{:%H:%M:%S}  {} process{}{}\n\n", fmt::localtime(static_cast<std::time_t>(now.at / 1'000'000'000)), shown.size(),
      shown.size() == 1 ? "" : "es", rates || shown.empty() ? "" : "; totals since they began");
  if (shown.empty()) {
    text +=
        "No process of yours publishes telemetry here: none runs, or it has RAILYARD_TELEMETRY=off or another "
        "directory.\n";
  } else {
    text += processes_table(shown, now.at);
    if (view.detail == TopDetail::rails) text += "\n" + rails_table(shown);
    if (view.detail == TopDetail::links) text += "\n" + links_table(shown);
    if (view.detail == TopDetail::windows) text += "\n" + windows_table(shown);
    if (view.detail == TopDetail::latency) text += "\n" + latency_table(shown);
  }
  for (const auto& [process, change] : shown) {
    if (process->now.dropped != 0)
      text += fmt::format("{}: {} things had no room in its file\n", process->now.pid, process->now.dropped);
  }
  if (hidden != 0)
    text += fmt::format("{} more that were killed before: --json has them, --clean removes their files\n", hidden);
  for (const std::string& why : now.unreadable) text += fmt::format("{}\n", why);
  return text;
}

std::string top_json(const SeenHost& before, const SeenHost& now) {
  JsonWriter json;
  json.begin_object().field("time", static_cast<double>(now.at) * 1e-9).key("processes").begin_array();
  for (const SeenProcess& process : now.processes) {
    const Change change = change_of(before, now, process);
    const Snapshot& from = process.now;
    json.begin_object();
    json.field("pid", from.pid).field("alive", process.found.alive).field("rank", from.rank).field("size", from.size);
    json.field("command", std::string_view(from.command)).field("host", std::string_view(from.host));
    json.field("file", std::string_view(process.found.path)).field("dropped", from.dropped);
    json.field("opened", static_cast<double>(from.opened) * 1e-9);
    json.field("age_seconds", seconds_since(from.published, now.at));
    for (const telemetry::GroupInfo& group : from.groups) {
      json.key(group.name).begin_array();
      for (const RecordInfo* record : from.of(group.name)) write_record(json, change, *record);
      json.end_array();
    }
    json.end_object();
  }
  json.end_array().key("unreadable").begin_array();
  for (const std::string& why : now.unreadable) json.value(std::string_view(why));
  json.end_array().end_object();
  return json.finish();
}

}  // namespace railyard::tool
