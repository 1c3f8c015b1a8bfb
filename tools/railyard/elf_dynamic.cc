#include "elf_dynamic.hpp"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

namespace railyard::tool {
namespace {

template <typename T>
std::optional<T> load(std::span<const std::byte> file, std::uint64_t at) {
  if (at > file.size() || sizeof(T) > file.size() - at) return std::nullopt;
  T value;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

/// Where in the file an address of the loaded library is.
std::optional<std::uint64_t> offset_of(std::span<const std::byte> file, const Elf64_Ehdr& header,
                                       std::uint64_t address) {
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    const auto part = load<Elf64_Phdr>(file, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (!part) return std::nullopt;
    if (part->p_type == PT_LOAD && address >= part->p_vaddr && address - part->p_vaddr < part->p_filesz)
      return part->p_offset + (address - part->p_vaddr);
  }
  return std::nullopt;
}

std::optional<std::string> text_at(std::span<const std::byte> file, std::uint64_t at) {
  if (at >= file.size()) return std::nullopt;
  const auto rest = file.subspan(at);
  const auto end = std::ranges::find(rest, std::byte{0});
  if (end == rest.end()) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(rest.data()), static_cast<std::size_t>(end - rest.begin()));
}

}  // namespace

Result<ElfDynamic> parse_elf_dynamic(std::span<const std::byte> file) {
  const Error broken(Status::invalid, "not a 64-bit shared library");
  const auto header = load<Elf64_Ehdr>(file, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_ident[EI_DATA] != ELFDATA2LSB)
    return broken.copy();
  std::optional<Elf64_Phdr> dynamic;
  for (std::size_t i = 0; i < header->e_phnum; ++i) {
    const auto part = load<Elf64_Phdr>(file, header->e_phoff + i * sizeof(Elf64_Phdr));
    if (part && part->p_type == PT_DYNAMIC) dynamic = part;
  }
  if (!dynamic) return broken.copy();
  std::vector<Elf64_Dyn> entries;
  for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic->p_filesz; at += sizeof(Elf64_Dyn)) {
    const auto entry = load<Elf64_Dyn>(file, dynamic->p_offset + at);
    if (!entry || entry->d_tag == DT_NULL) break;
    entries.push_back(*entry);
  }
  const auto strings = std::ranges::find(entries, DT_STRTAB, &Elf64_Dyn::d_tag);
  const auto at = strings == entries.end() ? std::nullopt : offset_of(file, *header, strings->d_un.d_ptr);
  if (!at) return broken.copy();
  ElfDynamic found;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag != DT_SONAME && entry.d_tag != DT_RPATH && entry.d_tag != DT_RUNPATH) continue;
    auto text = text_at(file, *at + entry.d_un.d_val);
    if (!text) return broken.copy();
    if (entry.d_tag == DT_SONAME)
      found.soname = std::move(*text);
    else if (entry.d_tag == DT_RPATH)
      found.rpath = std::move(*text);
    else
      found.runpath = std::move(*text);
  }
  return found;
}

Result<ElfDynamic> read_elf_dynamic(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return Error(Status::not_found, fmt::format("{} cannot be read", path));
  std::vector<char> bytes((std::istreambuf_iterator<char>(stream)), {});
  auto found = parse_elf_dynamic(std::as_bytes(std::span(bytes)));
  if (!found) return Error(found.status(), fmt::format("{}: {}", path, found.error().message()));
  return found;
}

}  // namespace railyard::tool
