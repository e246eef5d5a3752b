# The logic of the AVX-512 and AVX-VNNI kernels on a processor without them: their unit test over emulated intrinsics (tests/avx512/immintrin.h). Needs AVX2 to run.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_executable(avx512_emulated tests/avx512/emulated.c tests/avx512/emulated_avxvnni.c tests/unit/backend/test_kernels.c)
  set_source_files_properties(tests/avx512/emulated.c tests/avx512/emulated_avxvnni.c PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-I${CMAKE_SOURCE_DIR}/tests/avx512")
  target_include_directories(avx512_emulated PRIVATE tests)
  target_link_libraries(avx512_emulated PRIVATE room_backend PkgConfig::CMOCKA)
  add_test(NAME avx512/kernels_emulated COMMAND avx512_emulated)
  set_tests_properties(avx512/kernels_emulated PROPERTIES TIMEOUT 600)
endif()
