#!/bin/bash
# Two hosts made of network namespaces with a router between them: the job spans them, outlives a short
# outage, and ends soon after a silent cut or the death of the other host's daemon, on both sides.
# usage: test_network.sh PROGRAM, the program of test_fault.c. Needs root; skipped (77) elsewhere.
set -u
program=$1
launch=$(realpath "${BIREME_SOURCE_DIR:-.}/scripts/launch_mpirun.sh")
folder=$(mktemp -d)
one=bm1-$$ two=bm2-$$ middle=bmr-$$
token=network-$$

skip() {
    echo "skipped: $1"
    exit 77
}

clean() {
    for space in "$one" "$two" "$middle"; do
        ip netns del "$space" 2>/dev/null
    done
    rm -rf "$folder"
}
trap clean EXIT

[ "${BIREME_LONG:-0}" = 1 ] || skip 'takes 25 s: runs where BIREME_LONG=1'
[ "$(id -u)" = 0 ] || skip 'namespaces need root'
command -v ip >/dev/null || skip 'no ip (package iproute2)'
ip netns add "$one" 2>/dev/null || skip 'this machine lets nobody make network namespaces'
{ ip netns add "$two" && ip netns add "$middle"; } || skip 'network namespaces cannot be made'
wire() { # SPACE INTERFACE NET
    ip link add "$2" netns "$1" type veth peer name "r$3" netns "$middle" || return 1
    ip -n "$1" addr add "10.79.$3.1/24" dev "$2" && ip -n "$middle" addr add "10.79.$3.254/24" dev "r$3"
    ip -n "$1" link set "$2" up && ip -n "$middle" link set "r$3" up && ip -n "$1" link set lo up
    ip -n "$1" route add default via "10.79.$3.254"
}
{ wire "$one" v1 1 && wire "$two" v2 2; } || skip 'virtual network cards cannot be made'
forward() {
    ip netns exec "$middle" sysctl -qw net.ipv4.ip_forward="$1"
}
forward 1 || skip 'the namespace cannot route'

# mpirun's way to the other host, and a place to stand on for itself
cat >"$folder/rsh" <<SHELL
#!/bin/bash
shift
exec ip netns exec $two unshare --uts bash -c 'hostname far; exec bash -c "\$1"' _ "\$*"
SHELL
chmod +x "$folder/rsh"

start() { # MODE
    ip netns exec "$one" unshare --uts bash -c 'hostname near; exec "$@"' _ \
        "$launch" -n 4 --host near:2,10.79.2.1:2 --no-bind \
        --mpirun --mca --mpirun plm_rsh_agent --mpirun "$folder/rsh" \
        --mpirun --mca --mpirun plm --mpirun rsh \
        --mpirun --mca --mpirun oob_tcp_if_include --mpirun 10.79.0.0/16 \
        --mpirun --mca --mpirun btl_tcp_if_include --mpirun 10.79.0.0/16 \
        --mpirun --mca --mpirun btl --mpirun tcp,vader,self --mpirun --mca --mpirun pml --mpirun ob1 \
        "$program" child "$1" $token >"$folder/told" 2>&1 &
    job=$!
    for ((i = 0; i < 100; i++)); do
        grep -q 'under way, 2 of 4' "$folder/told" && return
        sleep 0.1
    done
    echo 'the job does not start over two hosts:' && cat "$folder/told"
    kill -KILL "$job"
    exit 1
}

left() {
    pgrep -f "child .* $token\$" | wc -l
}

end() { # WHAT CODE SECONDS TEXT
    local begin=$SECONDS code
    for ((i = 0; i < $3 * 10; i++)); do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    kill -0 "$job" 2>/dev/null && echo "$1: still there after $3 s" && cat "$folder/told" && exit 1
    wait "$job"
    code=$?
    echo "$1: code $code after $((SECONDS - begin)) s"
    if [ "$code" != "$2" ] || ! grep -q "$4" "$folder/told"; then
        cat "$folder/told"
        exit 1
    fi
    for ((i = 0; i < 50; i++)); do
        [ "$(left)" = 0 ] && return
        sleep 0.1
    done
    echo "$1: $(left) ranks are left" && exit 1
}

start steps
forward 0
sleep 3
forward 1
end 'an outage of 3 s' 0 20 finished

start steps
forward 0
end 'a silent cut' 71 40 E-RANK-LOST
forward 1

start steps
daemon=
for ((i = 0; i < 50; i++)); do
    for process in $(ip netns pids "$two"); do
        [ "$(cat "/proc/$process/comm" 2>/dev/null)" != orted ] || daemon=$process
    done
    [ -z "$daemon" ] || break
    sleep 0.1
done
kill -KILL "$daemon"
end 'a dead daemon' 71 20 E-RANK-LOST
