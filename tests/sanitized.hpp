/// Whether this program is built with a sanitizer: it brings its own `new`, makes system calls of its own, and is slow.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RAILYARD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RAILYARD_SANITIZED 1
#endif
#endif
