# The NEON kernels on any Linux machine: their unit test, compiled for 64-bit ARM and run under qemu's user emulation, where both are installed
# (Debian: gcc-aarch64-linux-gnu, qemu-user). isa_under_qemu, in every tier, looks what is chosen on processors with less and less. On an ARM machine the ordinary unit tests already run them.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  find_program(CALLA_ARM64_CC aarch64-linux-gnu-gcc)
  find_program(CALLA_QEMU_ARM64 NAMES qemu-aarch64 qemu-aarch64-static)
  if(CALLA_ARM64_CC AND CALLA_QEMU_ARM64)
    set(cpu ${CMAKE_SOURCE_DIR}/src/backend/cpu)
    set(sources ${CMAKE_SOURCE_DIR}/tests/unit/backend/test_kernels.c ${cpu}/isa.c ${cpu}/kernels_portable.c ${CMAKE_SOURCE_DIR}/src/base/error.c)
    set(kernels ${CMAKE_BINARY_DIR}/kernels_neon_arm64.o ${CMAKE_BINARY_DIR}/kernels_i8mm_arm64.o)
    set(arm64_flags -O2 -std=c17 -D_GNU_SOURCE -Itests/arm64 -Itests -Iinclude -Isrc -ffp-contract=off -fno-math-errno -Wall -Wextra -Wshadow -Wno-missing-field-initializers -Werror)
    add_custom_command(
      OUTPUT test_kernels_arm64
      COMMAND ${CALLA_ARM64_CC} ${arm64_flags} -march=armv8.2-a+dotprod -c ${cpu}/kernels_neon.c -o ${CMAKE_BINARY_DIR}/kernels_neon_arm64.o
      COMMAND ${CALLA_ARM64_CC} ${arm64_flags} -march=armv8.2-a+dotprod+i8mm -c ${cpu}/kernels_i8mm.c -o ${CMAKE_BINARY_DIR}/kernels_i8mm_arm64.o
      COMMAND ${CALLA_ARM64_CC} ${arm64_flags} -static ${sources} ${kernels} -o ${CMAKE_BINARY_DIR}/test_kernels_arm64 -lm
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
      DEPENDS ${sources} ${cpu}/kernels_neon.c ${cpu}/kernels_i8mm.c ${CMAKE_SOURCE_DIR}/tests/arm64/cmocka.h ${cpu}/cpu.h ${CMAKE_SOURCE_DIR}/tests/unit/backend/random_affine.h
      VERBATIM)
    add_custom_target(arm64_kernels ALL DEPENDS test_kernels_arm64)
    add_test(NAME arm64/kernels_under_qemu COMMAND ${CALLA_QEMU_ARM64} -cpu max ${CMAKE_BINARY_DIR}/test_kernels_arm64)
    set_tests_properties(arm64/kernels_under_qemu PROPERTIES TIMEOUT 1200 LABELS "slow;nosan")

    # the program's own choice by the system's words, on processors that qemu knows
    foreach(chosen "max neon-i8mm" "neoverse-n1 neon" "cortex-a72 portable")
      separate_arguments(words UNIX_COMMAND "${chosen}")
      list(GET words 0 model)
      list(GET words 1 isa)
      add_test(NAME arm64/isa_under_qemu_${model} COMMAND ${CALLA_QEMU_ARM64} -cpu ${model} ${CMAKE_BINARY_DIR}/test_kernels_arm64 ${isa})
      set_tests_properties(arm64/isa_under_qemu_${model} PROPERTIES LABELS nosan)
    endforeach()

    set(mix_sources ${CMAKE_SOURCE_DIR}/tests/unit/backend/test_mix.c ${cpu}/mix_portable.c ${cpu}/isa.c ${cpu}/kernels_portable.c ${CMAKE_SOURCE_DIR}/src/base/error.c)
    file(GLOB mix_headers CONFIGURE_DEPENDS ${cpu}/mix*.h)
    add_custom_command(
      OUTPUT test_mix_arm64
      COMMAND ${CALLA_ARM64_CC} ${arm64_flags} -march=armv8.2-a+dotprod -c ${cpu}/mix_neon.c -o ${CMAKE_BINARY_DIR}/mix_neon_arm64.o
      COMMAND ${CALLA_ARM64_CC} ${arm64_flags} -static ${mix_sources} ${kernels} ${CMAKE_BINARY_DIR}/mix_neon_arm64.o -o ${CMAKE_BINARY_DIR}/test_mix_arm64 -lm
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
      DEPENDS test_kernels_arm64 ${mix_sources} ${cpu}/mix_neon.c ${mix_headers} ${CMAKE_SOURCE_DIR}/tests/arm64/cmocka.h ${cpu}/cpu.h
      VERBATIM)
    add_custom_target(arm64_mix ALL DEPENDS test_mix_arm64)
    add_dependencies(arm64_mix arm64_kernels)
    add_test(NAME arm64/mix_under_qemu COMMAND ${CALLA_QEMU_ARM64} -cpu max ${CMAKE_BINARY_DIR}/test_mix_arm64)
    set_tests_properties(arm64/mix_under_qemu PROPERTIES TIMEOUT 1200 LABELS "slow;nosan")
  endif()
endif()
