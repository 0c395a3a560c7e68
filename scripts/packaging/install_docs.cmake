# Turns the links of the installed pages to files that are not installed into text. CMakeLists.txt
# runs it after the installation of the pages; `docs` is their folder.
set(sources "tests|trainer|base|comm|datasets|kernels|scripts|recipes/[a-z0-9_]+\\.yaml")
file(GLOB_RECURSE pages "$ENV{DESTDIR}${docs}/*.md")
foreach(page IN LISTS pages)
  file(READ "${page}" text)
  string(REGEX REPLACE "\\[([^]]+)\\]\\((\\.\\./)*((${sources})[^)#]*)[^)]*\\)"
         "\\1 (\\3 of the sources)" text "${text}")
  string(REGEX REPLACE "\n\\[[^]]+\\]: (\\.\\./)*(${sources})[^\n]*" "" text "${text}")
  file(WRITE "${page}" "${text}")
endforeach()
