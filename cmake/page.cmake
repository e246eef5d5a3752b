# The chat page (src/server/page/chat.html) becomes part of the server room: no tool but cmake itself, nothing read at run time.
set(page ${CMAKE_SOURCE_DIR}/src/server/page/chat.html)
set(page_c ${CMAKE_BINARY_DIR}/page_chat.c)
add_custom_command(OUTPUT ${page_c} DEPENDS ${page} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
                   COMMAND ${CMAKE_COMMAND} -D IN=${page} -D OUT=${page_c} -D NAME=page_chat -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
target_sources(room_server PRIVATE ${page_c})
