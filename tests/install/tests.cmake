# The installed tree serves a program that knows only pkg-config. Not under sanitizers: the example is built without them.
add_test(NAME install/pkg_config COMMAND sh ${CMAKE_SOURCE_DIR}/tests/install/installed.sh ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
set_tests_properties(install/pkg_config PROPERTIES LABELS nosan)
