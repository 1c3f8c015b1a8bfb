/// The cases of nvshmem-host: each runs in every PE, for both majors.
#pragma once

#include "host.hpp"

namespace railyard::nvshmem::test {

template <typename Transport>
struct SetUp {
  using Host = Pe<Transport>;
  static void table(const Start& start);
  static void versions(const Start& start);
  static void memory(const Start& start);
  static void misuse(const Start& start);
  static void again(const Start& start);
  static void exit(const Start& start);
};

template <typename Transport>
struct Traffic {
  using Host = Pe<Transport>;
  static void transfers(const Start& start);
  static void atomics(const Start& start);
  static void order(const Start& start);
  static void signals(const Start& start);
  static void threads(const Start& start);
  static void stopped(const Start& start);
  static void killed(const Start& start);
  static void gpu(const Start& start);
};

}  // namespace railyard::nvshmem::test
