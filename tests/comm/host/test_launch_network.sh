#!/bin/bash
# A job on one machine, started with scripts/launch_mpirun.sh, cannot be reached from the network:
# each socket on which its processes listen is bound to the loopback interface, or is in a network
# namespace that has only this interface.
#
#   test_launch_network.sh PROGRAM
#
# PROGRAM is the program of test_fault.c.
# ctest: name comm_launch_network
# ctest: targets test_program_comm_fault_agree_one
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:?}/tests/comm/host/launch_job.sh"
outputs+=(sockets)
token=network-$$

# has_only_loopback PROCESS: whether the namespace of the process has no other local address.
has_only_loopback() {
    ! awk '/host LOCAL/ { print address } { address = $2 }' "/proc/$1/net/fib_trie" 2>/dev/null |
        grep -qv '^127\.' && ! grep -qsv ' lo$' "/proc/$1/net/if_inet6"
}

# list_sockets PROCESS: print "process protocol address:port" of its listening TCP sockets and of
# its UDP sockets, with the addresses of /proc/net in hexadecimal.
list_sockets() {
    local file inode protocol
    for file in "/proc/$1/fd/"*; do
        inode=$(readlink "$file")
        [[ $inode == socket:* ]] || continue
        inode=${inode//[^0-9]/}
        for protocol in tcp tcp6 udp udp6; do
            awk -v inode="$inode" -v name="$1 $protocol" \
                '$10 == inode && ($4 == "0A" || name ~ /udp/) { print name, $2 }' \
                "/proc/$1/net/$protocol" 2>/dev/null
        done
    done
}

# list_reachable OPTION...: start a job, write its sockets to `sockets`, and print those that other
# machines can reach.
list_reachable() {
    local job processes process
    : >"$folder/output"
    "$launch" -n 2 "$@" "$program" child until_stopped $token >"$folder/output" 2>&1 &
    job=$!
    wait_for running
    mapfile -t processes < <(pgrep -f "child until_stopped $token\$")
    [ ${#processes[@]} -ge 3 ] || fail "${#processes[@]} processes of the job instead of 3 or more"
    for process in "${processes[@]}"; do
        list_sockets "$process"
    done >"$folder/sockets"
    while read -r process _ address; do
        [[ $address == *7F:* ]] || [[ $address == 00000000000000000000000001000000:* ]] ||
            has_only_loopback "$process" || echo "$process $address"
    done <"$folder/sockets" >"$folder/reachable"
    kill -USR1 $job
    wait $job
    code=$?
    [ $code = 75 ] || fail "exit code $code instead of 75"
}

list_reachable
if grep -q 'network namespaces are not permitted' "$folder/output"; then
    echo 'skipped: network namespaces are not permitted'
    exit 77
fi
[ -s "$folder/sockets" ] || fail 'no socket found: the test does not see them'
[ ! -s "$folder/reachable" ] || fail "reachable from other machines: $(cat "$folder/reachable")"
if ! has_only_loopback $$; then
    list_reachable --no-private-network
    [ -s "$folder/reachable" ] || fail 'without a private network no socket is reachable'
fi

# Without permission for a namespace, the job starts with the networks of the host.
mkdir "$folder/bin"
printf '#!/bin/sh\nexit 1\n' >"$folder/bin/unshare"
chmod +x "$folder/bin/unshare"
(PATH=$folder/bin:$PATH list_reachable) || exit 1
grep -q 'network namespaces are not permitted' "$folder/output" || fail 'unshare was not used'

# The networks that a user selects are used.
for option in '--network lo' '--host localhost:2' \
    '--mpirun --mca --mpirun btl --mpirun self,tcp'; do
    # shellcheck disable=SC2086
    "$launch" --dry-run -n 2 $option "$program" >"$folder/output" || fail "$option: $?"
    ! grep -qE 'unshare|tcp_if_include lo --mca btl_tcp_if_include lo.*_include lo' \
        "$folder/output" || fail "$option: the launcher selects another network"
done
"$launch" --dry-run -n 2 "$program" >"$folder/output"
grep -q '^unshare .*--net ' "$folder/output" || fail 'the command does not contain unshare --net'
