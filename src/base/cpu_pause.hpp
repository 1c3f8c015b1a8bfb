/// What a thread does between two looks at a word that another core will change.
#pragma once

namespace railyard {

/// Leaves the core's resources to its other thread for a moment, and the memory order as it is.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // `yield` does nothing on most cores; `isb` waits about as long as x86's pause.
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace railyard
