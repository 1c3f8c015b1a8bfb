/// libfabric objects that close themselves.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <memory>

#include "base/log.hpp"
#include "fabric/ofi/library.hpp"

namespace railyard::fabric::ofi {

struct FidCloser {
  template <typename T>
  void operator()(T* object) const {
    const int code = fi_close(&object->fid);
    // Nobody can act on it any more, but an object that would not close is a leak worth a line.
    if (code != 0) log_warn("libfabric would not close an object: {}", library().strerror(-code));
  }
};
template <typename T>
using Fid = std::unique_ptr<T, FidCloser>;

struct InfoFreer {
  void operator()(fi_info* info) const { library().freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoFreer>;

}  // namespace railyard::fabric::ofi
