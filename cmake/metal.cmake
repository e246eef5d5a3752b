# The Metal back end. Its host is plain C and part of every build (the cost ledger counts its dispatches); the device behind it is
# Objective-C, for macOS, where shaders are compiled when calla is built (xcrun.cmake) or, from their text, when the device is opened. metal_sources: both.
file(GLOB metal_host CONFIGURE_DEPENDS src/backend/metal/*.c)
file(GLOB metal_device CONFIGURE_DEPENDS src/backend/metal/*.m)
file(GLOB metal_shaders CONFIGURE_DEPENDS src/backend/metal/*.metal)
file(GLOB metal_headers CONFIGURE_DEPENDS src/backend/metal/*.h)
target_sources(room_backend PRIVATE ${metal_host})

set(metal_sources ${CMAKE_BINARY_DIR}/metal_sources.c)
set(metal_flat)
foreach(shader ${metal_shaders})
  get_filename_component(stem ${shader} NAME_WE)
  list(APPEND metal_flat ${CMAKE_BINARY_DIR}/metal_flat/${stem}.metal)
endforeach()
string(REPLACE ";" "," metal_list "${metal_shaders}")
include(cmake/xcrun.cmake)
metal_find_tool(metal_tool)
add_custom_command(OUTPUT ${metal_sources} ${metal_flat} DEPENDS ${metal_shaders} ${metal_headers} ${CMAKE_SOURCE_DIR}/cmake/flatten.cmake
  COMMAND ${CMAKE_COMMAND} -D SHADERS=${metal_list} -D INCLUDE=${CMAKE_SOURCE_DIR}/src -D OUT=${metal_sources} -D FLAT=${CMAKE_BINARY_DIR}/metal_flat
          -D XCRUN=${metal_tool} -P ${CMAKE_SOURCE_DIR}/cmake/flatten.cmake
  COMMENT "Metal shaders with their headers" VERBATIM)

if(APPLE)
  enable_language(OBJC)
  set_source_files_properties(${metal_device} PROPERTIES COMPILE_OPTIONS "-fno-objc-arc;-Wno-strict-prototypes")
  target_sources(room_backend PRIVATE ${metal_device} ${metal_sources})
  target_compile_definitions(room_backend PRIVATE CALLA_METAL)
  target_link_libraries(room_backend PUBLIC "-framework Metal" "-framework Foundation")
endif()
