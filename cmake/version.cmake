# `calla bench` says which commit it was built from: a file of its own, looked at in every build, compiled only when the commit has changed.
add_custom_target(calla_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${CMAKE_BINARY_DIR}/commit.c -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake
  BYPRODUCTS ${CMAKE_BINARY_DIR}/commit.c)
set_source_files_properties(${CMAKE_BINARY_DIR}/commit.c PROPERTIES GENERATED TRUE)
target_sources(room_cli PRIVATE ${CMAKE_BINARY_DIR}/commit.c)
add_dependencies(room_cli calla_commit)
