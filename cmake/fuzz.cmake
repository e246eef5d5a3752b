# libFuzzer targets: tests/fuzz/fuzz_*.c, each linked to the rooms it feeds. Corpora: tests/fuzz/corpus/<name>/.
file(GLOB fuzzers CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(source ${fuzzers})
  get_filename_component(stem ${source} NAME_WE)
  add_executable(${stem} ${source})
  target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${stem} PRIVATE room_server room_hub room_grammar room_text room_engine room_model room_checkpoint room_base)
endforeach()
string(REGEX REPLACE "[^;]*/(fuzz_[a-z_]*)\\.c" "\\1" fuzzer_names "${fuzzers}")
add_custom_target(fuzzers DEPENDS ${fuzzer_names}) # all that ./test builds for them
