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

}  // namespace

std::recursive_mutex& big_lock() {
  static std::recursive_mutex mutex;
  return mutex;
}

int breach(int code, const std::string& text) {
  const std::lock_guard lock(big_lock());
  breaches().push_back(text);
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

bool dies(const void* object, const char* kind) {
  const std::lock_guard lock(big_lock());
  if (living().erase(object) == 1) return true;
  breach(0, std::string(kind) + " closed twice");
  return false;
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
