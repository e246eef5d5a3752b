# The HTTP server's black-box tests: pytest with the official openai client, against the scripted engine and (test_real.py) the mini model.
set(CALLA_PYTHON "python3" CACHE STRING "the Python that runs the tests; it needs pytest, openai and requests")
add_executable(calla-scripted-server tests/server/test_server.c tests/server/scripted_engine.c)
target_link_libraries(calla-scripted-server PRIVATE room_server room_text room_base)
add_executable(calla-test-server tests/server/test_server.c)
target_link_libraries(calla-test-server PRIVATE room_server room_engine room_text room_base)
file(GLOB server_tests CONFIGURE_DEPENDS tests/server/test_*.py)
foreach(test ${server_tests})
  get_filename_component(stem ${test} NAME_WE)
  add_test(NAME server/${stem} COMMAND ${CMAKE_COMMAND} -E env CALLA_BIN=${CMAKE_BINARY_DIR} ${CALLA_PYTHON} ${CMAKE_SOURCE_DIR}/tests/server/run.py ${test}
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(server/${stem} PROPERTIES TIMEOUT 1800 SKIP_RETURN_CODE 77)
endforeach()
set_tests_properties(server/test_chat PROPERTIES LABELS threads) # the scripted server under the thread sanitizer
