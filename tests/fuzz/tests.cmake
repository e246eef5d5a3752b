# Each fuzz target over its corpus, in every build (cmake/fuzz.cmake builds the real fuzzers, with clang).
file(GLOB fuzzers CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(source ${fuzzers})
  get_filename_component(stem ${source} NAME_WE)
  string(REPLACE fuzz_ "" corpus ${stem})
  add_executable(replay_${corpus} tests/fuzz/replay.c ${source})
  target_link_libraries(replay_${corpus} PRIVATE room_server room_hub room_grammar room_text room_engine room_model room_checkpoint room_base)
  add_test(NAME fuzz/${corpus} COMMAND replay_${corpus} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${corpus})
endforeach()
