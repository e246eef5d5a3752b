# JSON against Python's json (the other unit tests are found by name: cmake/tests.cmake).
add_executable(json_echo tests/unit/base/json_echo.c)
target_link_libraries(json_echo PRIVATE room_base)
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  add_test(NAME base/json_against_python
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/unit/base/json_against_python.py $<TARGET_FILE:json_echo> 5000)
endif()
# Tests that run threads of their own, for the thread sanitizer.
set_tests_properties(text/test_history_store grammar/test_matcher PROPERTIES LABELS threads)
set_tests_properties(backend/test_gdn backend/test_linear PROPERTIES LABELS threads) # an operation's rows over several
if(CALLA_SANITIZE MATCHES "thread")
  set_tests_properties(backend/test_attn PROPERTIES LABELS sanitized-slow) # the same, in minutes
endif()
set_tests_properties(engine/test_store engine/test_store_file backend/test_pool engine/test_serving engine/test_lifetime engine/test_engine PROPERTIES LABELS threads)
