# For the sanitizers' builds: a few files of a folder are compiled as one, which takes a third of the time. The release build
# compiles every file by itself, and so finds a missing include.

# Files with a name in their unnamed namespace that another file of their folder has too. tools/lint reads this list.
set(apart
  plugins/libfabric/queue.cc plugins/nccl/fmt.cc plugins/nccl/gin_tables.cc
  src/base/settings.cc
  src/bootstrap/server.cc src/fabric/tcp_delivery.cc src/fabric/ofi/request.cc src/fabric/shm/object.cc src/fabric/sim/outage_faults.cc
  src/message/rendezvous_inbound.cc src/sim/schedule.cc src/transport/submit.cc src/transport/transmit.cc
  tests/bootstrap/server_core_test.cc tests/fabric/verbs_double_faults_test.cc tests/message/handle_test.cc
  tests/fabric/tcp_hosts_test.cc tests/message/schedule_test.cc tests/message/sizes_test.cc
  tests/window/shared_memory_rail_test.cc tests/window/vector_test.cc tests/window/window_test.cc
  tools/railyard/demo.cc tools/railyard/nvshmem_env.cc tools/railyard/report_picture.cc tools/railyard/sim_goodput.cc)
list(TRANSFORM apart PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
set(files_together 6)

function(railyard_unite target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  set(number 0)
  foreach(source IN LISTS sources)
    get_filename_component(path ${source} ABSOLUTE BASE_DIR ${folder})
    get_filename_component(place ${path} DIRECTORY)
    if(NOT path MATCHES "\\.cc$" OR path IN_LIST apart)
      continue()
    endif()
    # Each kind of the rendezvous tests has a bed of its own.
    string(REGEX MATCH "/rendezvous[^/]*$" kind ${path})
    if(kind)
      set(kind rendezvous)
    endif()
    math(EXPR index "${number} / ${files_together}")
    math(EXPR number "${number} + 1")
    string(MD5 name "${place} ${kind} ${index}")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${name})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

foreach(target railyard railyard_simulator railyard_launcher railyard_command_parts nccl-net-railyard railyard-nvshmem-3 railyard-nvshmem-4 railyard-fi strict-fi cuda-double shm_test base_test accelerator_test bootstrap_test
    fabric_test memory_test topology_test transport_test window_test message_test sim_test tools_test)
  if(TARGET ${target})
    railyard_unite(${target})
  endif()
endforeach()
