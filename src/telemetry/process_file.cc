#include "telemetry/process_file.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <vector>

#include "base/file_limit.hpp"
#include "telemetry/files.hpp"

namespace railyard::telemetry {
namespace {

/// A write lock on the whole file: of the process, not of its children, and gone with it however it ends.
bool lock(int file) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(file, F_SETLK, &whole) == 0;
}

}  // namespace

/// Every file with a mapping: for what a fork does to them.
class ProcessFile::Mapped {
 public:
  static Mapped& instance() {
    // Never destroyed: forks and contexts may come after the last static destructor. Not on the heap either: a plugin
    // that is unloaded leaves nothing there.
    alignas(Mapped) static std::byte memory[sizeof(Mapped)];
    static Mapped* const mapped = new (memory) Mapped;
    return *mapped;
  }
  std::mutex mutex;
  std::vector<ProcessFile*> files;

 private:
  Mapped() {
    ::pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                     [] {
                       for (ProcessFile* file : instance().files) file->leave_to_parent();
                       instance().mutex.unlock();
                     });
  }
};

std::mutex& ProcessFile::mutex() { return Mapped::instance().mutex; }

void ProcessFile::enlist() {
  process_ = ::getpid();
  Mapped& mapped = Mapped::instance();
  const std::scoped_lock hold(mapped.mutex);
  mapped.files.push_back(this);
}

ProcessFile::~ProcessFile() {
  if (memory_ == nullptr) return;
  {
    Mapped& mapped = Mapped::instance();
    const std::scoped_lock hold(mapped.mutex);
    std::erase(mapped.files, this);
    if (mapped.files.empty()) std::vector<ProcessFile*>().swap(mapped.files);
  }
  ::munmap(memory_, bytes_);
}

Result<void> ProcessFile::create(const std::string& directory, const char* prefix, std::size_t bytes) {
  const std::uint64_t started = start_time(::getpid());
  Fd file;
  std::string path;
  for (int attempt = 0; attempt < 64; ++attempt) {
    path = fmt::format("{}/{}{}.{}{}", directory, prefix, ::getpid(), started,
                       attempt == 0 ? "" : fmt::format(".{}", attempt));
    file = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file || errno != EEXIST) break;
  }
  int failure = errno;
  if (file) {
    // All of its memory now: a full file system is an answer here, and a bus error later.
    failure = longer_than_allowed(bytes) ? EFBIG
              : lock(file.get())         ? ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes))
                                         : errno;
    if (failure == 0) {
      void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
      if (mapped != MAP_FAILED) {
        memory_ = static_cast<std::byte*>(mapped);
        bytes_ = bytes;
        file_ = std::move(file);
        path_ = std::move(path);
        enlist();
        return {};
      }
      failure = errno;
    }
    ::unlink(path.c_str());
  }
  return Error(Status::io, fmt::format("{}: {}", path, std::strerror(failure)));
}

bool ProcessFile::map_memory(std::size_t bytes) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  memory_ = static_cast<std::byte*>(mapped);
  bytes_ = bytes;
  enlist();
  return true;
}

bool ProcessFile::ours() const { return ::getpid() == process_; }

void ProcessFile::remove() {
  if (!path_.empty() && ours()) ::unlink(path_.c_str());
  path_.clear();
}

/// In a child: what it does from now on is its own, in memory of its own at the same address.
void ProcessFile::leave_to_parent() {
  file_.reset();
  path_.clear();
  // Where that fails the child goes on in its parent's memory: wrong figures, and nothing worse.
  (void)::mmap(memory_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

}  // namespace railyard::telemetry
