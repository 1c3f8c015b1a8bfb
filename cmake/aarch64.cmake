# Cross build for aarch64 with Debian's compiler, what is linked out of a root of its own, tests under qemu-user:
# tools/aarch64 makes that root and uses this file.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(RAILYARD_AARCH64_ROOT "$ENV{RAILYARD_AARCH64_ROOT}" CACHE PATH "Debian's arm64 packages, unpacked")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES RAILYARD_AARCH64_ROOT)
set(libraries ${RAILYARD_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${RAILYARD_AARCH64_ROOT})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${RAILYARD_AARCH64_ROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${libraries}:${RAILYARD_AARCH64_ROOT}/lib/aarch64-linux-gnu)
set(CMAKE_C_FLAGS_INIT "-isystem ${RAILYARD_AARCH64_ROOT}/usr/include/aarch64-linux-gnu")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT
    "-Wl,-rpath-link,${libraries} -Wl,-rpath-link,${RAILYARD_AARCH64_ROOT}/lib/aarch64-linux-gnu")
endforeach()
