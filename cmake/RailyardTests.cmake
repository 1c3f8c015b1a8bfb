# One GoogleTest program per folder of tests/, registered test by test; and the strict libfabric provider they use.

include(GoogleTest)

set(strict_provider_directory ${CMAKE_BINARY_DIR}/tests/doubles)
file(GLOB double_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/doubles/*.cc)
if(double_sources)
  add_library(strict-fi MODULE ${double_sources})
  set_target_properties(strict-fi PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${strict_provider_directory})
  target_include_directories(strict-fi PRIVATE src tests)
  target_link_libraries(strict-fi PRIVATE railyard_compiler PkgConfig::LIBFABRIC Threads::Threads)
endif()

# The verbs double is linked into the tests: it takes the place of libibverbs in their process.
file(GLOB verbs_double_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/doubles/verbs/*.cc)
add_library(verbs-double STATIC ${verbs_double_sources})
target_include_directories(verbs-double PRIVATE src tests)
target_link_libraries(verbs-double PRIVATE railyard_compiler railyard)
# Programs that load the library at run time find it as libibverbs.so.1 on LD_LIBRARY_PATH.
set(verbs_double_directory ${CMAKE_BINARY_DIR}/tests/doubles/verbs)
add_library(ibverbs-double SHARED ${verbs_double_sources} tests/doubles/verbs/shared/libibverbs.cc)
set_target_properties(ibverbs-double PROPERTIES
  OUTPUT_NAME ibverbs SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${verbs_double_directory} CXX_VISIBILITY_PRESET hidden)
target_include_directories(ibverbs-double PRIVATE include src tests)
target_link_libraries(ibverbs-double PRIVATE railyard_compiler Threads::Threads ${CMAKE_DL_LIBS})

# The CUDA double takes the place of libcuda.so.1 by its name: tests open it before the library looks, or find it on
# LD_LIBRARY_PATH.
set(cuda_double_directory ${CMAKE_BINARY_DIR}/tests/doubles/cuda)
file(GLOB cuda_double_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/doubles/cuda/*.cc)
add_library(cuda-double SHARED ${cuda_double_sources})
set_target_properties(cuda-double PROPERTIES
  OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${cuda_double_directory} CXX_VISIBILITY_PRESET hidden)
target_include_directories(cuda-double PRIVATE include src tests)
target_link_libraries(cuda-double PRIVATE railyard_compiler Threads::Threads)
# Programs call it, as the driver, through types of their own: what is a pointer to a context here is one to void there.
if(RAILYARD_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(cuda-double PRIVATE -fno-sanitize=function)
endif()

add_library(old-libfabric MODULE tests/doubles/old_libfabric/libfabric.cc)
set_target_properties(old-libfabric PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/doubles/old_libfabric)
target_link_libraries(old-libfabric PRIVATE railyard_compiler)

# Where tests find all that. No path of this clone is in a test's own command or text.
add_library(test-places STATIC tests/places.cc)
target_compile_definitions(test-places PRIVATE
  PLACE_SOURCE="${CMAKE_CURRENT_SOURCE_DIR}"
  PLACE_BUILD="${CMAKE_BINARY_DIR}"
  PLACE_STRICT_PROVIDER="${strict_provider_directory}"
  PLACE_CUDA_DOUBLE="${cuda_double_directory}/libcuda.so.1"
  PLACE_OLD_LIBFABRIC="$<TARGET_FILE:old-libfabric>")
target_compile_options(test-places INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/tests/places.hpp>")
target_link_libraries(test-places PRIVATE railyard_compiler)

# Instructions of a verbs rail beside bare calls, counted on the double. Under a sanitizer they would say nothing.
if(NOT RAILYARD_SANITIZE)
  add_executable(bench-verbs-cost bench/verbs/cost.cc)
  set_target_properties(bench-verbs-cost PROPERTIES
    OUTPUT_NAME verbs-cost RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_include_directories(bench-verbs-cost PRIVATE src tests)
  target_link_libraries(bench-verbs-cost PRIVATE railyard_compiler verbs-double railyard fmt::fmt)
  add_test(NAME "fabric: instructions of verbs rails"
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/bench/verbs/compare --build ${CMAKE_BINARY_DIR})
  set_tests_properties("fabric: instructions of verbs rails" PROPERTIES
    SKIP_RETURN_CODE 77 TIMEOUT 300 LABELS fabric)
endif()

foreach(layer base telemetry accelerator rendezvous bootstrap fabric memory topology transport window device message sim c_api tools)
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/tests/${layer})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc ${folder}/*.c)
  if(NOT sources OR (layer STREQUAL "tools" AND NOT RAILYARD_TOOLS)
     OR (layer STREQUAL "sim" AND RAILYARD_SANITIZE STREQUAL "thread")) # which has one thread
    continue()
  endif()
  add_executable(${layer}_test ${sources})
  set_target_properties(${layer}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${layer}_test PRIVATE src tests)
  target_compile_definitions(${layer}_test PRIVATE
    RAILYARD_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${layer}_test PRIVATE railyard_compiler test-places verbs-double railyard_simulator railyard fmt::fmt
    railyard_libfabric_headers GTest::gmock GTest::gtest GTest::gtest_main rapidcheck)
  add_dependencies(${layer}_test cuda-double)
  if(TARGET strict-fi)
    add_dependencies(${layer}_test strict-fi)
  endif()
  # A test's program and the examples are looked up when it runs; only tests of the command itself wait for it to build.
  if(layer STREQUAL "tools")
    target_link_libraries(tools_test PRIVATE railyard_command_parts)
    add_dependencies(${layer}_test railyard-command old-libfabric ${railyard_examples})
  endif()
  if(layer STREQUAL "base")
    target_compile_definitions(base_test PRIVATE RAILYARD_HOT_CODE=$<BOOL:${railyard_hot_code}>)
  endif()
  if(layer STREQUAL "bootstrap")
    target_link_libraries(bootstrap_test PRIVATE railyard_launcher railyard_pmix_headers)
  endif()
  # ./test runs twice as many tests at a time as there are cores: loading libfabric is a fifth of a second of waiting. Tests
  # that are several busy processes or threads themselves count for two.
  set(cores 1)
  if(layer MATCHES "^(window|device|message|tools)$")
    set(cores 2)
  endif()
  # Sanitizers slow everything down, two cores may be shared: the limit is there to end a hang, not to measure.
  gtest_discover_tests(${layer}_test
    DISCOVERY_MODE PRE_TEST
    NO_PRETTY_VALUES
    DISCOVERY_TIMEOUT 60
    TEST_PREFIX "${layer}: "
    PROPERTIES TIMEOUT 300 LABELS ${layer} PROCESSORS ${cores})
endforeach()

# tests/soak/NAME.cc is a program of its own, run by ./test and by hand under `railyard launch`, for as long as one likes.
if(RAILYARD_TOOLS)
  file(GLOB soak_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/soak/*.cc)
  foreach(source IN LISTS soak_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_include_directories(${name} PRIVATE src tests)
    target_link_libraries(${name} PRIVATE railyard_compiler railyard fmt::fmt CLI11::CLI11)
    if(RAILYARD_SANITIZE) # only when it is asked for by its name
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endforeach()
endif()
