# tests/fuzz/NAME_fuzz.cc becomes the libFuzzer program bin/NAME_fuzz. The whole library is instrumented.

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "RAILYARD_FUZZ needs clang++ (libFuzzer): use `cmake --preset fuzz`, "
                      "or configure a fresh folder with -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang")
endif()
target_compile_options(railyard PRIVATE -fsanitize=fuzzer-no-link)
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/fuzz/*_fuzz.cc)
foreach(source IN LISTS fuzz_sources)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE src tests)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE railyard_compiler railyard_simulator railyard fmt::fmt railyard_libfabric_headers)
endforeach()
# This one has devices of its own.
file(GLOB verbs_double_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/doubles/verbs/*.cc)
target_sources(verbs_fuzz PRIVATE ${verbs_double_sources})
