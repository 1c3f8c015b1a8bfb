/// Where this build has what tests start and read. Every test has this file in front of it. The paths are in places.cc
/// and not in the text of the tests: so the compiler cache knows these again in another clone.
#pragma once

namespace railyard::test {

struct Places {
  const char* source;           ///< the root of the repository
  const char* bin;              ///< the folder of programs
  const char* command;          ///< bin/railyard
  const char* strict_provider;  ///< the folder of libstrict-fi.so
  const char* cuda_double;      ///< the double's libcuda.so.1
  const char* old_libfabric;    ///< the double of libfabric 1.12
  const char* provider;         ///< the folder of librailyard-fi.so
};
extern const Places kPlaces;  // constants: initializers may read them

}  // namespace railyard::test

#define RAILYARD_SOURCE_DIR (::railyard::test::kPlaces.source)
#define RAILYARD_BIN_DIR (::railyard::test::kPlaces.bin)
#define RAILYARD_COMMAND (::railyard::test::kPlaces.command)
#define RAILYARD_STRICT_PROVIDER_DIR (::railyard::test::kPlaces.strict_provider)
#define RAILYARD_CUDA_DOUBLE (::railyard::test::kPlaces.cuda_double)
#define RAILYARD_OLD_LIBFABRIC (::railyard::test::kPlaces.old_libfabric)
#define RAILYARD_PROVIDER_DIR (::railyard::test::kPlaces.provider)
