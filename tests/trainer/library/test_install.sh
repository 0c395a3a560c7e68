#!/bin/bash
# Installs into a folder of its own, compiles a C program against what lies there, with pkg-config as a stranger
# would, and compares what it says with the installed program's commands.
# usage: test_install.sh CMAKE BUILD_FOLDER C_COMPILER C++_COMPILER
. "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"
cmake=$1 build=$2 cxx=$4
read -ra cc <<<"$3"
prefix=$folder/prefix

"$cmake" --install "$build" --prefix "$prefix" >told 2>&1 || fail "cmake --install"
library=$(find "$prefix" -name libbireme.so)
[ -n "$library" ] || fail "no libbireme.so"
libraries=$(dirname "$library")
for file in bin/bireme include/bireme.h share/bireme/recipes/quickstart.yaml share/bireme/recipes/clusters/h100_sxm.yaml \
    share/bireme/scripts/launch_mpirun.sh share/bireme/scripts/launch_slurm.sbatch \
    share/doc/bireme/README.md share/doc/bireme/LICENSE share/doc/bireme/docs/reference/exit_codes.md share/man/man1/bireme.1; do
    [ -f "$prefix/$file" ] || fail "$file is not installed"
done
mv "$prefix" "$folder/moved" # nothing in it knows where it was put
prefix=$folder/moved libraries=$folder/moved/${libraries#"$folder/prefix/"}
program=$prefix/bin/bireme

# The library's own name has the first number of its version, and only the header's names can be seen.
version=$("$program" --version | sed -n 's/^bireme //p')
readelf -d "$libraries/libbireme.so" | grep -q "soname: \[libbireme.so.${version%%.*}\]" || fail "the library's soname"
nm -D --defined-only "$libraries/libbireme.so" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | sort >seen
sed -n 's/^BM_API .*\(bm_[a-z_]*\)(.*/\1/p' "$prefix/include/bireme.h" | sort >told
[ -s seen ] && cmp seen told || fail "the library's names are not the header's: $(diff seen told | tr '\n' ' ')"

export PKG_CONFIG_PATH=$libraries/pkgconfig
[ "$(pkg-config --modversion bireme)" = "$version" ] || fail "pkg-config's version"
read -ra flags <<<"$(pkg-config --cflags --libs bireme)"
"${cc[@]}" -std=c99 -pedantic -Wall -Wextra -Werror -o uses "$source/tests/trainer/library/uses_bireme.c" "${flags[@]}" \
    -lm -Wl,-rpath,"$libraries" 2>told || fail "the program does not compile"
if [ -n "$cxx" ]; then
    echo '#include <bireme.h>' >header.cc
    "$cxx" -pedantic -Wall -Wextra -Werror -fsyntax-only "${flags[0]}" header.cc 2>told || fail "the header in C++"
fi

run 0 train recipe.yaml
uses() { # ARGUMENT...
    timeout 50 "${one_core[@]}" ./uses "$version" "$@" >out 2>told || fail "uses_bireme $*"
    [ ! -s told ] || fail "the library is not silent"
}

# The same text, log-probabilities and vector as the commands give.
text='The licence of a work'
uses run "$text"
mv out said
run 0 generate --checkpoint run --prompt "$text" --temperature 0 --max-new-tokens 9 --no-echo
[ "$(cat out)" = "$(sed -n 's/^text: //p' said)" ] || fail "another text than generate: $(cat out said)"
run 0 generate --checkpoint run --prompt "$text" --num-beams 3 --max-new-tokens 9 --no-echo
[ "$(cat out)" = "$(sed -n 's/^beams: //p' said)" ] || fail "another text than beams: $(cat out said)"
echo "$text" >line
run 0 score --checkpoint run line
[ "$(cut -f1 out)" = "$(sed -n 's/^log-probability: //p' said)" ] || fail "another number than score: $(cat out said)"
run 0 embed --checkpoint run line
[ "$(cut -d' ' -f1-3 out)" = "$(sed -n 's/^vector: //p' said)" ] || fail "another vector than embed: $(cat out said)"

# The manual's page knows every command.
"$program" --help | sed -n 's/^  \([a-z-]*\) .*/\1/p' | while read -r command; do
    grep -q "^\.B $command$" "$prefix/share/man/man1/bireme.1" || fail "bireme.1 does not tell of $command"
done || exit 1
