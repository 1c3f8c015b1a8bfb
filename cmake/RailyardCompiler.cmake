# How every target here is compiled: standard, warnings, sanitizers, output folders, ccache.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug, RelWithDebInfo" FORCE)
  endif()
  # Line tables cost nothing at run time and make a back trace or a callgrind run readable.
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
  set(CMAKE_C_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
  find_program(RAILYARD_CCACHE ccache)
  if(RAILYARD_CCACHE)
    foreach(language C CXX)
      if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER ${RAILYARD_CCACHE})
      endif()
    endforeach()
  endif()
endif()

# Linked (privately) by every target of the project; never installed.
add_library(railyard_compiler INTERFACE)
target_compile_options(railyard_compiler INTERFACE -Wall -Wextra -Wpedantic -Wconversion
  $<$<BOOL:${RAILYARD_WERROR}>:-Werror>)

if(RAILYARD_SANITIZE)
  # For the whole tree, so that no object is left out.
  add_compile_options(-fsanitize=${RAILYARD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${RAILYARD_SANITIZE})
  if(RAILYARD_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Clang's runtime is in the program: one in C brings what the C++ that it loads calls there.
    add_link_options($<$<LINK_LANGUAGE:C>:-fsanitize-link-c++-runtime>
      $<$<LINK_LANGUAGE:C>:LINKER:--push-state,--no-as-needed,-lstdc++,--pop-state>)
  endif()
endif()
