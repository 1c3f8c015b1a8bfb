# `cmake --install`: library, headers, command, CMake package railyard::railyard, railyard.pc and railyard-c.pc, manual pages.

include(CMakePackageConfigHelpers)
set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/railyard)

install(TARGETS railyard EXPORT railyard-targets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(NOT BUILD_SHARED_LIBS)
  # A static library names what it was built with; those targets are found again by the package file.
  install(TARGETS railyard_compiler EXPORT railyard-targets)
endif()
if(TARGET railyard-command)
  set_target_properties(railyard-command PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS railyard-command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/railyard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp"
  PATTERN "*.cuh")
file(GLOB manual_pages CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/docs/man/*.1)
if(manual_pages)
  install(FILES ${manual_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(FILES docs/man/fi_railyard.7 DESTINATION ${CMAKE_INSTALL_MANDIR}/man7)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES tools/grafana/railyard.json DESTINATION ${CMAKE_INSTALL_DATADIR}/railyard/grafana)

install(EXPORT railyard-targets NAMESPACE railyard:: DESTINATION ${package_directory})
configure_package_config_file(cmake/railyard-config.cmake.in ${CMAKE_BINARY_DIR}/railyard-config.cmake
  INSTALL_DESTINATION ${package_directory})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/railyard-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/railyard-config.cmake ${CMAKE_BINARY_DIR}/railyard-config-version.cmake
  DESTINATION ${package_directory})
# Relative, so that the tree may be installed with another --prefix, or moved.
file(RELATIVE_PATH RAILYARD_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/railyard.pc.in ${CMAKE_BINARY_DIR}/railyard.pc @ONLY)
configure_file(cmake/railyard-c.pc.in ${CMAKE_BINARY_DIR}/railyard-c.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/railyard.pc ${CMAKE_BINARY_DIR}/railyard-c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
