#!/bin/bash
# A short run of scripts/soak.sh passes, and a run that ends with other weights fails.
# ctest: timeout 400
set -u
[ "${BIREME_LONG:-0}" = 1 ] || {
    echo 'skipped: takes a minute: set BIREME_LONG=1 to run it'
    exit 77
}
command -v mpirun >/dev/null && "$BIREME_PROGRAM" --version | grep -q '^MPI  *MPI' || {
    echo 'skipped: no mpirun, or built without MPI'
    exit 77
}
soak=$BIREME_SOURCE_DIR/scripts/soak.sh
source "$BIREME_SOURCE_DIR/tests/temporary_folder.sh"

"$soak" 0.5 3 "$folder/report.md" >"$folder/output" 2>&1 || fail "exit code $?"
grep -qE '^- \*\*Main result:\*\* [1-9][0-9]* faults in [1-9][0-9]* runs; nothing was lost' \
    "$folder/report.md" || fail 'the report contains no fault or no run'
grep -qE '^- \*\*Effective training time:\*\* [0-9]+ % of [0-9]+ s' "$folder/report.md" ||
    fail 'the report contains no effective training time'
grep -qE '^\| [a-z-]+ \| [1-9][0-9]* \| [0-9.]+ \| [0-9.]+ \|' "$folder/report.md" ||
    fail 'the report contains no time lost by a fault'

# The disturbed runs use another learning rate.
cat >"$folder/bireme" <<END
#!/bin/bash
[[ " \$* " != *soaked-* ]] || set -- "\$@" optimizer.learning_rate=0.002
exec '$BIREME_PROGRAM' "\$@"
END
chmod +x "$folder/bireme"
BIREME_PROGRAM=$folder/bireme "$soak" --seconds 6 3 "$folder/report.md" >"$folder/output" 2>&1
code=$?
[ $code = 1 ] || fail "exit code $code instead of 1 after a run with other weights"
grep -q 'FAILED: .*/model-.*differs from the run without faults' "$folder/report.md" ||
    fail 'the report does not name the file that differs'

for arguments in '--seconds' '--seconds 1.5' '--minutes' 'soon'; do
    # shellcheck disable=SC2086
    "$soak" $arguments >"$folder/output" 2>&1
    code=$?
    [ $code = 64 ] || fail "soak.sh $arguments: exit code $code instead of 64"
done
"$soak" >"$folder/output" || fail 'no help without arguments'
grep -q '^usage: ' "$folder/output" || fail 'the help has no usage'
