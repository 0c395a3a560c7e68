# shellcheck shell=bash disable=SC2154
# Functions of scripts/gpu_check.sh, which sources this file: the state of an item, and check.json,
# table.txt and results.tgz. They use the variables of gpu_check.sh: the folders $out, $items_dir
# and $folder (of the item), the results $items and $table, and the count $failed.

# print_json_string STRING: print a JSON string.
print_json_string() {
    printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\010\013-\037' | tr '\t\n' '  ' |
        sed 's/\\/\\\\/g; s/"/\\"/g')"
}

# state_of CODE SECONDS: print the state of an item from its exit code.
state_of() {
    case $1 in
    0) echo passed ;;
    69 | 77) echo skipped ;;
    78) echo "not in this version" ;;
    124 | 137) echo failed && echo "exceeded its limit of $2 s" >"$folder/reason" ;;
    143) echo failed && echo "the check was stopped" >"$folder/reason" ;;
    *) echo failed ;;
    esac
}

# write_report: write the results so far to check.json, table.txt and results.tgz.
write_report() {
    cat >"$out/check.json" <<EOF
{"schema":1,"date":"$(date -u +%Y-%m-%dT%H:%M:%SZ)","seconds":$SECONDS,"failed":$failed,"items":[
$items
]}
EOF
    {
        printf '%s' "$table"
        echo "$failed failed, $SECONDS s; $out/check.json"
    } >"$out/table.txt"
    # Large files are data of training runs.
    (cd "$items_dir" && find . -type f -size -1024k) >"$out/.files"
    (cd "$out" && { ls check.json table.txt gemm.plans 2>/dev/null || true; } |
        tar -czf .results.tgz -T - -C "$items_dir" -T .files --transform 's|^\./|items/|') &&
        mv "$out/.results.tgz" "$out/results.tgz"
    rm -f "$out/.files"
}

# add_result NAME WHAT STATE SECONDS: add an item to the results, and write them. On a machine with
# a GPU, a skipped gate is failed: its condition was not checked.
add_result() {
    local name=$1 what=$2 state=$3 seconds=$4 reason data
    reason=$(cat "$folder/reason" 2>/dev/null) data=$(cat "$folder/data.json" 2>/dev/null)
    data=${data:-$(cat "$folder/partial.json" 2>/dev/null)}
    if [ "$state" = skipped ] && [[ $what == gate:* ]] &&
        timeout 10 nvidia-smi -L 2>/dev/null | grep . >/dev/null; then
        state=failed reason="skipped despite a GPU: $reason"
    fi
    if [ "$state" = failed ]; then
        failed=$((failed + 1))
        reason=${reason:-$(tail -n 1 "$folder/log")}
    fi
    if [ -n "$data" ] && command -v "$PYTHON" >/dev/null &&
        ! "$PYTHON" -m json.tool <<<"$data" >/dev/null 2>&1; then
        data= reason="$reason (the output is not JSON: $folder/data.json)"
    fi
    if [ "$state" = passed ] && [[ $what != gate:* ]]; then
        state=measured
    fi
    items+="${items:+,
}{\"name\":\"$name\",\"what\":$(print_json_string "$what"),\"state\":\"$state\","
    items+="\"reason\":$(print_json_string "$reason"),\"seconds\":$seconds,"
    items+="\"data\":${data:-null}}"
    table+=$(printf '%-24s %-20s %4d s  %s' "$name" "$state" "$seconds" \
        "$(tail -n 1 "$folder/summary" 2>/dev/null)${reason:+ $reason}" | cut -c1-300)$'\n'
    write_report
}
