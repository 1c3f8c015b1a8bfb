/// Registrations that are worth nothing until they are bound to an endpoint and enabled.
#include <random>

#include "doubles/strict.hpp"

namespace strict {

namespace {

std::uint64_t new_key() {
  static std::mt19937_64 random{std::random_device{}()};
  const std::lock_guard lock(big_lock());
  return random() >> 1;
}

int bind_registration(fid* object, fid* other, std::uint64_t /*flags*/) {
  const std::lock_guard lock(big_lock());
  auto* const registration = outer<Registration>(object);
  if (!alive(registration)) return breach(-FI_EINVAL, "a closed registration was bound");
  if (other->fclass != FI_CLASS_EP || !alive(other))
    return breach(-FI_EINVAL, "a registration was bound to no endpoint");
  if (registration->endpoint != nullptr) return breach(-FI_EINVAL, "a registration was bound twice");
  auto* const endpoint = outer<Endpoint>(other);
  if (endpoint->domain != registration->domain)
    return breach(-FI_EINVAL, "a registration was bound to an endpoint of another domain");
  registration->endpoint = endpoint;
  ++endpoint->registrations;
  return 0;
}

int control_registration(fid* object, int command, void* /*argument*/) {
  const std::lock_guard lock(big_lock());
  auto* const registration = outer<Registration>(object);
  if (command != FI_ENABLE) return -FI_ENOSYS;
  if (!alive(registration)) return breach(-FI_EINVAL, "a closed registration was enabled");
  if (registration->endpoint == nullptr) return breach(-FI_EINVAL, "a registration was enabled before it was bound");
  if (registration->inner != nullptr) return breach(-FI_EINVAL, "a registration was enabled twice");
  const std::uint64_t key = new_key();
  const int code = fi_mr_reg(registration->endpoint->inner_domain, registration->memory, registration->bytes,
                             registration->access, 0, key, 0, &registration->inner, nullptr);
  if (code == 0) registration->fid.key = key;
  return code;
}

int close_registration(fid* object) {
  const std::lock_guard lock(big_lock());
  auto* const registration = outer<Registration>(object);
  if (alive(registration) && registration->transmits != 0)
    return breach(-FI_EBUSY, "a registration was closed under " + std::to_string(registration->transmits) +
                                 " operations in flight");
  if (!dies(registration, "registration")) return -FI_EINVAL;
  --registration->domain->children;
  if (registration->endpoint != nullptr) --registration->endpoint->registrations;
  return registration->inner == nullptr ? 0 : fi_close(&registration->inner->fid);
}

fi_ops* object_operations() {
  static fi_ops operations = [] {
    fi_ops made{};
    made.size = sizeof(made);
    made.close = close_registration;
    made.bind = bind_registration;
    made.control = control_registration;
    return made;
  }();
  return &operations;
}

int open_registration(fid* domain_fid, const void* memory, std::size_t bytes, std::uint64_t access, fid_mr** result,
                      void* context) {
  const std::lock_guard lock(big_lock());
  auto* const domain = outer<Domain>(domain_fid);
  if (!alive(domain)) return breach(-FI_EINVAL, "memory was registered with a closed domain");
  auto registration = std::make_unique<Registration>();
  registration->domain = domain;
  registration->memory = static_cast<std::byte*>(const_cast<void*>(memory));
  registration->bytes = bytes;
  registration->access = access;
  registration->fid.fid.fclass = FI_CLASS_MR;
  registration->fid.fid.context = context;
  registration->fid.fid.ops = object_operations();
  registration->fid.mem_desc = registration.get();
  registration->fid.key = FI_KEY_NOTAVAIL;
  ++domain->children;
  born(registration.get());
  *result = &registration.release()->fid;
  return 0;
}

int reg(fid* domain, const void* memory, std::size_t bytes, std::uint64_t access, std::uint64_t /*offset*/,
        std::uint64_t /*requested_key*/, std::uint64_t /*flags*/, fid_mr** result, void* context) {
  return open_registration(domain, memory, bytes, access, result, context);
}

int regv(fid* domain, const iovec* iov, std::size_t count, std::uint64_t access, std::uint64_t /*offset*/,
         std::uint64_t /*requested_key*/, std::uint64_t /*flags*/, fid_mr** result, void* context) {
  if (count != 1) return -FI_EINVAL;
  return open_registration(domain, iov->iov_base, iov->iov_len, access, result, context);
}

int regattr(fid* domain, const fi_mr_attr* attributes, std::uint64_t /*flags*/, fid_mr** result) {
  if (attributes->iov_count != 1) return -FI_EINVAL;
  return open_registration(domain, attributes->mr_iov->iov_base, attributes->mr_iov->iov_len, attributes->access,
                           result, attributes->context);
}

}  // namespace

fi_ops_mr* registration_operations() {
  static fi_ops_mr operations = [] {
    fi_ops_mr made{};
    made.size = sizeof(made);
    made.reg = reg;
    made.regv = regv;
    made.regattr = regattr;
    return made;
  }();
  return &operations;
}

Registration* check_descriptor(Endpoint& endpoint, const void* memory, std::size_t bytes, void* descriptor,
                               std::uint64_t access, const char* operation) {
  const std::string name = operation;
  auto* const registration = static_cast<Registration*>(descriptor);
  const auto refuse = [&](const char* why) {
    breach(0, name + ": " + why);
    return static_cast<Registration*>(nullptr);
  };
  if (registration == nullptr) return refuse("no descriptor");
  if (!alive(registration)) return refuse("descriptor of a closed registration");
  if (registration->endpoint == nullptr) return refuse("registration not bound");
  if (registration->inner == nullptr) return refuse("registration not enabled");
  if (registration->endpoint != &endpoint) return refuse("registration bound to another endpoint");
  const auto* const start = static_cast<const std::byte*>(memory);
  if (start < registration->memory || start + bytes > registration->memory + registration->bytes)
    return refuse("memory outside the registration");
  if ((registration->access & access) != access) return refuse("registration without that access");
  return registration;
}

}  // namespace strict
