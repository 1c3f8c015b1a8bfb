#include "shm/object.hpp"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace railyard::shm {

namespace {

constexpr std::string_view kPrefix = "railyard-";
constexpr std::string_view kBell = ".bell";
constexpr std::size_t kMostFileName = 255;

Error system_error(const char* what, const std::string& path) {
  const Status status = errno == ENOENT ? Status::not_found : errno == EACCES ? Status::refused : Status::io;
  return Error(status, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

std::string identity_path(const std::string& directory, const Identity& identity) {
  return fmt::format("{}/{}{}", directory, kPrefix, identity.text());
}

/// Any text as a file name of this user.
Result<std::string> name_path(const std::string& directory, std::string_view name) {
  std::string file = fmt::format("{}name-{}-", kPrefix, ::geteuid());
  for (const char character : name) {
    const auto byte = static_cast<unsigned char>(character);
    const bool plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    if (plain || byte == '.' || byte == '_') {
      file += character;
    } else {
      file += fmt::format("%{:02x}", byte);
    }
  }
  if (name.size() > kMostNameBytes || file.size() > kMostFileName)
    return Error(Status::invalid, fmt::format("the endpoint name '{}' is too long", name));
  return fmt::format("{}/{}", directory, file);
}

/// Locks belong to the open file: they end with the process, whatever ends it.
bool take_lock(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}
bool locked_by_another(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/// Lets a forked child go of its parent's files at once: a lock lasts until the last who has its file open lets go, and
/// the child must not keep the names of a parent that dies.
class LetGoInChild {
 public:
  static void add(int fd) {
    LetGoInChild& all = instance();
    const std::lock_guard guard(all.mutex_);
    all.files_.push_back(fd);
  }
  static void remove(int fd) {
    LetGoInChild& all = instance();
    const std::lock_guard guard(all.mutex_);
    std::erase(all.files_, fd);
    if (all.files_.empty()) all.files_ = std::vector<int>();  // gives its memory back too
  }

 private:
  LetGoInChild() { ::pthread_atfork(before, after_in_parent, after_in_child); }
  static LetGoInChild& instance() {
    // Never destroyed: endpoints of the program may outlive everything else here. In static memory: a plugin that is
    // loaded and unloaded again and again leaves nothing behind.
    alignas(LetGoInChild) static std::byte room[sizeof(LetGoInChild)];
    static auto* const all = new (room) LetGoInChild;
    return *all;
  }
  static void before() { instance().mutex_.lock(); }
  static void after_in_parent() { instance().mutex_.unlock(); }
  static void after_in_child() {
    // The numbers stay taken, by something harmless: their owners will close them.
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : instance().files_) ::dup3(nothing, fd, O_CLOEXEC);
    if (nothing >= 0) ::close(nothing);
    instance().files_.clear();
    instance().mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<int> files_;
};

bool same_file(int fd, const std::string& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

Result<Fd> open_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return system_error("cannot open", path);
  return file;
}

/// The header as bytes of a file that may be anything.
bool read_header(int fd, ObjectHeader& header) {
  return ::pread(fd, static_cast<void*>(&header), sizeof header, 0) == static_cast<ssize_t>(sizeof header) &&
         header.magic == kMagic;
}

/// Removes a name that refers to `fd`, whose lock we hold: only a holder of the lock removes, so nothing live goes.
void remove_name(int fd, const std::string& path) {
  if (same_file(fd, path)) ::unlink(path.c_str());
}

/// True when the file was dead and is gone now.
bool remove_if_dead(const std::string& directory, const std::string& path) {
  auto file = open_file(path);
  if (!file) return file.status() == Status::not_found;
  if (!take_lock(file->get())) return false;
  remove_name(file->get(), path);
  ObjectHeader header;
  if (!read_header(file->get(), header) || header.version != kLayoutVersion) return true;
  const Identity identity{header.identity};
  remove_name(file->get(), identity_path(directory, identity));
  ::unlink(bell_path(directory, identity).c_str());
  header.name.back() = '\0';
  if (header.name[0] != '\0') {
    if (const auto named = name_path(directory, header.name.data())) remove_name(file->get(), *named);
  }
  return true;
}

/// Gives an unnamed file its name; a dead one in the way is removed.
Result<void> give_name(const std::string& directory, int fd, const std::string& path) {
  const std::string from = fmt::format("/proc/self/fd/{}", fd);
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
    if (errno != EEXIST) return system_error("cannot name", path);
    if (!remove_if_dead(directory, path))
      return Error(Status::busy, fmt::format("{} belongs to a live endpoint", path));
  }
  return Error(Status::busy, fmt::format("{} is taken again and again", path));
}

}  // namespace

Result<Mapping> Mapping::map(int fd, std::size_t offset, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return system_error("cannot map", "shared memory");
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(memory);
  mapping.bytes_ = bytes;
  return mapping;
}
Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<OwnObject> OwnObject::create(const std::string& directory, std::string_view name, bool can_sleep) {
  OwnObject object;
  object.identity_ = std::make_unique<Identity>(Identity::make());
  object.file_ = Fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!object.file_) return system_error("cannot make a file in", directory);
  const int unlocked = object.file_.get();
  // Memory for what every sender touches; rings get theirs when they are claimed. A full /dev/shm is an error here, not
  // a signal later.
  if (::ftruncate(unlocked, static_cast<off_t>(kObjectBytes)) != 0 || ::fallocate(unlocked, 0, 0, kControlsOffset) != 0)
    return system_error("no room in", directory);
  auto memory = Mapping::map(unlocked, 0, kObjectBytes);
  if (!memory) return std::move(memory.error());
  object.memory_ = std::move(*memory);

  ObjectHeader& header = object.header();
  header.magic = kMagic;
  header.version = kLayoutVersion;
  header.rings = kRings;
  header.bytes = kObjectBytes;
  header.identity = object.identity_->bytes;
  header.pid = ::getpid();
  header.pid_namespace = own_pid_namespace();
  header.probe_address = reinterpret_cast<std::uintptr_t>(object.identity_->bytes.data());
  header.can_sleep = can_sleep ? 1 : 0;
  header.state.store(static_cast<std::uint32_t>(ObjectState::open), std::memory_order_release);
  std::string named;
  if (!name.empty()) {
    auto path = name_path(directory, name);
    if (!path) return std::move(path.error());
    named = std::move(*path);
    std::memcpy(header.name.data(), name.data(), name.size());
  }
  // Opened a second time: a forked child keeps the mapping, and with it the file as it was opened for that. The lock
  // must not hang on it.
  object.file_ = Fd(::open(fmt::format("/proc/self/fd/{}", object.file_.get()).c_str(), O_RDWR | O_CLOEXEC));
  const int fd = object.file_.get();
  if (!object.file_ || !take_lock(fd)) return system_error("cannot lock a file in", directory);
  LetGoInChild::add(fd);
  const std::string path = identity_path(directory, *object.identity_);
  if (auto given = give_name(directory, fd, path); !given) return std::move(given.error());
  object.path_ = path;
  if (!named.empty()) {
    if (auto given = give_name(directory, fd, named); !given) return std::move(given.error());
    object.name_path_ = named;
  }
  return object;
}

bool OwnObject::own() const { return header().pid == ::getpid(); }

OwnObject::~OwnObject() {
  if (!file_) return;
  LetGoInChild::remove(file_.get());
  if (memory_.data() == nullptr || !own()) return;
  header().state.store(static_cast<std::uint32_t>(ObjectState::closed), std::memory_order_release);
  if (!name_path_.empty()) remove_name(file_.get(), name_path_);
  if (!path_.empty()) remove_name(file_.get(), path_);
}

Result<PeerObject> PeerObject::open_path(const std::string& path) {
  auto file = open_file(path);
  if (!file) return std::move(file.error());
  PeerObject peer;
  peer.file_ = std::move(*file);
  ObjectHeader header;
  struct stat status {};
  if (!read_header(peer.file_.get(), header) || ::fstat(peer.file_.get(), &status) != 0)
    return Error(Status::invalid, fmt::format("{} is not an endpoint's memory", path));
  if (header.version != kLayoutVersion)
    return Error(Status::version_mismatch,
                 fmt::format("{} has layout {}, this program {}", path, header.version, kLayoutVersion));
  if (header.rings != kRings || header.bytes != kObjectBytes || status.st_size != static_cast<off_t>(kObjectBytes))
    return Error(Status::invalid, fmt::format("{} has another size than its layout", path));
  auto front = Mapping::map(peer.file_.get(), 0, kRingsOffset);
  if (!front) return std::move(front.error());
  peer.front_ = std::move(*front);
  peer.identity_ = Identity{header.identity};
  return peer;
}

Result<PeerObject> PeerObject::open_name(const std::string& directory, std::string_view name) {
  const auto path = name_path(directory, name);
  if (!path) return path.error().copy();
  auto peer = open_path(*path);
  if (peer && peer->alive()) return peer;
  if (!peer && peer.status() == Status::not_found) return peer;
  if (remove_if_dead(directory, *path)) return Error(Status::not_found, fmt::format("{} was dead", *path));
  if (peer) return Error(Status::not_found, fmt::format("{} is ending", *path));
  return peer;
}

Result<PeerObject> PeerObject::open_identity(const std::string& directory, const Identity& identity) {
  const std::string path = identity_path(directory, identity);
  auto peer = open_path(path);
  if (peer && peer->identity().bytes != identity.bytes)
    return Error(Status::invalid, fmt::format("{} is not itself", path));
  if (peer && peer->alive()) return peer;
  if (peer) {
    remove_if_dead(directory, path);
    return Error(Status::not_found, fmt::format("{} is dead", path));
  }
  return peer;
}

bool PeerObject::alive() const {
  if (closed() || !locked_by_another(file_.get())) return false;
  // A child forked by the owner may hold the lock after it: then the process table knows better.
  const ObjectHeader& owner = header();
  const bool same_table = owner.pid_namespace != 0 && owner.pid_namespace == own_pid_namespace();
  return !same_table || ::kill(owner.pid, 0) == 0 || errno != ESRCH;
}

Result<Mapping> PeerObject::map_ring(std::uint32_t ring) const {
  const RingExtent extent = ring_extent(ring);
  const std::size_t control = kControlsOffset + ring * sizeof(RingControl);
  if (::fallocate(file_.get(), 0, static_cast<off_t>(control), sizeof(RingControl)) != 0 ||
      ::fallocate(file_.get(), 0, static_cast<off_t>(extent.offset), extent.bytes) != 0)
    return system_error("no room for", "a ring");
  return Mapping::map(file_.get(), extent.offset, extent.bytes);
}

bool identity_alive(const std::string& directory, const Identity& identity) {
  return PeerObject::open_identity(directory, identity).ok();
}

void remove_dead_objects(const std::string& directory) {
  DIR* const listing = ::opendir(directory.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = ::readdir(listing)) {
    const std::string_view file = entry->d_name;
    if (!file.starts_with(kPrefix)) continue;
    const std::string path = fmt::format("{}/{}", directory, file);
    if (!file.ends_with(kBell)) {
      remove_if_dead(directory, path);
    } else if (::access(path.substr(0, path.size() - kBell.size()).c_str(), F_OK) != 0) {
      ::unlink(path.c_str());
    }
  }
  ::closedir(listing);
}

#if defined(__x86_64__)
__attribute__((target("cx16"), noinline))  // callers are compiled for less
#endif
Owner exchange_owner(Owner& owner, const Owner& expected, const Owner& desired) {
  using Both __attribute__((mode(TI))) = unsigned int;
  Both from;
  Both to;
  std::memcpy(&from, &expected, sizeof from);
  std::memcpy(&to, &desired, sizeof to);
  const Both found = __sync_val_compare_and_swap(reinterpret_cast<Both*>(&owner), from, to);
  Owner result;
  std::memcpy(static_cast<void*>(&result), &found, sizeof result);
  return result;
}

Owner owner_of(const Identity& identity) {
  Owner owner;
  std::memcpy(owner.words.data(), identity.bytes.data(), identity.bytes.size());
  return owner;
}
Identity identity_of(const Owner& owner) {
  Identity identity;
  std::memcpy(identity.bytes.data(), owner.words.data(), identity.bytes.size());
  return identity;
}

std::uint64_t own_pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::string bell_path(const std::string& directory, const Identity& identity) {
  return identity_path(directory, identity) + std::string(kBell);
}

}  // namespace railyard::shm
