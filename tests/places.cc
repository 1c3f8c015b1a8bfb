#include "places.hpp"

namespace railyard::test {

constinit const Places kPlaces{.source = PLACE_SOURCE,
                               .bin = PLACE_BUILD "/bin",
                               .command = PLACE_BUILD "/bin/railyard",
                               .strict_provider = PLACE_STRICT_PROVIDER,
                               .cuda_double = PLACE_CUDA_DOUBLE,
                               .old_libfabric = PLACE_OLD_LIBFABRIC,
                               .provider = PLACE_BUILD "/lib"};

}  // namespace railyard::test
