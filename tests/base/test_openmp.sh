#!/bin/bash
# The program executes itself once more with GOMP_SPINCOUNT=2000, unless the user has chosen how
# OpenMP threads wait. Process id, name, arguments and open files remain.
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
unset OMP_WAIT_POLICY GOMP_SPINCOUNT BIREME_SPINCOUNT_SET
mkfifo input

# start_encode VARIABLE=VALUE...: let `tokenizer encode` wait for its standard input, and print its
# environment, its name and its arguments to the files `environment`, `name` and `arguments`.
start_encode() {
    env "$@" "$program" tokenizer encode --tokenizer tokenizer <input >out 2>stderr &
    local pid=$!
    exec 3>input
    for _ in {1..250}; do # until main reads standard input: the system call read, descriptor 0
        grep -qE '^(0|63) 0x0 ' "/proc/$pid/syscall" 2>/dev/null && break
        sleep 0.02
    done
    tr '\0' '\n' <"/proc/$pid/environ" >environment
    cat "/proc/$pid/comm" >name
    tr '\0' '\n' <"/proc/$pid/cmdline" >arguments
    echo 'the' >&3
    exec 3>&-
    wait "$pid" || fail 'tokenizer encode'
    [ -s out ] || fail 'no output'
    grep -qx bireme name || fail "the process has the name $(cat name)"
}

start_encode A=1
grep -qx 'GOMP_SPINCOUNT=2000' environment || fail 'GOMP_SPINCOUNT is not set'
grep -qx 'A=1' environment || fail 'the environment is lost'
[ "$(paste -sd' ' arguments)" = "$program tokenizer encode --tokenizer tokenizer" ] ||
    fail "other arguments: $(cat arguments)"

for setting in GOMP_SPINCOUNT=7 OMP_WAIT_POLICY=active BIREME_SPINCOUNT_SET=1; do
    start_encode "$setting"
    grep -qx "$setting" environment || fail "$setting is lost"
    ! grep -qx 'GOMP_SPINCOUNT=2000' environment || fail "GOMP_SPINCOUNT is set next to $setting"
done

# The program is the argument of another program: a second execution would execute that one.
loader=$(LC_ALL=C readelf -l "$program" 2>/dev/null |
    sed -n 's/.*Requesting program interpreter: \(.*\)]/\1/p')
if [ -n "$loader" ] && [ -z "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then
    "$loader" "$program" --version >out 2>stderr || fail "$loader cannot execute the program"
    grep -q '^bireme ' out || fail "no version of $loader bireme"
else
    echo 'not checked: an explicit loader; there is no readelf, or a sanitizer is in use'
fi

run_bireme 64 'two  words'
expect_error "'two  words'"
