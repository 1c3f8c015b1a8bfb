#include <cstdio>
#include <cstdlib>
#include <unordered_set>

#include "doubles/strict.hpp"

namespace strict {

namespace {

std::unordered_set<const void*>& living() {
  static std::unordered_set<const void*> objects;
  return objects;
}

std::deque<std::string>& breaches() {
  static std::deque<std::string> texts;
  return texts;
}

std::vector<std::shared_ptr<void>>& graveyard() {
  static std::vector<std::shared_ptr<void>> dead;
  return dead;
}

}  // namespace

std::recursive_mutex& big_lock() {
  static std::recursive_mutex mutex;
  return mutex;
}

int breach(int code, const std::string& text) {
  const std::lock_guard lock(big_lock());
  breaches().push_back(text);
  // For ranks that are processes of their own: the test reads the file.
  static const char* const path = std::getenv("STRICT_FI_LOG");
  if (path != nullptr) {
    if (std::FILE* const file = std::fopen(path, "a"); file != nullptr) {
      std::fprintf(file, "%s\n", text.c_str());
      std::fclose(file);
    }
  }
  return code;
}

void born(const void* object) {
  const std::lock_guard lock(big_lock());
  living().insert(object);
}

bool alive(const void* object) {
  const std::lock_guard lock(big_lock());
  return living().contains(object);
}

bool strike_off(const void* object, const char* kind) {
  const std::lock_guard lock(big_lock());
  if (living().erase(object) == 1) return true;
  breach(0, std::string(kind) + " closed twice");
  return false;
}

void bury(std::shared_ptr<void> object) {
  const std::lock_guard lock(big_lock());
  graveyard().push_back(std::move(object));
}

}  // namespace strict

unsigned strict_fi_violations(void) {
  const std::lock_guard lock(strict::big_lock());
  return static_cast<unsigned>(strict::breaches().size());
}

const char* strict_fi_violation(unsigned index) {
  const std::lock_guard lock(strict::big_lock());
  return index < strict::breaches().size() ? strict::breaches()[index].c_str() : "";
}

void strict_fi_forget_violations(void) {
  const std::lock_guard lock(strict::big_lock());
  strict::breaches().clear();
}

unsigned strict_fi_open_objects(void) {
  const std::lock_guard lock(strict::big_lock());
  return static_cast<unsigned>(strict::living().size());
}
