# The HTTP server's black-box tests: pytest with the official openai and anthropic clients, against the scripted engine and (test_real.py) the mini model.
set(CALLA_PYTHON "python3" CACHE STRING "the Python that runs the tests; it needs what tests/requirements.txt names")
add_executable(calla-scripted-server tests/server/test_server.c tests/server/scripted_engine.c)
target_link_libraries(calla-scripted-server PRIVATE room_server room_text room_base)
add_executable(calla-test-server tests/server/test_server.c)
target_link_libraries(calla-test-server PRIVATE room_server room_engine room_text room_base)
target_compile_definitions(calla-test-server PRIVATE CALLA_FAULTS)
file(GLOB server_tests CONFIGURE_DEPENDS tests/server/test_*.py)
foreach(test ${server_tests})
  get_filename_component(stem ${test} NAME_WE)
  add_test(NAME server/${stem} COMMAND ${CMAKE_COMMAND} -E env CALLA_BIN=${CMAKE_BINARY_DIR} ${CALLA_PYTHON} ${CMAKE_SOURCE_DIR}/tests/server/run.py ${test}
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(server/${stem} PROPERTIES TIMEOUT 1800 SKIP_RETURN_CODE 77)
endforeach()
set_tests_properties(server/test_chat PROPERTIES LABELS threads) # the scripted server under the thread sanitizer
set_tests_properties(server/test_together PROPERTIES LABELS nosan) # hundreds of turns of the mini model
# the same with many more requests
add_test(NAME server/described_long COMMAND ${CMAKE_COMMAND} -E env CALLA_BIN=${CMAKE_BINARY_DIR} CALLA_TIER=_slow ${CALLA_PYTHON} ${CMAKE_SOURCE_DIR}/tests/server/run.py ${CMAKE_SOURCE_DIR}/tests/server/test_described.py
         WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(server/described_long PROPERTIES TIMEOUT 7200 SKIP_RETURN_CODE 77 LABELS "slow;nosan")
set_tests_properties(server/test_page PROPERTIES LABELS slow) # in a browser, which only the slow tier installs
# clients and agents of others, in an environment of their own (tests/server/agents/requirements.txt), which only the slow tier makes
add_test(NAME server/agents COMMAND ${CMAKE_COMMAND} -E env CALLA_BIN=${CMAKE_BINARY_DIR} sh ${CMAKE_SOURCE_DIR}/tests/server/agents/run.sh WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(server/agents PROPERTIES TIMEOUT 3600 SKIP_RETURN_CODE 77 LABELS "slow;nosan")
# Many clients at once: tests/server/load.py says what must hold. Twenty seconds each in every tier; ten minutes, and two under the thread sanitizer, in the slow one.
function(load_test name program seconds)
  add_test(NAME server/${name} COMMAND ${CALLA_PYTHON} ${CMAKE_SOURCE_DIR}/tests/server/load.py --bin ${CMAKE_BINARY_DIR} --program ${program} --seconds ${seconds} ${ARGN})
  set_tests_properties(server/${name} PROPERTIES TIMEOUT 1800 RUN_SERIAL ON)
endfunction()
if(CALLA_SANITIZE)
  load_test(load_scripted calla-scripted-server 20 --no-memory)
  load_test(load_real calla-test-server 20 --no-memory)
  load_test(load_sanitized calla-scripted-server 120 --no-memory)
  load_test(load_sanitized_real calla-test-server 120 --no-memory)
  set_tests_properties(server/load_sanitized server/load_sanitized_real PROPERTIES LABELS sanitized-slow)
else()
  load_test(load_scripted calla-scripted-server 20)
  load_test(load_real calla-test-server 20 --no-memory) # too short for the caches to fill to their budgets
  load_test(load_long calla-test-server 600)
  set_tests_properties(server/load_long PROPERTIES LABELS slow)
endif()
