# The oracle as a library (other tests compare with it) and its own test. Always optimised: it is slow enough as it is.
add_library(oracle STATIC tests/oracle/oracle.c tests/oracle/golden.c)
target_compile_options(oracle PRIVATE -O2)
target_include_directories(oracle PUBLIC tests/oracle)
target_link_libraries(oracle PUBLIC room_model room_checkpoint room_base m)
add_executable(oracle_test_oracle tests/oracle/test_oracle.c)
target_compile_definitions(oracle_test_oracle PRIVATE ${CALLA_TEST_DEFS})
target_link_libraries(oracle_test_oracle PRIVATE oracle PkgConfig::CMOCKA)
add_test(NAME oracle/test_oracle COMMAND oracle_test_oracle)
