// A saved machine (hwloc's XML) of any content: as a whole file, and as changes of a good one, which reach further.
// What hwloc takes is turned into GPUs, NICs and their assignment; the rest is an error that names the file.
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "topology/assignment.hpp"
#include "topology/machine.hpp"

namespace {

/// A GPU and a NIC behind one bridge: what a saved machine must have for us to look at it.
constexpr std::string_view kGood = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" allowed_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" allowed_nodeset="0x1" gp_index="1">
  <object type="NUMANode" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="2" local_memory="1024"/>
  <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="3"/>
  <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="4"/>
  <object type="Bridge" gp_index="5" bridge_type="0-1" depth="0" bridge_pci="0000:[00-02]">
   <object type="Bridge" gp_index="6" bridge_type="1-1" depth="1" bridge_pci="0000:[01-02]" pci_busid="0000:00:01.0" pci_type="0604 [8086:1234] [0000:0000] 00" pci_link_speed="0.0">
    <object type="PCIDev" gp_index="7" pci_busid="0000:01:00.0" pci_type="0302 [10de:2330] [0000:0000] 00" pci_link_speed="0.0"/>
    <object type="PCIDev" gp_index="8" pci_busid="0000:02:00.0" pci_type="0207 [15b3:1021] [0000:0000] 00" pci_link_speed="0.0">
     <object type="OSDev" gp_index="9" name="mlx5_0" osdev_type="3"/>
    </object>
   </object>
  </object>
 </object>
</topology>
)";

/// A file in memory: hwloc reads by name.
class MemoryFile {
 public:
  MemoryFile() : file_(::memfd_create("machine.xml", MFD_CLOEXEC)), name_("/proc/self/fd/" + std::to_string(file_)) {}
  const std::string& holding(std::string_view text) const {
    (void)!::ftruncate(file_, 0);
    (void)!::pwrite(file_, text.data(), text.size(), 0);
    return name_;
  }

 private:
  int file_;
  std::string name_;
};

void look(std::string_view text) {
  static const MemoryFile file;
  const std::string& name = file.holding(text);
  const auto machine = railyard::topology::read_saved_machine(name);
  if (!machine && machine.error().message().find(name) == std::string::npos) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*words*/) {
  ::setenv("HWLOC_HIDE_ERRORS", "2", 1);
  // It must be good to begin with, or nothing of ours is reached.
  const MemoryFile file;
  const auto machine = railyard::topology::read_saved_machine(file.holding(kGood));
  if (!machine || machine->gpus.size() != 1 || machine->nics.size() != 1) {
    std::fprintf(stderr, "the good machine is not read: %s\n",
                 machine ? "no GPU or NIC" : machine.error().message().c_str());
    std::abort();
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  look({reinterpret_cast<const char*>(bytes), size});
  FuzzedDataProvider data(bytes, size);
  std::string text(kGood);
  for (int changes = 0; data.remaining_bytes() > 2 && changes < 16; ++changes) {
    const auto at = data.ConsumeIntegralInRange<std::size_t>(0, text.size() - 1);
    const auto gone = data.ConsumeIntegralInRange<std::size_t>(0, 12);
    text.replace(at, std::min(gone, text.size() - at), data.ConsumeRandomLengthString(24));
  }
  look(text);
  return 0;
}
