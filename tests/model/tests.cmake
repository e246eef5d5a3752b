# Whole-model tests: the forward pass over a back end against stored answers. Programs here also link the golden reader beside the oracle.
foreach(stem test_golden_forward test_mini)
  add_executable(model_${stem} tests/model/${stem}.c tests/oracle/golden.c)
  target_include_directories(model_${stem} PRIVATE tests tests/oracle)
  target_compile_definitions(model_${stem} PRIVATE ${CALLA_TEST_DEFS})
  target_link_libraries(model_${stem} PRIVATE room_model room_text PkgConfig::CMOCKA)
  add_test(NAME model/${stem} COMMAND model_${stem} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(model/${stem} PROPERTIES TIMEOUT 1200)
endforeach()
set_tests_properties(model/test_mini PROPERTIES LABELS nosan) # minutes as it is
# Against other engines, in the slow tier: needs a CALLA_PYTHON with the packages of tests/requirements-peers.txt, else it counts as skipped.
add_executable(logprobs_driver tests/model/logprobs_driver.c tests/oracle/golden.c)
target_include_directories(logprobs_driver PRIVATE tests/oracle)
target_link_libraries(logprobs_driver PRIVATE room_model)
add_test(NAME model/test_peers COMMAND ${CALLA_PYTHON} ${CMAKE_SOURCE_DIR}/tests/model/test_peers.py $<TARGET_FILE:logprobs_driver>)
set_tests_properties(model/test_peers PROPERTIES LABELS "slow;nosan" TIMEOUT 3600 SKIP_RETURN_CODE 77)
