#!/bin/bash
# scripts/plot_loss.sh: equal pictures with each installed awk, resumed runs, wrong input.
set -euo pipefail
plot=${BIREME_SOURCE_DIR:?}/scripts/plot_loss.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
    echo "failed: $1" >&2
    exit 1
}

mkdir run
cat >run/metrics.jsonl <<END_OF_METRICS
{"event":"start","step":0,"parameters":10}
{"event":"evaluate","step":0,"loss":4.0,"tokens":5}
{"event":"train","step":1,"loss":3.75,"learning_rate":0.1}
{"event":"train","step":2,"loss":9.5,"learning_rate":0.1}
{"event":"resume","step":1}
{"event":"train","step":2,"loss":3.5,"learning_rate":0.1}
{"event":"train","step":3,"loss":null,"learning_rate":0.1}
{"event": "evaluate", "step": 4, "loss": 3.25e0}
END_OF_METRICS

"$plot" run >first.svg
[ "$(grep -c '<polyline' first.svg)" = 2 ] || fail 'not two curves'
[ "$(grep -c '<circle' first.svg)" = 2 ] || fail 'not two evaluations'
grep -q 'training (last 3.500)' first.svg || fail 'the replaced loss of a resumed run is drawn'
grep -q 'validation (last 3.250)' first.svg || fail "the last validation loss is missing"
! grep -qi nan first.svg || fail 'a coordinate is not a number'
"$plot" run/metrics.jsonl | cmp - first.svg ||
    fail 'the file and the folder give different pictures'

for awk in mawk gawk original-awk 'busybox awk'; do
    command -v "${awk%% *}" >/dev/null || continue
    printf '#!/bin/sh\nexec %s "$@"\n' "$awk" >./awk
    chmod +x awk
    PATH=$folder:$PATH "$plot" run | cmp - first.svg || fail "$awk draws another picture"
done
rm -f awk

expect_error() { # CODE ARGUMENT...: the script prints an error and ends with this code
    local expected=$1 code=0
    shift
    "$plot" "$@" >out 2>errors || code=$?
    [[ $code = "$expected" && -s errors ]] ||
        fail "plot_loss.sh $*: code $code instead of $expected"
}
expect_error 64
expect_error 66 nowhere
: >empty.jsonl
expect_error 65 empty.jsonl
echo '{"event":"train","step":1,"loss":2.5}' >single.jsonl
"$plot" single.jsonl | grep -q 'training (last 2.500)' || fail "a single loss is not drawn"
echo "plot_loss.sh: passed"
