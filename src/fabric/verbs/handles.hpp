/// Verbs objects that destroy themselves. They go in the order QP, SRQ, CQ, MR and AH, PD, context: what is left of one
/// keeps the next alive.
#pragma once

#include <cstring>
#include <memory>

#include "base/log.hpp"
#include "fabric/verbs/library.hpp"

namespace railyard::fabric::verbs {

template <typename T, int (*Library::*Destroy)(T*)>
struct Destroyer {
  const Library* library = nullptr;
  void operator()(T* object) const {
    // Nobody can act on it any more, but an object that would not go is a leak worth a line. EIO: its device has gone.
    if (const int code = (library->*Destroy)(object); code != 0 && code != EIO)
      log_warn("verbs: an object would not be destroyed: {}", std::strerror(code > 0 ? code : errno));
  }
};

template <typename T, int (*Library::*Destroy)(T*)>
using Handle = std::unique_ptr<T, Destroyer<T, Destroy>>;

using DeviceContext = Handle<ibv_context, &Library::close_device>;
using Domain = Handle<ibv_pd, &Library::dealloc_pd>;
using Queue = Handle<ibv_cq, &Library::destroy_cq>;
using SharedReceives = Handle<ibv_srq, &Library::destroy_srq>;
using QueuePair = Handle<ibv_qp, &Library::destroy_qp>;
using MemoryRegion = Handle<ibv_mr, &Library::dereg_mr>;
using Address = Handle<ibv_ah, &Library::destroy_ah>;

}  // namespace railyard::fabric::verbs
