# The Metal shaders on this processor (docs/metal.md): the emulator, its own test, every shader's syntax, and each family of kernels against
# double precision. The shaders need clang, whatever compiles the rest; -fsanitize=thread is there for the calls it puts before loads and
# stores, which the emulator answers. Fibres do not go with the real sanitizers, so their builds leave all this out.
find_program(CALLA_CLANGXX NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
find_package(Python3 COMPONENTS Interpreter)
if(CALLA_SANITIZE)
elseif(NOT CALLA_CLANGXX OR NOT Python3_FOUND)
  message(WARNING "no clang++ or python3: the emulated tests of the Metal shaders are skipped")
  add_test(NAME metal/emulated COMMAND sh -c "echo 'SKIPPED: the Metal shaders need clang++ and python3 here'; exit 77")
  set_tests_properties(metal/emulated PROPERTIES SKIP_RETURN_CODE 77)
else()
  set(emulator ${CMAKE_SOURCE_DIR}/tests/metal-emulator)
  set(shader_flags -std=c++20 -Wall -Wextra -Werror -Wno-unknown-attributes -I${emulator}/include -I${emulator} -I${CMAKE_SOURCE_DIR}/src)
  set(shader_build -O1 -fno-exceptions -fno-rtti -fno-vectorize -fno-slp-vectorize -ffp-contract=off -fPIC -fsanitize=thread
      -mllvm -tsan-instrument-func-entry-exit=0 -mllvm -tsan-instrument-read-before-write=1)
  # for numbers alone: nobody looks at loads and stores, so many times as fast
  set(shader_fast -DEMU_UNCHECKED -O2 -fno-exceptions -fno-rtti -ffp-contract=off -fPIC)
  execute_process(COMMAND sh -c "grep -qw fma /proc/cpuinfo && grep -qw avx2 /proc/cpuinfo" RESULT_VARIABLE no_fma)
  if(no_fma EQUAL 0) # what is built here is run here
    list(APPEND shader_fast -march=haswell)
  endif()
  file(GLOB shader_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/metal/*.h ${emulator}/include/* ${emulator}/include/*/* ${emulator}/emulator.h ${emulator}/tensor.h)
  file(GLOB shaders CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/metal/*.metal)
  set(objects)
  set(fast_objects)
  foreach(shader ${emulator}/selftest.metal ${shaders})
    get_filename_component(stem ${shader} NAME_WE)
    set(out ${CMAKE_BINARY_DIR}/metal_${stem})
    add_custom_command(OUTPUT ${out}.o ${out}.cpp DEPENDS ${shader} ${shader_headers} ${emulator}/kernels.py
      COMMAND ${Python3_EXECUTABLE} ${emulator}/kernels.py ${CALLA_CLANGXX} ${shader} ${out}.cpp ${shader_flags}
      COMMAND ${CALLA_CLANGXX} ${shader_flags} ${shader_build} -c ${out}.cpp -o ${out}.o
      COMMENT "Metal shader ${stem} for the emulator" VERBATIM)
    list(APPEND objects ${out}.o)
    if(NOT stem STREQUAL selftest)
      add_custom_command(OUTPUT ${out}_unchecked.o DEPENDS ${out}.cpp ${shader} ${shader_headers}
        COMMAND ${CALLA_CLANGXX} ${shader_flags} ${shader_fast} -c ${out}.cpp -o ${out}_unchecked.o COMMENT "Metal shader ${stem}, unchecked" VERBATIM)
      list(APPEND fast_objects ${out}_unchecked.o)
    endif()
    # address spaces as attributes: what lacks one, or has the wrong one, does not compile
    add_test(NAME metal/syntax_${stem} COMMAND ${CALLA_CLANGXX} ${shader_flags} -fsyntax-only -DEMU_LINT -x c++ ${shader})
  endforeach()
  foreach(case 0 1 2 3) # and that the check refuses what it should
    add_test(NAME metal/syntax_refused_${case} COMMAND ${CALLA_CLANGXX} ${shader_flags} -fsyntax-only -DEMU_LINT -DCASE=${case} -x c++ ${emulator}/refused.metal)
    if(case)
      set_tests_properties(metal/syntax_refused_${case} PROPERTIES WILL_FAIL TRUE)
    endif()
  endforeach()
  add_library(metal_emulator STATIC ${emulator}/emulator.c ${emulator}/memory.c ${emulator}/fibre.c ${emulator}/tensor.c)
  target_include_directories(metal_emulator PUBLIC ${emulator})
  foreach(kind ucontext unchecked)
    string(TOUPPER EMU_${kind} definition)
    add_library(metal_emulator_${kind} STATIC ${emulator}/emulator.c ${emulator}/memory.c ${emulator}/fibre.c ${emulator}/tensor.c)
    target_include_directories(metal_emulator_${kind} PUBLIC ${emulator})
    target_compile_definitions(metal_emulator_${kind} PRIVATE ${definition})
  endforeach()

  list(POP_FRONT objects selftest)
  foreach(kind emulator emulator_ucontext)
    add_executable(metal_test_${kind} ${emulator}/test_emulator.c ${selftest})
    target_link_libraries(metal_test_${kind} PRIVATE metal_${kind} PkgConfig::CMOCKA m)
    add_test(NAME metal/${kind} COMMAND metal_test_${kind})
  endforeach()
  file(GLOB tests CONFIGURE_DEPENDS ${emulator}/emulated_*.c)
  foreach(test ${tests})
    get_filename_component(stem ${test} NAME_WE)
    add_executable(metal_${stem} ${test} ${objects})
    target_include_directories(metal_${stem} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(metal_${stem} PRIVATE metal_emulator room_backend PkgConfig::CMOCKA)
    set_target_properties(metal_${stem} PROPERTIES ENABLE_EXPORTS ON) # for planted.py
    add_test(NAME metal/${stem} COMMAND metal_${stem})
  endforeach()
  if(NOT APPLE) # LD_PRELOAD
    add_test(NAME metal/planted_faults COMMAND ${Python3_EXECUTABLE} ${emulator}/planted.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR} ${CALLA_CLANGXX} ${shader_flags} ${shader_build})
    set_tests_properties(metal/planted_faults PROPERTIES TIMEOUT 900)
  endif()
endif()

# The host over a stand-in for Metal's classes (standin/): the very Objective-C files that macOS compiles, for the GNU runtime, so that whole
# models run through the ordinary back end, model and engine, on emulated kernels.
if(NOT CALLA_SANITIZE AND CALLA_CLANGXX AND Python3_FOUND AND NOT APPLE)
  string(REPLACE "clang++" "clang" objc ${CALLA_CLANGXX})
  execute_process(COMMAND ${objc} -print-file-name=libobjc.so OUTPUT_VARIABLE libobjc OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EXISTS ${libobjc})
    message(WARNING "no libobjc: the emulated tests of the Metal host are skipped")
    add_test(NAME metal/host COMMAND sh -c "echo 'SKIPPED: the Metal host needs the GNU Objective-C runtime here'; exit 77")
    set_tests_properties(metal/host PROPERTIES SKIP_RETURN_CODE 77)
  else()
    set(standin ${emulator}/standin)
    set(objc_flags -fobjc-runtime=gcc -fblocks -fconstant-string-class=NSConstantString -std=gnu17 -Wall -Wextra -Wshadow -Wno-missing-field-initializers
        -Werror -D_GNU_SOURCE -I${standin} -I${emulator} -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/include)
    file(GLOB standin_sources CONFIGURE_DEPENDS ${standin}/*.m)
    file(GLOB standin_headers CONFIGURE_DEPENDS ${standin}/*.h ${standin}/*/*.h ${CMAKE_SOURCE_DIR}/src/backend/metal/*.h)
    set(host_objects)
    foreach(source ${metal_device} ${standin_sources})
      get_filename_component(stem ${source} NAME_WE)
      set(out ${CMAKE_BINARY_DIR}/metal_host_${stem}.o)
      add_custom_command(OUTPUT ${out} DEPENDS ${source} ${standin_headers} ${emulator}/emulator.h
        COMMAND ${objc} ${objc_flags} -O2 -g -c ${source} -o ${out} COMMENT "Metal host ${stem} for the emulator" VERBATIM)
      list(APPEND host_objects ${out})
    endforeach()
    foreach(source ${metal_device}) # as macOS compiles it, but for the headers: no warning
      get_filename_component(stem ${source} NAME_WE)
      add_test(NAME metal/host_syntax_${stem} COMMAND ${objc} ${objc_flags} -Wpedantic -Wno-gnu-zero-variadic-macro-arguments -fsyntax-only ${source})
    endforeach()
    foreach(flat ${metal_flat}) # what the host embeds compiles alone
      get_filename_component(stem ${flat} NAME_WE)
      add_test(NAME metal/embedded_${stem} COMMAND ${CALLA_CLANGXX} -std=c++20 -Wall -Wextra -Werror -Wno-unknown-attributes -Wno-unused-function -I${emulator}/include
               -I${emulator} -fsyntax-only -DEMU_LINT -x c++ ${flat})
    endforeach()
    function(metal_host_program name source shaders emulator_kind)
      # whole: the shaders register themselves; before room_backend: its own table of back ends, with metal in it
      add_executable(${name} ${source} ${CMAKE_SOURCE_DIR}/tests/oracle/golden.c ${CMAKE_SOURCE_DIR}/src/backend/backend.c ${host_objects} ${${shaders}} ${metal_sources})
      target_compile_definitions(${name} PRIVATE ${CALLA_TEST_DEFS} CALLA_METAL)
      target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/tests/oracle ${CMAKE_SOURCE_DIR}/tests/model ${standin})
      target_link_libraries(${name} PRIVATE room_engine room_text ${emulator_kind} ${libobjc} PkgConfig::CMOCKA)
    endfunction()
    function(metal_host_test name program timeout)
      add_test(NAME metal/${name} COMMAND ${program} ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(metal/${name} PROPERTIES TIMEOUT ${timeout})
      if(name MATCHES _whole)
        set_tests_properties(metal/${name} PROPERTIES LABELS slow)
      endif()
    endfunction()
    file(GLOB host_tests CONFIGURE_DEPENDS ${emulator}/host_*.c)
    list(REMOVE_ITEM host_tests ${emulator}/host_mini.c)
    foreach(test ${host_tests})
      get_filename_component(stem ${test} NAME_WE)
      metal_host_program(metal_${stem} ${test} objects metal_emulator)
      metal_host_test(${stem} metal_${stem} 1800)
    endforeach()
    metal_host_program(metal_host_mini ${emulator}/host_mini.c objects metal_emulator)
    metal_host_program(metal_host_mini_unchecked ${emulator}/host_mini.c fast_objects metal_emulator_unchecked)
    foreach(route simdgroup tensor) # plain: an hour for the whole
      foreach(mode float32 default)
        metal_host_test(host_mini_unchecked_${route}_${mode} metal_host_mini_unchecked 1800 ${route} ${mode})
        metal_host_test(host_mini_unchecked_${route}_${mode}_whole metal_host_mini_unchecked 14400 ${route} ${mode} whole)
      endforeach()
    endforeach()
    # the unchecked build has the checked one's bits
    add_test(NAME metal/host_mini_same_bits COMMAND sh -c "checked=$($1 bits) && unchecked=$($2 bits) && echo \"$checked\" && test \"$checked\" = \"$unchecked\"" sh
             $<TARGET_FILE:metal_host_mini> $<TARGET_FILE:metal_host_mini_unchecked>)
    set_tests_properties(metal/host_mini_same_bits PROPERTIES TIMEOUT 1800)
    # the same host over shaders compiled when calla is built, by a stand-in for Apple's compiler
    set(compiled ${CMAKE_BINARY_DIR}/metal_built)
    add_custom_command(OUTPUT ${compiled}.c DEPENDS ${metal_shaders} ${metal_headers} ${CMAKE_SOURCE_DIR}/cmake/flatten.cmake ${emulator}/xcrun
      COMMAND ${CMAKE_COMMAND} -D SHADERS=${metal_list} -D INCLUDE=${CMAKE_SOURCE_DIR}/src -D OUT=${compiled}.c -D FLAT=${compiled} -D XCRUN=${emulator}/xcrun
              -P ${CMAKE_SOURCE_DIR}/cmake/flatten.cmake VERBATIM)
    set(from_text ${metal_sources})
    set(metal_sources ${compiled}.c)
    metal_host_program(metal_compiled ${emulator}/compiled.c objects metal_emulator)
    set(metal_sources ${from_text})
    metal_host_test(compiled metal_compiled 1800)
    add_test(NAME metal/xcrun COMMAND sh ${emulator}/test_xcrun.sh ${CMAKE_SOURCE_DIR} ${CMAKE_COMMAND})
    foreach(stem host_golden host_faults host_routes) # every prompt, every barrier
      metal_host_test(${stem}_whole metal_${stem} 7200 whole)
    endforeach()
  endif()
endif()
