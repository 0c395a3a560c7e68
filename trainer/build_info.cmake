# Writes build_info.h for `bireme --version`. It runs at every build and rewrites the file only if
# the content has changed.
set(commit "unknown")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE}
                          describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit "${described}")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[
/* Written by trainer/build_info.cmake. */
#pragma once
#define BUILD_VERSION "@VERSION@"
#define BUILD_COMMIT "@commit@"
#define BUILD_COMPILER "@COMPILER@"
#define BUILD_TYPE "@TYPE@"
#define BUILD_MPI "@MPI@"
#define BUILD_HDF5 "@HDF5@"
#define BUILD_ONEDNN "@ONEDNN@"
]] @ONLY)
