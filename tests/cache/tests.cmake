# The prefix cache: threads meet in it, and random schedules by the thousand are for the slow tier.
set_tests_properties(engine/test_cache engine/test_cache_mix engine/test_session PROPERTIES LABELS threads)
add_test(NAME engine/test_cache_mix_thousands COMMAND engine_test_cache_mix 400 WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(engine/test_cache_mix_thousands PROPERTIES LABELS "slow;nosan" TIMEOUT 7200)
