# calla pull against a stand-in hub on loopback: pytest over the built calla.
add_test(NAME hub/test_pull COMMAND ${CMAKE_COMMAND} -E env CALLA_BIN=${CMAKE_BINARY_DIR} ${CALLA_PYTHON} ${CMAKE_SOURCE_DIR}/tests/cli/run.py
         ${CMAKE_SOURCE_DIR}/tests/hub/test_pull.py WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(hub/test_pull PROPERTIES TIMEOUT 1800 SKIP_RETURN_CODE 77)
