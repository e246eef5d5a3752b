# cmake -DSOURCE=... -DOUT=... -P commit.cmake: a C file with the commit of the sources, rewritten only when that changes.
cmake_minimum_required(VERSION 3.21)
execute_process(COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT commit MATCHES "^[0-9a-f]+(-dirty)?$")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "/* written by cmake/commit.cmake */\nextern const char bench_commit[];\nconst char bench_commit[] = \"@commit@\";\n" @ONLY)
