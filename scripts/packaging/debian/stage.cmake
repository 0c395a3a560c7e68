# Adds the files that only a Debian package has to the tree from which cpack makes it, and
# compresses the man pages: Debian's policy demands both. cpack runs it before it writes the
# package.
set(share ${CPACK_TEMPORARY_DIRECTORY}/usr/share)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(changelog ${share}/doc/bireme/changelog.Debian)
file(WRITE ${changelog}
"bireme (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * CHANGELOG.md lists the changes.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
file(COPY ${CMAKE_CURRENT_LIST_DIR}/copyright DESTINATION ${share}/doc/bireme)
file(GLOB pages ${share}/man/man1/*.1)
execute_process(COMMAND gzip -9n ${changelog} ${pages} COMMAND_ERROR_IS_FATAL ANY)
