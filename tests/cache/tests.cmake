# The prefix cache: threads meet in it, and random schedules by the thousand are for the slow tier.
set_tests_properties(engine/test_cache engine/test_cache_mix engine/test_session PROPERTIES LABELS threads)
foreach(schedules "tiny 2000" "odd 2000" "mini 300")
  separate_arguments(words UNIX_COMMAND "${schedules}")
  list(GET words 0 name)
  add_test(NAME engine/test_cache_mix_${name}_long COMMAND engine_test_cache_mix ${words} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(engine/test_cache_mix_${name}_long PROPERTIES LABELS "slow;nosan" TIMEOUT 14400)
endforeach()
# The same by hand in a sanitizer build: engine_test_cache_mix tiny 500
add_test(NAME engine/test_flat_long COMMAND engine_test_flat 2000 200 WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(engine/test_flat_long PROPERTIES LABELS "slow;nosan" TIMEOUT 7200)
set_tests_properties(engine/test_flat PROPERTIES LABELS nosan) # a sanitizer keeps what is freed
