/// The strict provider itself: each breach that it is there to catch, committed with bare libfabric calls, is caught.
#include <gtest/gtest.h>
#include <rdma/fi_errno.h>

#include <array>
#include <chrono>
#include <cstring>

#include "fabric/beds.hpp"
#include "fabric/ofi/info.hpp"

namespace railyard::fabric {
namespace {

constexpr std::uint64_t kAll = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

class StrictProvider : public ::testing::Test {
 protected:
  struct End {
    fid_ep* endpoint = nullptr;
    fid_cq* queue = nullptr;
    fid_av* addresses = nullptr;
    fi_addr_t other = FI_ADDR_NOTAVAIL;
  };

  void SetUp() override {
    ASSERT_TRUE(ofi::load_library().ok());
    auto found = ofi::query({.provider = "strict"});
    ASSERT_TRUE(found.ok());
    info_ = std::move(*found);
    ASSERT_TRUE(info_) << "the strict provider was not loaded from " << RAILYARD_STRICT_PROVIDER_DIR;
    const fi_info* choice = info_.get();
    while (choice->next != nullptr && std::strcmp(choice->domain_attr->name, "lo") != 0) choice = choice->next;
    chosen_.reset(ofi::library().dupinfo(choice));
    strict_.forget();
    ASSERT_EQ(ofi::library().fabric(chosen_->fabric_attr, &fabric_, nullptr), 0);
    ASSERT_EQ(fi_domain(fabric_, chosen_.get(), &domain_, nullptr), 0);
    for (End& end : ends_) open(end);
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      std::array<std::byte, 128> name{};
      std::size_t bytes = name.size();
      ASSERT_EQ(fi_getname(&ends_[1 - i].endpoint->fid, name.data(), &bytes), 0);
      ASSERT_EQ(fi_av_insert(ends_[i].addresses, name.data(), 1, &ends_[i].other, 0, nullptr), 1);
    }
  }

  void TearDown() override {
    for (fid_mr* registration : registrations_) fi_close(&registration->fid);
    for (End& end : ends_) {
      EXPECT_EQ(fi_close(&end.endpoint->fid), 0);
      EXPECT_EQ(fi_close(&end.queue->fid), 0);
      EXPECT_EQ(fi_close(&end.addresses->fid), 0);
    }
    EXPECT_EQ(fi_close(&domain_->fid), 0);
    EXPECT_EQ(fi_close(&fabric_->fid), 0);
    EXPECT_EQ(strict_.open_objects(), 0u);
  }

  void open(End& end) {
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_DATA;
    queue.size = 128;
    fi_av_attr addresses{};
    addresses.type = FI_AV_TABLE;
    ASSERT_EQ(fi_cq_open(domain_, &queue, &end.queue, nullptr), 0);
    ASSERT_EQ(fi_av_open(domain_, &addresses, &end.addresses, nullptr), 0);
    ASSERT_EQ(fi_endpoint(domain_, chosen_.get(), &end.endpoint, nullptr), 0);
    ASSERT_EQ(fi_ep_bind(end.endpoint, &end.queue->fid, FI_TRANSMIT | FI_RECV), 0);
    ASSERT_EQ(fi_ep_bind(end.endpoint, &end.addresses->fid, 0), 0);
    ASSERT_EQ(fi_enable(end.endpoint), 0);
  }

  fid_mr* register_memory(std::uint64_t access = kAll) {
    fid_mr* registration = nullptr;
    EXPECT_EQ(fi_mr_reg(domain_, memory_.data(), memory_.size(), access, 0, 0, 0, &registration, nullptr), 0);
    registrations_.push_back(registration);
    return registration;
  }
  fid_mr* usable(End& end, std::uint64_t access = kAll) {
    fid_mr* const registration = register_memory(access);
    EXPECT_EQ(fi_mr_bind(registration, &end.endpoint->fid, 0), 0);
    EXPECT_EQ(fi_mr_enable(registration), 0);
    return registration;
  }
  void close(fid_mr* registration) {
    EXPECT_EQ(fi_close(&registration->fid), 0);
    std::erase(registrations_, registration);
  }
  ssize_t send(void* descriptor) {
    return fi_send(ends_[0].endpoint, memory_.data(), 64, descriptor, ends_[0].other, &context_);
  }
  /// A completion of it says that the bytes are at the target, or that the target refused them.
  ssize_t post_write(void* descriptor, std::uint64_t key, bool with_immediate) {
    const iovec local{memory_.data(), 64};
    const fi_rma_iov remote{2048, 64, key};
    fi_msg_rma message{};
    message.msg_iov = &local;
    message.desc = &descriptor;
    message.iov_count = 1;
    message.addr = ends_[0].other;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.context = &context_;
    message.data = 5;
    const std::uint64_t immediate = with_immediate ? FI_REMOTE_CQ_DATA : 0;
    return fi_writemsg(ends_[0].endpoint, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE | immediate);
  }
  /// Writes and waits for the end of it: 0, or the error that came.
  int write(void* descriptor, std::uint64_t key, bool with_immediate = false) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    bool posted = false;
    while (std::chrono::steady_clock::now() < give_up) {
      if (!posted) {
        const ssize_t code = post_write(descriptor, key, with_immediate);
        if (code != 0 && code != -FI_EAGAIN) return static_cast<int>(-code);
        posted = code == 0;
      }
      fi_cq_data_entry entry{};
      if (fi_cq_read(ends_[1].queue, &entry, 1) == 1) arrived_.push_back(entry);
      const ssize_t read = fi_cq_read(ends_[0].queue, &entry, 1);
      if (read == 1 && (!with_immediate || !arrived_.empty())) return 0;
      if (read == 1) completed_ = true;
      if (completed_ && !arrived_.empty()) return 0;
      if (read == -FI_EAVAIL) {
        fi_cq_err_entry error{};
        if (fi_cq_readerr(ends_[0].queue, &error, 0) == 1) return error.err;
      }
    }
    return -1;
  }
  void expect_breach(const char* part) {
    EXPECT_GE(strict_.violations(), 1u) << part;
    EXPECT_NE(strict_.text().find(part), std::string::npos) << strict_.text();
  }

  StrictAccount strict_;
  ofi::Info info_;
  ofi::Info chosen_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  std::array<End, 2> ends_;
  std::vector<fid_mr*> registrations_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  fi_context2 context_{};
  std::vector<fi_cq_data_entry> arrived_;
  bool completed_ = false;
};

TEST_F(StrictProvider, LetsAProperWritePass) {
  fid_mr* const source = usable(ends_[0]);
  fid_mr* const target = usable(ends_[1]);
  EXPECT_EQ(write(fi_mr_desc(source), fi_mr_key(target)), 0);
  EXPECT_EQ(strict_.violations(), 0u) << strict_.text();
}

TEST_F(StrictProvider, CatchesAMissingDescriptor) {
  EXPECT_EQ(send(nullptr), -FI_EINVAL);
  expect_breach("no descriptor");
}

TEST_F(StrictProvider, CatchesARegistrationThatIsNotBound) {
  EXPECT_EQ(send(fi_mr_desc(register_memory())), -FI_EINVAL);
  expect_breach("not bound");
}

TEST_F(StrictProvider, CatchesARegistrationThatIsNotEnabled) {
  fid_mr* const registration = register_memory();
  ASSERT_EQ(fi_mr_bind(registration, &ends_[0].endpoint->fid, 0), 0);
  EXPECT_EQ(fi_mr_key(registration), FI_KEY_NOTAVAIL);
  EXPECT_EQ(send(fi_mr_desc(registration)), -FI_EINVAL);
  expect_breach("not enabled");
}

TEST_F(StrictProvider, CatchesEnablingBeforeBinding) {
  EXPECT_NE(fi_mr_enable(register_memory()), 0);
  expect_breach("enabled before it was bound");
}

TEST_F(StrictProvider, CatchesADescriptorOfAnotherEndpoint) {
  EXPECT_EQ(send(fi_mr_desc(usable(ends_[1]))), -FI_EINVAL);
  expect_breach("bound to another endpoint");
}

TEST_F(StrictProvider, CatchesADescriptorOfAClosedRegistration) {
  fid_mr* const registration = usable(ends_[0]);
  void* const descriptor = fi_mr_desc(registration);
  close(registration);
  EXPECT_EQ(send(descriptor), -FI_EINVAL);
  expect_breach("closed registration");
}

TEST_F(StrictProvider, CatchesMemoryOutsideTheRegistration) {
  fid_mr* const registration = usable(ends_[0]);
  EXPECT_EQ(fi_send(ends_[0].endpoint, memory_.data() + 4090, 64, fi_mr_desc(registration), ends_[0].other, &context_),
            -FI_EINVAL);
  expect_breach("outside the registration");
}

TEST_F(StrictProvider, CatchesMissingAccess) {
  EXPECT_EQ(send(fi_mr_desc(usable(ends_[0], FI_RECV))), -FI_EINVAL);
  expect_breach("without that access");
}

TEST_F(StrictProvider, AKeyIsWorthNothingAtAnotherEndpoint) {
  fid_mr* const source = usable(ends_[0]);
  fid_mr* const elsewhere = usable(ends_[0]);  // the write goes to the other endpoint
  EXPECT_GT(write(fi_mr_desc(source), fi_mr_key(elsewhere)), 0);
}

TEST_F(StrictProvider, CatchesAnEndpointClosedBeforeItsRegistrations) {
  fid_mr* const registration = usable(ends_[0]);
  EXPECT_EQ(fi_close(&ends_[0].endpoint->fid), -FI_EBUSY);
  expect_breach("endpoint closed before 1 registrations");
  close(registration);
}

TEST_F(StrictProvider, CatchesClosingTwice) {
  fid_mr* const registration = usable(ends_[0]);
  close(registration);
  EXPECT_EQ(fi_close(&registration->fid), -FI_EINVAL);
  expect_breach("registration closed twice");
}

TEST_F(StrictProvider, CatchesARegistrationClosedUnderATransmit) {
  fid_mr* const source = usable(ends_[0]);
  fid_mr* const target = usable(ends_[1]);
  ASSERT_EQ(write(fi_mr_desc(source), fi_mr_key(target)), 0);  // connects
  ASSERT_EQ(fi_write(ends_[0].endpoint, memory_.data(), 64, fi_mr_desc(source), ends_[0].other, 0, fi_mr_key(target),
                     &context_),
            0);
  EXPECT_EQ(fi_close(&source->fid), -FI_EBUSY);
  expect_breach("closed under 1 operations");
  fi_cq_data_entry entry{};
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (fi_cq_read(ends_[0].queue, &entry, 1) != 1 && std::chrono::steady_clock::now() < give_up)
    (void)fi_cq_read(ends_[1].queue, &entry, 1);
}

TEST_F(StrictProvider, CatchesAContextUsedTwice) {
  fid_mr* const registration = usable(ends_[1]);
  ASSERT_EQ(fi_recv(ends_[1].endpoint, memory_.data(), 64, fi_mr_desc(registration), FI_ADDR_UNSPEC, &context_), 0);
  EXPECT_EQ(fi_recv(ends_[1].endpoint, memory_.data(), 64, fi_mr_desc(registration), FI_ADDR_UNSPEC, &context_),
            -FI_EINVAL);
  expect_breach("in flight already");
}

TEST_F(StrictProvider, AnImmediateUsesUpAReceive) {
  fid_mr* const source = usable(ends_[0]);
  fid_mr* const target = usable(ends_[1]);
  fi_context2 receive{};
  const unsigned before = strict_.receives_used_up();
  ASSERT_EQ(fi_recv(ends_[1].endpoint, nullptr, 0, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(write(fi_mr_desc(source), fi_mr_key(target), true), 0);
  ASSERT_EQ(arrived_.size(), 1u);
  EXPECT_EQ(arrived_[0].op_context, &receive);
  EXPECT_EQ(arrived_[0].data, 5u);
  EXPECT_EQ(strict_.receives_used_up(), before + 1);
  EXPECT_EQ(strict_.violations(), 0u) << strict_.text();
}

TEST_F(StrictProvider, CatchesAnImmediateWithoutAReceive) {
  fid_mr* const source = usable(ends_[0]);
  fid_mr* const target = usable(ends_[1]);
  ASSERT_EQ(write(fi_mr_desc(source), fi_mr_key(target), true), 0);
  expect_breach("no receive was posted");
}

TEST_F(StrictProvider, IsNotOfferedToThoseWhoCannotMeetItsDemands) {
  ofi::Info hints(ofi::library().dupinfo(nullptr));
  hints->caps = FI_MSG | FI_RMA;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = ::strdup("strict");
  fi_info* found = nullptr;
  EXPECT_EQ(ofi::library().getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found), -FI_ENODATA);
}

}  // namespace
}  // namespace railyard::fabric
