/// Touching memory before it is used. A thread that has slept finds little of what it needs in its caches and in the
/// processor's translations, and waits for each line when it comes to it: 0.1 to 0.3 us. Read all together, hundreds
/// of lines come within 3 us. These are loads, since processors drop prefetches when many are under way.
#pragma once

#include <cstddef>

namespace railyard {

/// Reads a byte of every line. Other threads may write there.
void touch(const void* memory, std::size_t bytes);
template <typename T>
void touch(const T& object) {
  touch(&object, sizeof object);
}
/// What small messages run through: the functions that are marked [[gnu::hot]], which cmake/hot.ld puts side by side.
/// Nothing where the linker was not told.
void touch_hot_code();
/// For tests: whether a function is among them, and whether there are any.
bool is_hot(const void* function);
bool knows_hot_code();

}  // namespace railyard
