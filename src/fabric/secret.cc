#include "fabric/secret.hpp"

#include "base/sha256.hpp"

namespace railyard::fabric {

Secret admission_key(const Secret& rail, std::span<const std::byte> job_key) {
  return job_key.empty() ? rail : hmac_sha256(job_key, rail);
}

}  // namespace railyard::fabric
