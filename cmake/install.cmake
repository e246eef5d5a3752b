# `cmake --install build`: the program, the library with its two headers and pkg-config file, and the embedded model.
include(GNUInstallDirs)
# The library is static, so what it needs is public in its pkg-config file. One archive of the engine and text rooms: what a program links.
add_library(calla_static STATIC cmake/empty.c)
set_target_properties(calla_static PROPERTIES OUTPUT_NAME calla)
foreach(room base checkpoint text grammar backend model engine)
  target_sources(calla_static PRIVATE $<TARGET_OBJECTS:room_${room}>)
endforeach()
target_link_libraries(calla_static PUBLIC PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::ZSTD ${CALLA_CRYPTO} Threads::Threads m)
if(APPLE)
  set(requires "libpcre2-8 libutf8proc libzstd")
  set(frameworks " -framework Metal -framework Foundation")
  target_link_libraries(calla_static PUBLIC "-framework Metal" "-framework Foundation")
else()
  set(requires "libpcre2-8 libutf8proc libzstd libcrypto")
endif()
# relative to the file itself, so that any --prefix will do
file(RELATIVE_PATH up /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
file(WRITE ${CMAKE_BINARY_DIR}/calla.pc
"prefix=\${pcfiledir}/${up}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: calla
Description: inference engine for Qwen3.6-35B-A3B in MLX 4-bit
Version: ${PROJECT_VERSION}
Requires: ${requires}
Libs: -L\${libdir} -lcalla -lpthread -lm${frameworks}
Cflags: -I\${includedir}
")
if(TARGET calla)
  install(TARGETS calla DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(TARGETS calla_static DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/calla.h include/calla_text.h include/calla_grammar.h include/calla_error.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/calla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY models/mini DESTINATION ${CMAKE_INSTALL_DATADIR}/calla)
# the examples are built against the same library, so that they keep compiling
file(GLOB examples CONFIGURE_DEPENDS examples/*.c)
foreach(source ${examples})
  get_filename_component(stem ${source} NAME_WE)
  add_executable(example_${stem} ${source})
  target_link_libraries(example_${stem} PRIVATE calla_static)
endforeach()
