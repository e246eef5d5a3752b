# Grammars against Python's json and jsonschema: random texts drawn through the masks, and canonical texts that must be accepted.
add_executable(grammar_walk tests/grammar/grammar_walk.c)
target_link_libraries(grammar_walk PRIVATE room_grammar room_text room_base)
add_test(NAME grammar/test_schemas COMMAND ${CMAKE_COMMAND} -E env CALLA_BIN=${CMAKE_BINARY_DIR} ${CALLA_PYTHON} ${CMAKE_SOURCE_DIR}/tests/grammar/run.py
         ${CMAKE_SOURCE_DIR}/tests/grammar/test_schemas.py WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(grammar/test_schemas PROPERTIES TIMEOUT 1800 SKIP_RETURN_CODE 77)
