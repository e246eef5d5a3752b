# Instruction counts of the hot kernels as regression figures. Counts belong to optimised code, so only Release builds are counted.
add_executable(perf_counts tests/perf/counts.c)
target_link_libraries(perf_counts PRIVATE room_backend)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT CALLA_SANITIZE)
  add_test(NAME perf/counts COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/perf/counts.py $<TARGET_FILE:perf_counts> "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
  set_tests_properties(perf/counts PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77 LABELS nosan)
endif()
