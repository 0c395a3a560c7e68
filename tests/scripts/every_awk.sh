# Sourced by the tests of scripts that write data with awk.

# check_every_awk SCRIPT: scripts/SCRIPT has written the folder `out`. A second run and each
# installed awk write the same files.
check_every_awk() {
    "scripts/$1" again 2>stderr && diff -r out again || fail 'a second run writes other files'
    local awk
    mkdir bin
    for awk in mawk gawk original-awk 'busybox awk'; do
        $awk 'BEGIN { exit }' 2>/dev/null </dev/null || continue
        printf '#!/bin/sh\nexec %s "$@"\n' "$awk" >bin/awk
        chmod +x bin/awk
        rm -rf again
        PATH=$folder/bin:$PATH "scripts/$1" again 2>stderr && diff -r out again ||
            fail "$awk writes other files: $(cat stderr)"
        echo "$awk writes the same files"
    done
}
