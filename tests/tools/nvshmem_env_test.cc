/// `railyard nvshmem-env` on made-up installations of NVSHMEM: small ELF files that say what the real ones do.
#include "nvshmem_env.hpp"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/random.hpp"
#include "elf_dynamic.hpp"
#include "run_command.hpp"

namespace railyard::tool {
namespace {

namespace fs = std::filesystem;
using railyard::testing::railyard_command;
using ::testing::HasSubstr;

/// A shared library with nothing in it but its dynamic section.
std::string elf_file(const std::string& soname, const std::optional<std::string>& rpath,
                     const std::optional<std::string>& runpath) {
  constexpr std::uint64_t kAddress = 0x10000;  // where the file is loaded: not where it lies in the file
  std::string strings(1, '\0');
  std::vector<Elf64_Dyn> entries;
  const auto add = [&](std::int64_t tag, const std::string& text) {
    Elf64_Dyn entry{};
    entry.d_tag = tag;
    entry.d_un.d_val = strings.size();
    entries.push_back(entry);
    strings += text + '\0';
  };
  add(DT_SONAME, soname);
  if (rpath) add(DT_RPATH, *rpath);
  if (runpath) add(DT_RUNPATH, *runpath);
  const std::size_t dynamic_at = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr);
  const std::size_t strings_at = dynamic_at + (entries.size() + 2) * sizeof(Elf64_Dyn);
  Elf64_Dyn table{};
  table.d_tag = DT_STRTAB;
  table.d_un.d_ptr = kAddress + strings_at;
  entries.push_back(table);
  entries.push_back({});  // DT_NULL
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_phoff = sizeof header;
  header.e_phnum = 2;
  Elf64_Phdr parts[2] = {};
  parts[0].p_type = PT_LOAD;
  parts[0].p_vaddr = kAddress;
  parts[0].p_filesz = strings_at + strings.size();
  parts[1].p_type = PT_DYNAMIC;
  parts[1].p_offset = dynamic_at;
  parts[1].p_filesz = entries.size() * sizeof(Elf64_Dyn);
  std::string file(reinterpret_cast<const char*>(&header), sizeof header);
  file.append(reinterpret_cast<const char*>(parts), sizeof parts);
  file.append(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Elf64_Dyn));
  return file + strings;
}

class NvshmemEnv : public ::testing::Test {
 protected:
  NvshmemEnv() : root_(fs::path(::testing::TempDir()) / ("nvshmem-env-" + std::to_string(::getpid()))) {
    fs::create_directories(root_ / "lib");
    fs::create_directories(root_ / "ours");
    for (const char* const name : {"librailyard-nvshmem-3.so", "librailyard-nvshmem-4.so"}) write("ours", name, "x");
  }
  ~NvshmemEnv() override { fs::remove_all(root_); }
  void write(const char* folder, const std::string& name, const std::string& text) const {
    std::ofstream(root_ / folder / name, std::ios::binary) << text;
  }
  /// As a wheel has it: libnvshmem_host.so.3, with the version behind the link where it is given.
  void host(const std::string& version, const std::optional<std::string>& rpath,
            const std::optional<std::string>& runpath) const {
    const std::string real = "libnvshmem_host.so." + version;
    write("lib", real, elf_file("libnvshmem_host.so.3", rpath, runpath));
    if (version != "3") fs::create_symlink(real, root_ / "lib/libnvshmem_host.so.3");
  }
  std::string lib() const { return (root_ / "lib").string(); }
  std::string ours(const char* name) const { return (root_ / "ours" / name).string(); }

  fs::path root_;
};

TEST_F(NvshmemEnv, AnRpathWithATransportOfItsOwnNeedsAPreload) {
  host("3", "${ORIGIN}", {});
  write("lib", "nvshmem_transport_libfabric.so.3", "x");
  const auto found = find_nvshmem("", {"/nowhere", lib()});
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_EQ(found->major, 3);
  EXPECT_EQ(found->rpath, "${ORIGIN}");
  EXPECT_TRUE(found->has_stock_transport);
  const auto variables = nvshmem_variables(*found, ours("librailyard-nvshmem-3.so"));
  ASSERT_EQ(variables.size(), 4U);
  EXPECT_EQ(variables[0].name + "=" + variables[0].value, "NVSHMEM_REMOTE_TRANSPORT=libfabric");
  EXPECT_EQ(variables[1].name + "=" + variables[1].value, "CUDA_MODULE_LOADING=EAGER");
  EXPECT_EQ(variables[2].name + "=" + variables[2].value, "CUDA_DEVICE_MAX_CONNECTIONS=32");
  EXPECT_EQ(variables[3].name + "=" + variables[3].value, "LD_PRELOAD=" + ours("librailyard-nvshmem-3.so"));
}

TEST_F(NvshmemEnv, WithoutOneTheLibraryPathIsEnough) {
  struct Way {
    std::optional<std::string> rpath;
    std::optional<std::string> runpath;
  };
  write("lib", "nvshmem_transport_libfabric.so.4", "x");
  for (const Way& way : {Way{{}, {}}, Way{{}, "$ORIGIN"}, Way{"$ORIGIN", "$ORIGIN"}, Way{"/nowhere", {}}}) {
    host("3", way.rpath, way.runpath);
    const auto found = find_nvshmem(lib(), {});
    ASSERT_TRUE(found) << found.error().text();
    EXPECT_EQ(found->major, 4);
    EXPECT_FALSE(found->has_stock_transport);
    const auto variables = nvshmem_variables(*found, ours("librailyard-nvshmem-4.so"));
    EXPECT_EQ(variables.back().name + "=" + variables.back().value, "LD_LIBRARY_PATH=" + (root_ / "ours").string());
  }
}

TEST_F(NvshmemEnv, TheVersionTellsTheMajorWhereNoTransportLiesBeside) {
  const std::pair<const char*, int> known[] = {{"3.0.6", 3}, {"3.4.5", 3}, {"3.5.1", 4}};
  for (const auto& [version, major] : known) {
    host(version, {}, {});
    const auto found = find_nvshmem(lib(), {});
    ASSERT_TRUE(found) << found.error().text();
    EXPECT_EQ(found->version, version);
    EXPECT_EQ(found->major, major);
    fs::remove(root_ / "lib/libnvshmem_host.so.3");
  }
}

TEST_F(NvshmemEnv, OtherMajorsAndWhatIsMissingAreNamed) {
  EXPECT_EQ(find_nvshmem("", {"/nowhere", lib()}).status(), Status::not_found);
  host("3", {}, {});
  EXPECT_EQ(find_nvshmem(lib(), {}).status(), Status::unsupported);  // nothing tells the major
  write("lib", "nvshmem_transport_ibrc.so.6", "x");
  const auto newer = find_nvshmem(lib(), {});
  ASSERT_FALSE(newer);
  EXPECT_THAT(newer.error().text(), HasSubstr("major 6; Railyard has 3 and 4"));
  EXPECT_EQ(find_transport(5, (root_ / "ours").string()).status(), Status::not_found);
  write("lib", "libnvshmem_host.so.3", "no library");
  EXPECT_EQ(find_nvshmem(lib(), {}).status(), Status::invalid);
}

TEST_F(NvshmemEnv, TheCommandPrintsLinesForAShellAndJson) {
  host("3.4.5", "$ORIGIN", {});
  write("lib", "nvshmem_transport_libfabric.so.3", "x");
  std::vector<std::string> words{"nvshmem-env", "--host-library", lib(), "--transport", (root_ / "ours").string()};
  const auto printed = railyard_command(words);
  EXPECT_EQ(printed.exit_code, 0) << printed.errors;
  EXPECT_THAT(printed.output, HasSubstr("NVSHMEM 3.4.5"));
  EXPECT_THAT(printed.output, HasSubstr("export NVSHMEM_REMOTE_TRANSPORT='libfabric'\n"));
  EXPECT_THAT(printed.output,
              HasSubstr("export LD_PRELOAD='" + ours("librailyard-nvshmem-3.so") + "'${LD_PRELOAD:+:$LD_PRELOAD}\n"));
  EXPECT_THAT(printed.output, HasSubstr("# Back to NVSHMEM's own: unset NVSHMEM_REMOTE_TRANSPORT"));
  words.insert(words.end(), {"--json", "-"});
  const auto json = railyard_command(words);
  EXPECT_EQ(json.exit_code, 0) << json.errors;
  EXPECT_THAT(json.output, HasSubstr("\"transport_major\": 3"));
  EXPECT_THAT(json.output, HasSubstr("\"LD_PRELOAD\": \"" + ours("librailyard-nvshmem-3.so")));
  EXPECT_EQ(railyard_command({"nvshmem-env", "--host-library", "/nowhere"}).exit_code, 3);
}

TEST(ElfDynamic, CutOrChangedFilesNeverCrash) {
  const std::string whole = elf_file("name.so.1", "$ORIGIN", "/run");
  const auto parse = [](const std::string& file) { return parse_elf_dynamic(std::as_bytes(std::span(file))); };
  const auto found = parse(whole);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->soname, "name.so.1");
  EXPECT_EQ(found->rpath, "$ORIGIN");
  EXPECT_EQ(found->runpath, "/run");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto cut = parse(whole.substr(0, bytes));
    EXPECT_TRUE(bytes >= sizeof(Elf64_Ehdr) || !cut) << bytes;
  }
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = whole;
    for (int k = 0; k < 4; ++k) changed[random.below(changed.size())] = static_cast<char>(random.next());
    static_cast<void>(parse(changed));
  }
}

}  // namespace
}  // namespace railyard::tool
