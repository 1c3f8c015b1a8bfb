# `import railyard`: the module and the package around it, in build/python. Built where pybind11 and Python's headers
# are; RAILYARD_PYTHON chooses another interpreter than the system's, which is the one that Debian's pybind11 and NumPy
# are for.

if(EXISTS /usr/bin/python3)
  set(system_python /usr/bin/python3)
else()
  find_program(system_python python3)
endif()
set(RAILYARD_PYTHON ${system_python} CACHE FILEPATH "The Python to build `import railyard` for")
if(RAILYARD_SANITIZE OR NOT RAILYARD_PYTHON)
  return() # a sanitizer's library would have to be in the interpreter
endif()
set(Python_EXECUTABLE ${RAILYARD_PYTHON})
find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 2.10 QUIET)
if(NOT Python_Development.Module_FOUND OR NOT pybind11_FOUND)
  message(STATUS "pybind11 or Python's headers are missing: building without `import railyard` (tools/setup run)")
  return()
endif()
message(STATUS "Python ${Python_VERSION}, pybind11 ${pybind11_VERSION}")

set(python_package ${CMAKE_BINARY_DIR}/python/railyard)
file(MAKE_DIRECTORY ${python_package})
file(GLOB python_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/python/railyard/*.py
  ${CMAKE_CURRENT_SOURCE_DIR}/python/railyard/*.pyi ${CMAKE_CURRENT_SOURCE_DIR}/python/railyard/py.typed)
foreach(file IN LISTS python_files)
  get_filename_component(name ${file} NAME)
  file(CREATE_LINK ${file} ${python_package}/${name} SYMBOLIC)
endforeach()

file(GLOB python_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/python/src/*.cc)
pybind11_add_module(railyard-python MODULE NO_EXTRAS ${python_sources})
set_target_properties(railyard-python PROPERTIES OUTPUT_NAME _railyard LIBRARY_OUTPUT_DIRECTORY ${python_package}
  INSTALL_RPATH "$ORIGIN/_lib")
target_link_libraries(railyard-python PRIVATE railyard_compiler railyard)
