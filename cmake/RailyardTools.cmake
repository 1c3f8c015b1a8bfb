# The railyard command, and one program for each numbered example.

# Everything of the command but main() is a library of its own, so that tests/tools can call it.
file(GLOB command_sources CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_SOURCE_DIR}/tools/railyard/*.cc ${CMAKE_CURRENT_SOURCE_DIR}/bench/*.cc)
list(REMOVE_ITEM command_sources ${CMAKE_CURRENT_SOURCE_DIR}/tools/railyard/main.cc)
add_library(railyard_command_parts STATIC ${command_sources})
target_include_directories(railyard_command_parts PUBLIC . src tools/railyard)
target_compile_definitions(railyard_command_parts PUBLIC RAILYARD_VERSION="${PROJECT_VERSION}")
target_link_libraries(railyard_command_parts PUBLIC railyard_compiler railyard_launcher railyard_simulator railyard
  fmt::fmt CLI11::CLI11 railyard_libfabric_headers)

add_executable(railyard-command tools/railyard/main.cc)
set_target_properties(railyard-command PROPERTIES OUTPUT_NAME railyard)
target_link_libraries(railyard-command PRIVATE railyard_command_parts)

# Programs that measure one thing and are run by a script beside them. Under a sanitizer they would say nothing.
if(NOT RAILYARD_SANITIZE)
  add_executable(bench-instructions bench/engine/instructions.cc)
  set_target_properties(bench-instructions PROPERTIES
    OUTPUT_NAME instructions RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_include_directories(bench-instructions PRIVATE src)
  target_link_libraries(bench-instructions PRIVATE railyard_compiler railyard fmt::fmt)
  add_executable(bench-message bench/engine/message.cc)
  set_target_properties(bench-message PROPERTIES OUTPUT_NAME message RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_include_directories(bench-message PRIVATE src)
  target_link_libraries(bench-message PRIVATE railyard_compiler railyard fmt::fmt)
  add_executable(bench-local bench/local/local.cc)
  set_target_properties(bench-local PROPERTIES OUTPUT_NAME local RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_include_directories(bench-local PRIVATE src)
  target_link_libraries(bench-local PRIVATE railyard_compiler railyard fmt::fmt CLI11::CLI11)
  add_executable(bench-first-message bench/idle/first_message.cc)
  set_target_properties(bench-first-message PROPERTIES
    OUTPUT_NAME first-message RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(bench-first-message PRIVATE railyard_compiler railyard fmt::fmt CLI11::CLI11)
  add_executable(bench-cold-lines bench/idle/cold_lines.cc)
  set_target_properties(bench-cold-lines PROPERTIES
    OUTPUT_NAME cold-lines RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(bench-cold-lines PRIVATE railyard_compiler fmt::fmt CLI11::CLI11)
  add_executable(bench-channels
    bench/channels/channels.cc bench/channels/fabric_objects.cc bench/channels/pair.cc bench/channels/tests.cc
    bench/channels/traffic.cc)
  set_target_properties(bench-channels PROPERTIES
    OUTPUT_NAME channels RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_include_directories(bench-channels PRIVATE src)
  target_link_libraries(bench-channels PRIVATE
    railyard_compiler railyard fmt::fmt CLI11::CLI11 railyard_libfabric_headers)
  add_executable(bench-shm-line bench/shared-memory/line.cc)
  set_target_properties(bench-shm-line PROPERTIES
    OUTPUT_NAME shm-line RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(bench-shm-line PRIVATE railyard_compiler fmt::fmt)
  add_executable(bench-shm-one-core bench/shared-memory/one_core.cc)
  set_target_properties(bench-shm-one-core PROPERTIES
    OUTPUT_NAME shm-one-core RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(bench-shm-one-core PRIVATE railyard_compiler fmt::fmt PkgConfig::LIBFABRIC)
endif()

# An example sees only what an installed Railyard offers: the public headers and the library.
file(GLOB example_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${CMAKE_CURRENT_SOURCE_DIR}/examples/[0-9][0-9]-*)
set(railyard_examples "")
foreach(folder IN LISTS example_folders)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc ${folder}/*.c)
  if(sources)
    get_filename_component(name ${folder} NAME)
    add_executable(example-${name} ${sources})
    target_link_libraries(example-${name} PRIVATE railyard_compiler railyard)
    list(APPEND railyard_examples example-${name})
  endif()
endforeach()

# Examples in CUDA, where its compiler is. nvcc links without the sanitizers' libraries.
find_program(RAILYARD_NVCC nvcc HINTS /usr/local/cuda/bin DOC "The CUDA compiler, for examples in kernels")
file(GLOB device_headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/include/railyard/device.cuh
  ${CMAKE_CURRENT_SOURCE_DIR}/include/railyard/device/* ${CMAKE_CURRENT_SOURCE_DIR}/examples/*.cuh)
file(GLOB kernel_examples CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/examples/[0-9][0-9]-*/main.cu)
foreach(source IN LISTS kernel_examples)
  get_filename_component(folder ${source} DIRECTORY)
  get_filename_component(name ${folder} NAME)
  if(RAILYARD_NVCC AND NOT RAILYARD_SANITIZE)
    set(program ${CMAKE_BINARY_DIR}/bin/example-${name})
    add_custom_command(OUTPUT ${program}
      COMMAND ${RAILYARD_NVCC} -std=c++20 -O2 -gencode arch=compute_80,code=[compute_80,sm_80]
              -gencode arch=compute_90,code=sm_90 -I ${CMAKE_CURRENT_SOURCE_DIR}/include ${source} -o ${program}
              -L $<TARGET_FILE_DIR:railyard> -lrailyard -Xlinker -rpath=$<TARGET_FILE_DIR:railyard>
      DEPENDS railyard ${source} ${device_headers})
    add_custom_target(example-${name}-program ALL DEPENDS ${program})
  endif()
endforeach()
