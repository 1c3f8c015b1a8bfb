#include "telemetry/store.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/file_limit.hpp"
#include "base/log.hpp"
#include "telemetry/files.hpp"
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

template <std::size_t Size>
void put_text(std::array<char, Size>& to, std::string_view text) {
  to.fill('\0');
  text.copy(to.data(), Size - 1);
}

std::string command_name() {
  std::ifstream in("/proc/self/comm");
  std::string name;
  std::getline(in, name);
  return name;
}

std::uint32_t words_of(const Field& field) { return field.kind == Kind::histogram ? Buckets::kWords : 1; }

std::uint32_t words_of(const GroupSchema& group) {
  std::uint32_t words = 0;
  for (const Field& field : group.fields) words += words_of(field);
  return words;
}

/// "key=value" with a tab between two; a value has neither of the two nor anything that is no text.
std::string text_of(const Labels& labels) {
  std::string text;
  for (const auto& [key, value] : labels) {
    if (!text.empty()) text += '\t';
    text += key;
    text += '=';
    for (const char c : value) text += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return text;
}

/// A write lock on the whole file: of the process, not of its children, and gone with it however it ends.
bool lock(int file) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(file, F_SETLK, &whole) == 0;
}

/// Stores with a mapping: for what a fork does to them, and for the end of the process.
class Living {
 public:
  static Living& instance() {
    // Never destroyed: forks and contexts may come after the last static destructor. Not on the heap either: a plugin
    // that is unloaded leaves nothing there.
    alignas(Living) static std::byte memory[sizeof(Living)];
    static Living* const living = new (memory) Living;
    return *living;
  }
  std::mutex mutex;
  std::vector<Store*> stores;
  std::weak_ptr<Store> of_process;
  bool summary = false;

 private:
  Living() {
    ::pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                     [] {
                       for (Store* store : instance().stores) store->leave_to_parent();
                       instance().of_process.reset();
                       instance().mutex.unlock();
                     });
  }
};

/// A process that exits with its contexts open leaves no file either.
struct AtExit {
  ~AtExit() {
    Living& living = Living::instance();
    const std::scoped_lock hold(living.mutex);
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
    const std::scoped_lock hold(living.mutex);
    living.summary |= summary;
    if (auto known = living.of_process.lock()) return known;
  }
  auto made = open(settings.telemetry == "off" ? "" : directory_of(settings.telemetry));
  const std::scoped_lock hold(living.mutex);
  if (auto known = living.of_process.lock()) return known;  // another thread was faster; ours goes
  living.of_process = made;
  return made;
}

std::shared_ptr<Store> Store::open(const std::string& directory) {
  std::shared_ptr<Store> store(new Store);
  store->process_ = ::getpid();
  if (directory.empty() || !store->map_file(directory)) store->map_memory();
  if (store->memory_ == nullptr) return nullptr;
  store->fill();
  Living& living = Living::instance();
  const std::scoped_lock hold(living.mutex);
  living.stores.push_back(store.get());
  return store;
}

bool Store::map_file(const std::string& directory) {
  clean(directory);
  const std::uint64_t started = start_time(::getpid());
  for (int attempt = 0; attempt < 8; ++attempt) {
    path_ = fmt::format("{}/{}{}.{}{}", directory, kFilePrefix, ::getpid(), started,
                        attempt == 0 ? "" : fmt::format(".{}", attempt));
    file_ = Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file_ || errno != EEXIST) break;
  }
  int failure = errno;
  if (file_) {
    // All of its memory now: a full file system is an answer here, and a bus error later.
    failure = longer_than_allowed(kBytes) ? EFBIG
              : lock(file_.get())         ? ::posix_fallocate(file_.get(), 0, kBytes)
                                          : errno;
    if (failure == 0) {
      void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
      if (mapped != MAP_FAILED) {
        memory_ = static_cast<std::byte*>(mapped);
        bytes_ = kBytes;
        return true;
      }
      failure = errno;
    }
    ::unlink(path_.c_str());
    file_.reset();
  }
  log_info("no telemetry for others to read: {}: {}", path_, std::strerror(failure));
  path_.clear();
  return false;
}

void Store::map_memory() {
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return;
  memory_ = static_cast<std::byte*>(mapped);
  bytes_ = kBytes;
}

void Store::fill() {
  auto* const head = new (memory_) Header;
  head->version = kVersion;
  head->bytes = static_cast<std::uint32_t>(bytes_);
  head->pid = static_cast<std::uint32_t>(process_);
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
  std::array<char, 64> host{};
  ::gethostname(host.data(), host.size() - 1);
  put_text(head->host, host.data());
  put_text(head->command, command_name());
  auto* group_entry = reinterpret_cast<GroupEntry*>(memory_ + kGroupsAt);
  auto* field_entry = reinterpret_cast<FieldEntry*>(memory_ + kFieldsAt);
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
  {
    Living& living = Living::instance();
    const std::scoped_lock hold(living.mutex);
    std::erase(living.stores, this);
    if (living.stores.empty()) std::vector<Store*>().swap(living.stores);
    if (living.of_process.expired()) living.of_process.reset();
    remove_file();
  }
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

void Store::remove_file() {
  if (!path_.empty() && ours()) ::unlink(path_.c_str());
  path_.clear();
}

/// In a child: what it does from now on is its own, in memory of its own at the same address.
void Store::leave_to_parent() {
  file_.reset();
  path_.clear();
  // Where that fails the child goes on in its parent's counters: wrong figures, and nothing worse.
  (void)::mmap(memory_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

bool Store::ours() const { return ::getpid() == process_; }

RecordEntry& Store::entry(std::uint32_t index) const {
  return *reinterpret_cast<RecordEntry*>(memory_ + kRecordsAt + index * sizeof(RecordEntry));
}

std::atomic<std::uint64_t>* Store::words(std::uint32_t at) const {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(memory_ + kValuesAt) + at;
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
  put_text(found->labels, text_of(labels));
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
  std::vector<std::byte> copied(bytes_);
  // Word by word: others go on counting meanwhile.
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes_; at += sizeof(std::uint64_t)) {
    const std::uint64_t word =
        std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory_ + at)).load(std::memory_order_relaxed);
    std::memcpy(copied.data() + at, &word, sizeof word);
  }
  return copied;
}

}  // namespace railyard::telemetry
