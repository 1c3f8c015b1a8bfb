#include "telemetry/store.hpp"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "telemetry/files.hpp"
#include "telemetry/process_text.hpp"
#include "telemetry/reader.hpp"
#include "telemetry/summary.hpp"

namespace railyard::telemetry {
namespace {

constexpr std::size_t kGroupsAt = (sizeof(Header) + 63) / 64 * 64;
constexpr std::size_t kFieldsAt = kGroupsAt + kMostGroups * sizeof(GroupEntry);
constexpr std::size_t kRecordsAt = (kFieldsAt + kMostFields * sizeof(FieldEntry) + 63) / 64 * 64;
constexpr std::size_t kValuesAt = kRecordsAt + kMostRecords * sizeof(RecordEntry);
constexpr std::size_t kBytes = kValuesAt + kMostWords * sizeof(std::uint64_t);
static_assert(kValuesAt % 64 == 0);

std::int64_t wall_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::uint32_t words_of(const GroupSchema& group) {
  std::uint32_t words = 0;
  for (const Field& field : group.fields) words += words_of(field);
  return words;
}

/// "key=value" with a tab between two; a value has neither of the two nor anything that is no text.
std::string labels_text(const Labels& labels) {
  std::string text;
  for (const auto& [key, value] : labels) {
    if (!text.empty()) text += '\t';
    text += key;
    text += '=';
    for (const char c : value) text += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return text;
}

/// The stores of this process, guarded by the mutex of process files: for its end.
class Living {
 public:
  static Living& instance() {
    // Neither destroyed nor on the heap: see ProcessFile.
    alignas(Living) static std::byte memory[sizeof(Living)];
    static Living* const living = new (memory) Living;
    return *living;
  }
  std::vector<Store*> stores;
  std::weak_ptr<Store> of_process;
  bool summary = false;

  pid_t process = 0;  ///< whose `of_process` is: not its parent's
  std::shared_ptr<Store> known() const { return process == ::getpid() ? of_process.lock() : nullptr; }

 private:
  Living() = default;
};

/// A process that exits with its contexts open leaves no file either.
struct AtExit {
  ~AtExit() {
    Living& living = Living::instance();
    const std::scoped_lock hold(ProcessFile::mutex());
    for (Store* store : living.stores) {
      if (living.summary) print_summary(store->copy());
      store->remove_file();
    }
  }
};

}  // namespace

Record::~Record() {
  if (entry_ != nullptr) store_->give_back(*entry_);
}

std::shared_ptr<Store> Store::of_process(const Settings& settings) {
  const bool summary = settings.summary == "1";
  if (settings.telemetry == "off" && !summary) return nullptr;
  static const AtExit at_exit;
  Living& living = Living::instance();
  {
    const std::scoped_lock hold(ProcessFile::mutex());
    living.summary |= summary;
    if (auto known = living.known()) return known;
  }
  auto made = open(settings.telemetry == "off" ? "" : directory_of(settings.telemetry));
  const std::scoped_lock hold(ProcessFile::mutex());
  if (auto known = living.known()) return known;  // another thread was faster; ours goes
  living.of_process = made;
  living.process = ::getpid();
  return made;
}

std::shared_ptr<Store> Store::open(const std::string& directory) {
  std::shared_ptr<Store> store(new Store);
  bool in_file = false;
  if (!directory.empty()) {
    clean(directory);
    const auto created = store->file_.create(directory, kFilePrefix, kBytes);
    if (!created) log_info("no telemetry for others to read: {}", created.error().message());
    in_file = static_cast<bool>(created);
  }
  if (!in_file && !store->file_.map_memory(kBytes)) return nullptr;
  store->fill();
  Living& living = Living::instance();
  const std::scoped_lock hold(ProcessFile::mutex());
  living.stores.push_back(store.get());
  return store;
}

void Store::fill() {
  auto* const head = new (file_.data()) Header;
  head->version = kVersion;
  head->bytes = static_cast<std::uint32_t>(kBytes);
  head->pid = static_cast<std::uint32_t>(::getpid());
  head->started = start_time(::getpid());
  head->opened = wall_clock();
  head->groups_at = kGroupsAt;
  head->fields_at = kFieldsAt;
  head->records_at = kRecordsAt;
  head->values_at = kValuesAt;
  head->group_bytes = sizeof(GroupEntry);
  head->field_bytes = sizeof(FieldEntry);
  head->record_bytes = sizeof(RecordEntry);
  head->most_records = kMostRecords;
  head->words = kMostWords;
  put_text(head->host, host_name());
  put_text(head->command, command_name());
  auto* group_entry = reinterpret_cast<GroupEntry*>(file_.data() + kGroupsAt);
  auto* field_entry = reinterpret_cast<FieldEntry*>(file_.data() + kFieldsAt);
  for (const GroupSchema& group : schema()) {
    put_text(group_entry->name, group.name);
    group_entry->words = words_of(group);
    std::uint16_t word = 0;
    for (const Field& field : group.fields) {
      put_text(field_entry->name, field.name);
      put_text(field_entry->unit, field.unit);
      put_text(field_entry->help, field.help);
      field_entry->group = static_cast<std::uint16_t>(head->groups);
      field_entry->word = word;
      field_entry->words = static_cast<std::uint16_t>(words_of(field));
      field_entry->kind = field.kind;
      word = static_cast<std::uint16_t>(word + field_entry->words);
      ++field_entry;
      ++head->fields;
    }
    ++group_entry;
    ++head->groups;
  }
  free_.resize(schema().size());
  published();
  // Whoever sees it finds the rest.
  std::atomic_thread_fence(std::memory_order_release);
  head->magic = kMagic;
}

Store::~Store() {
  Living& living = Living::instance();
  const std::scoped_lock hold(ProcessFile::mutex());
  std::erase(living.stores, this);
  if (living.stores.empty()) std::vector<Store*>().swap(living.stores);
  if (living.of_process.expired()) living.of_process.reset();
  remove_file();
}

RecordEntry& Store::entry(std::uint32_t index) const {
  return *reinterpret_cast<RecordEntry*>(file_.data() + kRecordsAt + index * sizeof(RecordEntry));
}

std::atomic<std::uint64_t>* Store::words(std::uint32_t at) const {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(file_.data() + kValuesAt) + at;
}

Record Store::add(Group group, const Labels& labels) {
  Record record;
  const auto index = static_cast<std::uint32_t>(group);
  const std::uint32_t wanted = words_of(schema(group));
  const std::scoped_lock hold(mutex_);
  RecordEntry* found = nullptr;
  if (!free_[index].empty()) {
    found = free_[index].back();
    free_[index].pop_back();
  } else if (entries_ < kMostRecords && kMostWords - words_used_ >= wanted) {
    found = &entry(entries_++);
    found->group = index;
    found->at = words_used_;
    words_used_ += wanted;
  } else {
    header().dropped.fetch_add(1, std::memory_order_relaxed);
    return record;
  }
  const std::uint32_t generation = found->generation.load(std::memory_order_relaxed) + 1;
  found->changed.store(generation, std::memory_order_seq_cst);
  put_text(found->labels, labels_text(labels));
  record.words_ = words(found->at);
  for (std::uint32_t i = 0; i < wanted; ++i) record.words_[i].store(0, std::memory_order_relaxed);
  // Release: whoever sees it in use sees its labels.
  found->generation.store(generation, std::memory_order_release);
  found->used.store(1, std::memory_order_release);
  record.entry_ = found;
  record.store_ = shared_from_this();
  return record;
}

void Store::give_back(RecordEntry& entry) {
  const std::scoped_lock hold(mutex_);
  entry.used.store(0, std::memory_order_release);
  free_[entry.group].push_back(&entry);
}

void Store::set_rank(int rank, int size) {
  header().rank.store(rank, std::memory_order_relaxed);
  header().size.store(size, std::memory_order_relaxed);
}

void Store::published() { header().published.store(wall_clock(), std::memory_order_relaxed); }

std::vector<std::byte> Store::copy() const {
  const std::scoped_lock hold(mutex_);
  std::vector<std::byte> copied(file_.size());
  // Word by word: others go on counting meanwhile.
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= file_.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(file_.data() + at))
                                   .load(std::memory_order_relaxed);
    std::memcpy(copied.data() + at, &word, sizeof word);
  }
  return copied;
}

}  // namespace railyard::telemetry
