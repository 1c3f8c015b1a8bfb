# tests/fuzz/NAME_fuzz.cc becomes the libFuzzer program bin/NAME_fuzz; the target `fuzzers` is all of them. They link what the
# tests link, so that one build has both: the library and the plugins count which branches were taken.

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "RAILYARD_FUZZ needs clang++ (libFuzzer): use `cmake --preset asan`, "
                      "or configure a fresh folder with -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang")
endif()
if(NOT TARGET verbs-double)
  message(FATAL_ERROR "RAILYARD_FUZZ needs the tests' doubles: RAILYARD_TESTS=ON, with GoogleTest and rapidcheck "
                      "(tools/setup test installs them)")
endif()
function(railyard_count_branches)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endforeach()
endfunction()
railyard_count_branches(railyard verbs-double)
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/fuzz/*_fuzz.cc)
add_custom_target(fuzzers)
foreach(source IN LISTS fuzz_sources)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE src tests)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE railyard_compiler railyard_simulator railyard fmt::fmt railyard_libfabric_headers)
  railyard_count_branches(${name})
  add_dependencies(fuzzers ${name})
endforeach()
target_link_libraries(verbs_fuzz PRIVATE verbs-double)
