# The engine as programs see it, over the tiny checkpoint. kill_store: a few kills in every run, 200 in the slow tier.
add_executable(kill_store tests/engine/kill_store.c)
target_link_libraries(kill_store PRIVATE room_engine)
add_test(NAME engine/kill_store COMMAND kill_store ${CMAKE_SOURCE_DIR}/tests/golden/tiny 5)
add_test(NAME engine/kill_store_200 COMMAND kill_store ${CMAKE_SOURCE_DIR}/tests/golden/tiny 200)
set_tests_properties(engine/kill_store engine/kill_store_200 PROPERTIES WORKING_DIRECTORY ${CMAKE_BINARY_DIR} TIMEOUT 3600)
set_tests_properties(engine/kill_store_200 PROPERTIES LABELS slow)
