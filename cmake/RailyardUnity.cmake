# A few files of a folder are compiled as one, which takes a third of the time. `tools/lint alone` compiles every file by
# itself, and so finds a missing include.

# Files with a name in their unnamed namespace that another file of their folder has too; and cost_test.cc, whose operator new
# is not for others to inline, and tcp_rail_test.cc, whose <netinet/tcp.h> does not go with <linux/tcp.h>. tools/lint reads this
# list.
set(apart
  plugins/libfabric/queue.cc plugins/nccl/fmt.cc plugins/nccl/gin_tables.cc
  src/base/settings.cc
  src/bootstrap/server.cc src/fabric/tcp_delivery.cc src/fabric/ofi/request.cc src/fabric/sim/outage_faults.cc
  src/shm/object.cc src/sim/schedule.cc src/transport/submit.cc src/transport/inbound.cc
  tests/bootstrap/job_server_test.cc tests/fabric/verbs_double_faults_test.cc tests/message/handle_test.cc
  tests/fabric/tcp_hosts_test.cc tests/fabric/tcp_rail_test.cc tests/message/schedule_test.cc tests/message/sizes_test.cc
  tests/window/cost_test.cc tests/window/shared_memory_rail_test.cc tests/window/vector_test.cc tests/window/window_test.cc
  tools/railyard/demo.cc tools/railyard/nvshmem_env.cc tools/railyard/report_picture.cc tools/railyard/sim_goodput.cc)
set(most_together 12)

# A hash of its name says whether a file begins the next group (one in eight does), and paths are relative: so the compiler
# cache knows a group again in another clone, and all but one when there is a new file.
function(railyard_unite target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  list(SORT sources)
  set(alone "")
  set(groups "")
  set(count 0)
  set(last "")
  foreach(source IN LISTS sources)
    get_filename_component(path ${source} ABSOLUTE BASE_DIR ${folder})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
    if(NOT path MATCHES "\\.cc$" OR path IN_LIST apart)
      list(APPEND alone ${source})
      continue()
    endif()
    get_filename_component(place ${path} DIRECTORY)
    # The tests of channels' set-up have a bed of their own.
    string(REGEX MATCH "/channel_setup" kind ${path})
    string(MD5 hash ${path})
    math(EXPR count "${count} + 1")
    if(NOT "${place}${kind}" STREQUAL last OR hash MATCHES "^[01]" OR count GREATER most_together)
      set(last "${place}${kind}")
      set(count 1)
      string(REPLACE "/" "-" group ${path})
      list(APPEND groups ${group})
      set(text_${group} "")
    endif()
    string(APPEND text_${group} "#include \"${path}\"\n")
  endforeach()
  foreach(group IN LISTS groups)
    set(file ${CMAKE_BINARY_DIR}/together/${target}/${group})
    file(CONFIGURE OUTPUT ${file} CONTENT "${text_${group}}" @ONLY)
    list(APPEND alone ${file})
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${alone}")
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

set(tests shm_test base_test telemetry_test accelerator_test rendezvous_test bootstrap_test fabric_test memory_test topology_test
  transport_test window_test device_test message_test sim_test tools_test)
set(together ${tests} strict-fi cuda-double verbs-double ibverbs-double railyard railyard_simulator railyard_launcher railyard_command_parts
  railyard_shm railyard-fi nccl-net-railyard railyard-nvshmem-3 railyard-nvshmem-4)
foreach(target ${together})
  if(TARGET ${target})
    railyard_unite(${target})
  endif()
endforeach()
# Tests seldom wait for their own code or for the command's; the compiler's optimizer takes most of its time on them.
if(RAILYARD_SANITIZE)
  foreach(target ${tests} strict-fi cuda-double railyard_command_parts railyard-command railyard_launcher)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE -O0)
    endif()
  endforeach()
endif()
