# The program as its users meet it: pytest over the built calla and models/mini, and over ./run with stubs in place of build and program.
file(GLOB cli_tests CONFIGURE_DEPENDS tests/cli/test_*.py)
foreach(test ${cli_tests})
  get_filename_component(stem ${test} NAME_WE)
  add_test(NAME cli/${stem} COMMAND ${CMAKE_COMMAND} -E env CALLA_BIN=${CMAKE_BINARY_DIR} ${CALLA_PYTHON} ${CMAKE_SOURCE_DIR}/tests/cli/run.py ${test}
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(cli/${stem} PROPERTIES TIMEOUT 1800 SKIP_RETURN_CODE 77)
endforeach()
set_tests_properties(cli/test_run_script cli/test_bench_scripts PROPERTIES LABELS nosan) # nothing of it is compiled
set_tests_properties(cli/test_synth PROPERTIES LABELS "slow;nosan" RUN_SERIAL ON) # gigabytes
set_tests_properties(cli/test_bench cli/test_ablate PROPERTIES LABELS nosan) # minutes of measuring, whose rooms other tests cover under a sanitizer
