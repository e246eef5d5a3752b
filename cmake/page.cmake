# Documents that the server hands out become part of its room: no tool but cmake itself, nothing read at run time.
function(embed name file)
  set(source ${CMAKE_SOURCE_DIR}/src/server/${file})
  set(out ${CMAKE_BINARY_DIR}/page_${name}.c)
  add_custom_command(OUTPUT ${out} DEPENDS ${source} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
                     COMMAND ${CMAKE_COMMAND} -D IN=${source} -D OUT=${out} -D NAME=page_${name} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  target_sources(room_server PRIVATE ${out})
endfunction()
embed(chat page/chat.html)      # GET /
embed(openapi openapi.json)     # GET /openapi.json
