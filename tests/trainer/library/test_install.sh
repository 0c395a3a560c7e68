#!/bin/bash
# Installs Bireme into a temporary folder, compiles a C program with the installed library and
# pkg-config, and compares its output with the output of the installed program.
# usage: test_install.sh CMAKE BUILD_FOLDER C_COMPILER C++_COMPILER
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
cmake=$1 build=$2 cxx=$4
read -ra cc <<<"$3"
prefix=$folder/prefix

"$cmake" --install "$build" --prefix "$prefix" >stderr 2>&1 || fail 'cmake --install failed'
library=$(find "$prefix" -name libbireme.so)
[ -n "$library" ] || fail 'libbireme.so is not installed'
libraries=$(dirname "$library")
for file in bin/bireme include/bireme.h share/bireme/recipes/quickstart.yaml \
    share/bireme/recipes/clusters/h100_sxm.yaml share/bireme/scripts/launch_mpirun.sh \
    share/bireme/scripts/launch_slurm.sbatch share/bireme/bireme.supp share/doc/bireme/README.md \
    share/doc/bireme/LICENSE share/doc/bireme/recipes/README.md \
    share/doc/bireme/docs/reference/exit_codes.md \
    share/man/man1/bireme.1 share/man/man1/bireme-tokenizer-train.1 \
    share/bash-completion/completions/bireme share/zsh/site-functions/_bireme; do
    [ -f "$prefix/$file" ] || fail "$file is not installed"
done
# All recipes of the repository are installed, and no recipe of the user.
if git -C "$source" ls-files recipes >tracked 2>stderr; then
    (cd "$prefix/share/bireme" && find recipes -type f) | sort >installed
    sort tracked | cmp - installed || fail "installed recipes: $(cat installed)"
fi
# No installed page links to a file that is not installed.
find "$prefix/share/doc/bireme" -name '*.md' | while read -r page; do
    grep -oE '\]\([^)# ]+|^\[[^]]+\]: [^ #]+' "$page" | sed -E 's/^\]\(//; s/^\[[^]]+\]: //' |
        grep -v '^[a-z]*:' | sort -u | while read -r link; do
        [ -e "$(dirname "$page")/$link" ] || echo "${page##*/}: $link"
    done
done >links
[ ! -s links ] || fail "installed pages have broken links: $(cat links)"
grep -q '(tests/comm/watchdog/test_fault.c of the sources)' "$prefix/share/doc/bireme/README.md" ||
    fail 'a link to a source file is not text'
# Without a built library, everything else is installed.
sed 's/libbireme\.so/missing.so/g' "$build/trainer/library/cmake_install.cmake" >install.cmake
"$cmake" -DCMAKE_INSTALL_PREFIX="$folder/part" -P install.cmake >out 2>stderr ||
    fail 'the installation without libbireme failed'
grep -q 'Not installed: libbireme' out || fail "no message about libbireme: $(cat out)"
[ ! -e part ] || fail 'a part of the library is installed without it'

mv "$prefix" "$folder/moved" # the installed files contain no absolute path
prefix=$folder/moved libraries=$folder/moved/${libraries#"$folder/prefix/"}
program=$prefix/bin/bireme

# The soname contains the major version. The library exports exactly the names of the header.
version=$("$program" --version | sed -n 's/^bireme //p')
readelf -d "$libraries/libbireme.so" |
    grep -q "soname: \[libbireme.so.${version%%.*}\]" || fail 'the soname is wrong'
nm -D --defined-only "$libraries/libbireme.so" |
    awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | sort >exported
sed -n 's/^BM_API .*\(bm_[a-z_]*\)(.*/\1/p' "$prefix/include/bireme.h" | sort >declared
[ -s exported ] && cmp exported declared ||
    fail "exported and declared names differ: $(diff exported declared | tr '\n' ' ')"

export PKG_CONFIG_PATH=$libraries/pkgconfig
[ "$(pkg-config --modversion bireme)" = "$version" ] || fail 'pkg-config has another version'
read -ra flags <<<"$(pkg-config --cflags --libs bireme)"
"${cc[@]}" -std=c99 -pedantic -Wall -Wextra -Werror -o uses \
    "$source/tests/trainer/library/uses_bireme.c" "${flags[@]}" \
    -lm -Wl,-rpath,"$libraries" 2>stderr || fail 'the program does not compile'
# find_package finds the moved tree, and refuses another minor version.
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(uses C)
find_package(bireme ${requested} REQUIRED)
add_executable(uses uses_bireme.c)
target_link_libraries(uses PRIVATE bireme::libbireme m)
END
cp "$source/tests/trainer/library/uses_bireme.c" .
# configure_package FOLDER VERSION: configure the project for this version of bireme.
configure_package() {
    "$cmake" -S . -B "$1" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="${cc[0]}" \
        -DCMAKE_C_FLAGS="${cc[*]:1}" -Drequested="$2" >stderr 2>&1
}
configure_package package "$version" || fail 'find_package(bireme) failed'
"$cmake" --build package >stderr 2>&1 || fail 'a program with bireme::libbireme does not compile'
[ -x package/uses ] || fail 'cmake built no program'
! configure_package other 0.999 || fail 'find_package(bireme 0.999) succeeded'

if [ -n "$cxx" ]; then
    echo '#include <bireme.h>' >header.cc
    "$cxx" -pedantic -Wall -Wextra -Werror -fsyntax-only "${flags[0]}" header.cc 2>stderr ||
        fail 'the header is not valid C++'
fi

run_bireme 0 train recipe.yaml
run_bireme 0 inspect run/final --json
cp -r run damaged
echo >damaged/final/model-00000-of-00001.h5
parameters=$(sed -nE 's/.*"parameters": ([0-9]+).*/\1/p' out)
text='The license of a work'
timeout 50 "${one_core[@]}" ./uses "$version" run "$text" >output 2>stderr ||
    fail 'uses_bireme failed'
[ ! -s stderr ] || fail 'the library prints messages'

# check_output NAME TEXT: the program printed this text after this name.
check_output() {
    [ "$2" = "$(sed -n "s/^$1: //p" output)" ] ||
        fail "the library and the command differ in $1: $2; $(cat output)"
}

check_output parameters "$parameters"

# Programs with the library have no leak and no invalid access, with the installed suppressions.
suppressions=$prefix/share/bireme/bireme.supp
if command -v valgrind >/dev/null && [ -z "${TSAN_OPTIONS:-}${ASAN_OPTIONS:-}" ]; then
    sed -n '/^#include <bireme.h>/,/^```$/p' "$source/docs/guide/c_api.md" | sed '/^```$/,$d' |
        sed 's|"runs/mine"|"run"|' >example.c
    "${cc[@]}" -o example example.c "${flags[@]}" -Wl,-rpath,"$libraries" 2>stderr ||
        fail 'the example of docs/guide/c_api.md does not compile'
    timeout 100 valgrind --quiet --leak-check=full --show-leak-kinds=all --error-exitcode=9 \
        --errors-for-leak-kinds=all --suppressions="$suppressions" ./example >out 2>stderr ||
        fail 'valgrind reports an error'
    [ -s out ] || fail 'the example prints nothing'
fi

# The library gives the same texts, log-probabilities and vectors as the commands.
run_bireme 0 generate --checkpoint run --prompt "$text" --temperature 0 --max-new-tokens 9 --no-echo
check_output text "$(cat out)"
run_bireme 0 generate --checkpoint run --prompt "$text" --temperature 0 --max-new-tokens 50 \
    --no-echo
check_output long "$(cat out)"
run_bireme 0 generate --checkpoint run --prompt "$text" --num-beams 3 --max-new-tokens 9 --no-echo
check_output beams "$(cat out)"
echo "$text" >line
run_bireme 0 score --checkpoint run line
check_output log-probability "$(cut -f1 out)"
run_bireme 0 embed --checkpoint run line
check_output vector "$(cut -d' ' -f1-3 out)"
