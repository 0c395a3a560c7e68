# shellcheck shell=bash
# Functions that simulate two hosts with network namespaces and a router between them. The tests
# that break the network source this file. The hosts are named near and far (10.79.2.1). Needs root.
#
# hosts_make sets hosts_options, the options with which mpirun reaches the other host. The test
# calls hosts_remove in its EXIT trap.
hosts_near=bm1-$$ hosts_far=bm2-$$ hosts_router=bmr-$$
hosts_address=10.79.2.1

# hosts_skip REASON: end the test as skipped.
hosts_skip() {
    echo "skipped: $1"
    exit 77
}

# hosts_remove: end the processes in the namespaces and delete the namespaces.
hosts_remove() {
    for space in "$hosts_near" "$hosts_far" "$hosts_router"; do
        # shellcheck disable=SC2046
        kill -KILL $(ip netns pids "$space" 2>/dev/null) 2>/dev/null
        ip netns del "$space" 2>/dev/null
    done
}

# hosts_connect SPACE INTERFACE NET: connect a namespace with the router by the network 10.79.NET.0.
hosts_connect() {
    ip link add "$2" netns "$1" type veth peer name "r$3" netns "$hosts_router" || return 1
    ip -n "$1" addr add "10.79.$3.1/24" dev "$2" &&
        ip -n "$hosts_router" addr add "10.79.$3.254/24" dev "r$3"
    ip -n "$1" link set "$2" up && ip -n "$hosts_router" link set "r$3" up &&
        ip -n "$1" link set lo up
    ip -n "$1" route add default via "10.79.$3.254"
}

# hosts_forward 0|1: let the router drop packets silently (0) or forward them (1).
hosts_forward() {
    ip netns exec "$hosts_router" sysctl -qw net.ipv4.ip_forward="$1"
}

# hosts_make FOLDER: create the hosts, and write the agent that replaces ssh for mpirun to FOLDER.
# After an error, mpirun kills the agent. As with ssh, the daemon of the other host is a separate
# process.
hosts_make() {
    [ "${BIREME_LONG:-0}" = 1 ] || hosts_skip 'takes 25 s: set BIREME_LONG=1 to run it'
    [ "$(id -u)" = 0 ] || hosts_skip 'namespaces need root'
    command -v ip >/dev/null || hosts_skip 'no ip (package iproute2)'
    ip netns add "$hosts_near" 2>/dev/null ||
        hosts_skip 'this machine does not allow network namespaces'
    { ip netns add "$hosts_far" && ip netns add "$hosts_router"; } ||
        hosts_skip 'cannot create network namespaces'
    { hosts_connect "$hosts_near" v1 1 && hosts_connect "$hosts_far" v2 2; } ||
        hosts_skip 'cannot create virtual network interfaces'
    hosts_forward 1 || hosts_skip 'the namespace cannot forward packets'
    cat >"$1/rsh" <<SHELL
#!/bin/bash
shift
setsid --wait ip netns exec $hosts_far unshare --uts \\
    bash -c 'hostname far; exec bash -c "\$1"' _ "\$*"
SHELL
    chmod +x "$1/rsh"
    hosts_options=(--mpirun --mca --mpirun plm_rsh_agent --mpirun "$1/rsh"
        --mpirun --mca --mpirun plm --mpirun rsh
        --network 10.79.0.0/16
        --mpirun --mca --mpirun btl --mpirun tcp,vader,self
        --mpirun --mca --mpirun pml --mpirun ob1)
}

# hosts_run COMMAND...: run a command on the host near.
hosts_run() {
    ip netns exec "$hosts_near" unshare --uts bash -c 'hostname near; exec "$@"' _ "$@"
}
