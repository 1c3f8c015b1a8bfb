/// Which ports become rails, under which address, and what is said of those that do not.
#include <filesystem>

#include "fabric/verbs/port.hpp"
#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VerbsDiscovery : public VerbsRails {
 protected:
  static Settings all() {
    Settings settings;
    settings.driver = "verbs";
    return settings;
  }
  static verbs::Port port_of(const RailOffer& offer) { return *static_cast<verbs::Port*>(offer.driver_data.get()); }
  static std::vector<std::string> names(const std::vector<RailOffer>& offers) {
    std::vector<std::string> names;
    for (const RailOffer& offer : offers) names.push_back(offer.domain);
    return names;
  }
  void links_work() {
    Side& a = open(0);
    Side& b = open(1);
    EXPECT_TRUE(delivers(a, b, connect(a, b, {1, 1, 2})));
    EXPECT_TRUE(delivers(b, a, connect(b, a, {2, 1, 1})));
  }

  /// For calls that a test puts itself before.
  static inline decltype(verbs::Library::query_gid_ex) real_gid = nullptr;
};

TEST_F(VerbsDiscovery, TakesTheIpv4AddressOfRoCEVersion2) {
  auto offers = discover(all());
  ASSERT_TRUE(offers.ok()) << offers.error().text();
  EXPECT_THAT(names(*offers), ElementsAre("fake0", "fake1", "fake2"));
  for (std::size_t i = 0; i < offers->size(); ++i) {
    const verbs::Port port = port_of((*offers)[i]);
    EXPECT_EQ(port.gid_index, 3) << "0 and 2 are of version 1, 1 is link-local";
    EXPECT_EQ(port.gid_text, "127.0.0." + std::to_string(i + 1));
    EXPECT_EQ((*offers)[i].line_rate, 4 * 25e9 / 8);
    EXPECT_TRUE((*offers)[i].loopback);
    EXPECT_EQ((*offers)[i].fabric, (*offers)[0].fabric) << "one network, whoever has the address";
  }
}

TEST_F(VerbsDiscovery, TheSettingNamesAnother) {
  Settings settings = all();
  settings.gid_index = 1;
  auto offers = discover(settings);
  ASSERT_TRUE(offers.ok());
  EXPECT_EQ(port_of(offers->front()).gid_index, 1);
  EXPECT_THAT(port_of(offers->front()).gid_text, HasSubstr("fe80"));
  for (const int index : {5, 77}) {
    settings.gid_index = index;
    offers = discover(settings);
    ASSERT_FALSE(offers.ok());
    EXPECT_THAT(offers.error().text(), HasSubstr("RAILYARD_GID_INDEX=" + std::to_string(index)));
    EXPECT_THAT(offers.error().text(), HasSubstr("fake2"));
  }
}

TEST_F(VerbsDiscovery, APortWithoutVersion2IsNotFit) {
  real_gid = network_.library().query_gid_ex;
  network_.library().query_gid_ex = [](ibv_context* context, std::uint32_t port, std::uint32_t index,
                                       ibv_gid_entry* entry, std::uint32_t flags, std::size_t bytes) {
    const int code = real_gid(context, port, index, entry, flags, bytes);
    return code == 0 && entry->gid_type == IBV_GID_TYPE_ROCE_V2 ? ENODATA : code;
  };
  const auto offers = discover(all());
  ASSERT_FALSE(offers.ok());
  EXPECT_THAT(offers.error().text(), HasSubstr("RoCE v2"));
  EXPECT_THAT(offers.error().text(), HasSubstr("give its interface an address"));
}

TEST_F(VerbsDiscovery, AnOldLibraryFindsTheSameAddress) {
  network_.library().query_gid_ex = nullptr;
  const auto offers = discover(all());
  ASSERT_TRUE(offers.ok()) << offers.error().text();
  EXPECT_EQ(port_of(offers->front()).gid_index, 3);
  links_work();
}

TEST_F(VerbsDiscovery, ALibraryWithoutTheNewerCallsWorks) {
  verbs::Library& library = network_.library();
  library.reg_mr_iova2 = nullptr;
  library.reg_dmabuf_mr = nullptr;
  library.query_ece = nullptr;
  library.set_ece = nullptr;
  links_work();
  EXPECT_FALSE(sides_.front().rail->capabilities().device_memory);
}

TEST_F(VerbsDiscovery, OneEndWithoutConnectionOptionsWorks) {
  network_.options(1).ece = false;
  links_work();
}

TEST_F(VerbsDiscovery, PortsThatAreDownOrAbsentAreNamed) {
  network_.options(0).port_active = false;
  network_.options(1).ports = 2;
  auto offers = discover(all());
  ASSERT_TRUE(offers.ok());
  EXPECT_THAT(names(*offers), ElementsAre("fake1", "fake1:2", "fake2"));
  EXPECT_NE(port_of((*offers)[0]).gid_text, port_of((*offers)[1]).gid_text);
  network_.port_down(1, 1);
  network_.port_down(1, 2);
  network_.port_down(2, 1);
  offers = discover(all());
  ASSERT_FALSE(offers.ok());
  for (const char* part : {"fake0 (port 1 is down)", "fake1 (port 2 is down)", "fake2 (port 1 is down)"})
    EXPECT_THAT(offers.error().text(), HasSubstr(part));
}

TEST_F(VerbsDiscovery, TheSecondPortIsARailOfItsOwn) {
  network_.options(0).ports = 2;
  Side& a = open(1);
  for (const char* name : {"fake0", "fake0:2"}) {
    auto rails = open_rails(settings_of(name));
    ASSERT_TRUE(rails.ok()) << rails.error().text();
    Side& b = sides_.emplace_back();
    b.rail = std::move(rails->front());
    b.registration = *b.rail->register_memory(b.memory, {.remote = true});
    feed(b, 4);
    EXPECT_TRUE(delivers(a, b, connect(a, b, {name[5] == 0 ? 1u : 2u, 1})));
  }
  EXPECT_NE(sides_.back().rail->name(), std::next(sides_.begin())->rail->name());
}

TEST_F(VerbsDiscovery, AFilterNamesDevicesOrPorts) {
  network_.options(0).ports = 2;
  const auto chosen = [](const char* interfaces) {
    Settings settings = all();
    settings.interfaces = interfaces;
    auto offers = discover(settings);
    return offers ? names(*offers) : std::vector<std::string>{offers.error().text()};
  };
  EXPECT_THAT(chosen("fake0"), ElementsAre("fake0", "fake0:2"));
  EXPECT_THAT(chosen("fake0:2"), ElementsAre("fake0:2"));
  EXPECT_THAT(chosen("^fake0"), ElementsAre("fake1", "fake2"));
  EXPECT_THAT(chosen("^fake0:2,fake1"), ElementsAre("fake0", "fake2"));
  EXPECT_THAT(chosen("mlx5_0"), ElementsAre(HasSubstr("there are fake0, fake0:2, fake1, fake2")));
}

TEST_F(VerbsDiscovery, InfiniBandIsReachedByItsLocalIdentifier) {
  for (std::size_t device : {0u, 1u}) network_.options(device).infiniband = true;
  const auto offers = discover(all());
  ASSERT_TRUE(offers.ok()) << offers.error().text();
  EXPECT_TRUE(port_of((*offers)[0]).infiniband);
  EXPECT_NE(port_of((*offers)[0]).lid, 0);
  EXPECT_EQ((*offers)[0].fabric, (*offers)[1].fabric);
  EXPECT_NE((*offers)[0].fabric, (*offers)[2].fabric);
  links_work();
  Side& ethernet = open(2);
  const auto refused = ethernet.rail->connect(sides_.front().rail->address(), {3, 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("InfiniBand"));
}

TEST_F(VerbsDiscovery, DevicesOfAnotherKindAreNamed) {
  int count = 0;
  ibv_device** const list = network_.library().get_device_list(&count);
  list[1]->transport_type = IBV_TRANSPORT_IWARP;
  network_.library().free_device_list(list);
  Settings settings = all();
  EXPECT_THAT(names(*discover(settings)), ElementsAre("fake0", "fake2"));
  settings.interfaces = "fake1";
  const auto offers = discover(settings);
  ASSERT_FALSE(offers.ok());
  EXPECT_THAT(offers.error().text(), HasSubstr("fake1 (neither InfiniBand nor RoCE)"));
}

TEST_F(VerbsDiscovery, ADeviceThatDoesNotOpenIsNamed) {
  network_.fail_call("open_device", 1, EACCES, 3);
  const auto offers = discover(all());
  ASSERT_FALSE(offers.ok());
  EXPECT_THAT(offers.error().text(), HasSubstr("fake0 (does not open: Permission denied)"));
  EXPECT_THAT(offers.error().text(), HasSubstr("RAILYARD_DRIVER=ofi"));
}

TEST_F(VerbsDiscovery, ByItselfALoopbackPortIsNotTaken) {
  const auto offers = discover(Settings());
  ASSERT_TRUE(offers.ok()) << offers.error().text();
  EXPECT_EQ(offers->front().driver, "tcp") << "all of the double's Ethernet ports are loopback";
}

TEST_F(VerbsDiscovery, ByItselfAPortThatLeavesTheMachineIsTaken) {
  network_.options(0).infiniband = true;
  Settings settings;
  auto offers = discover(settings);
  ASSERT_TRUE(offers.ok()) << offers.error().text();
  EXPECT_EQ(offers->front().driver, "verbs");
  settings.provider = "tcp";
  EXPECT_EQ(discover(settings)->front().driver, "ofi") << "a provider was asked for";
}

TEST_F(VerbsDiscovery, TheGidIndexMayBeChosenForLinksToo) {
  Settings settings = settings_of("fake0");
  settings.gid_index = 1;
  auto one = open_rails(settings);
  settings.interfaces = "fake1";
  auto other = open_rails(settings);
  ASSERT_TRUE(one.ok() && other.ok());
  for (auto* rails : {&one, &other}) {
    Side& side = sides_.emplace_back();
    side.rail = std::move((*rails)->front());
    side.registration = *side.rail->register_memory(side.memory, {.remote = true});
    feed(side, 4);
  }
  EXPECT_TRUE(delivers(sides_.front(), sides_.back(), connect(sides_.front(), sides_.back(), {1, 1})));
}

TEST_F(VerbsDiscovery, ADeviceWhosePlaceInTheSystemIsGoneIsDead) {
  const auto gid_text = std::filesystem::temp_directory_path() / ("verbs-place-" + std::to_string(::getpid()));
  std::filesystem::create_directory(gid_text);
  network_.options(0).system_path = gid_text;
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  std::filesystem::remove(gid_text);
  ASSERT_TRUE(pump([&] { return a.seen(Event::Kind::rail_down) == 1; }));
  EXPECT_EQ(a.lost(link), 1u);
  EXPECT_EQ(network_.count(0, Device::context).alive, 0u);
}

}  // namespace
}  // namespace railyard::fabric
