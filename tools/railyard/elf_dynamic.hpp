/// What a shared library says of itself: its SONAME and where it looks for others. Read from the file; nothing is
/// loaded.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "railyard/result.hpp"

namespace railyard::tool {

struct ElfDynamic {
  std::string soname;                ///< empty: it has none
  std::optional<std::string> rpath;  ///< searched before LD_LIBRARY_PATH; without effect where there is a runpath
  std::optional<std::string> runpath;
};

/// 64-bit little-endian files. Nothing in the file is trusted.
Result<ElfDynamic> parse_elf_dynamic(std::span<const std::byte> file);
Result<ElfDynamic> read_elf_dynamic(const std::string& path);

}  // namespace railyard::tool
