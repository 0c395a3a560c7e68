#!/usr/bin/env bash
# Proves that a bare Debian machine needs nothing but the README's commands: makes a minimal root with
# debootstrap in a temporary folder, clones this repository's last commit into it and runs them there.
#
#   scripts/test_fresh.sh bookworm|trixie [--quickstart] [--test] [--keep]
#
# Without --quickstart or --test both are run: scripts/quickstart.sh with QUICKSTART_MINUTES minutes
# of training (half a minute where it is not set) and scripts/test.sh, each a second time to
# see that it is quick then. --keep leaves the root folder behind and names it.
# Exit code 77: skipped, with the reason, where there is no root, no debootstrap, or mounting is not
# permitted. Packages come from the mirror that this machine's apt is set up with, with its proxies and
# keys. Mounts live in a mount namespace of their own and processes in a process namespace: both
# are gone when the script ends, however it ends.
set -euo pipefail
cd "$(dirname "$0")/.."

say() {
    echo "test_fresh: $*"
}

skip() {
    say "skipped: $*"
    exit 77
}

usage() {
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
}

# indextarget FORMAT: a field of the host's own main archive, as apt's configuration has it.
indextarget() {
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt-get indextargets --format "\$(CODENAME) \$(RELEASE) \$(COMPONENT) $1" 'Created-By: Packages' |
        awk -v codename="$codename" '($1 == codename || $2 == codename) && $3 == "main" { print $4; exit }'
}

# signing_key: the file that apt's sources name for the mirror's signature; nothing where they name none.
signing_key() {
    local source
    for source in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        if grep -qsF "${mirror%/}" "$source"; then
            sed -n 's/^Signed-By: *//p; s/.*signed-by=\([^] ]*\).*/\1/p' "$source" | head -n 1
            return
        fi
    done
}

make_root() {
    local script=() keyring=() key
    if [ ! -e "/usr/share/debootstrap/scripts/$suite" ]; then
        script=(/usr/share/debootstrap/scripts/sid) # an older debootstrap: all newer suites are alike
    fi
    key=$(signing_key)
    if [ -f "$key" ]; then
        keyring=("--keyring=$key")
    fi
    debootstrap --variant=minbase "${keyring[@]}" "$suite" "$root" "$mirror" "${script[@]}" \
        >"$work/debootstrap.log" 2>&1 || {
        tail -n 20 "$work/debootstrap.log"
        say "debootstrap failed"
        exit 1
    }
}

# The new root reaches the network as the host does: apt's proxy, certificate and date settings, keys and names.
carry_over() {
    apt-config dump | grep -iE '^Acquire::(Check-|Retries|[a-z]+::(Proxy|Timeout|CaInfo|CaPath|Verify))' \
        >"$root/etc/apt/apt.conf.d/00host" || true
    cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
    cp -L /etc/hosts "$root/etc/hosts" 2>/dev/null || true
    if [ -d /etc/ssl/certs ]; then
        mkdir -p "$root/etc/ssl/certs"
        cp -rL /etc/ssl/certs/. "$root/etc/ssl/certs/" 2>/dev/null || true
    fi
    local key
    key=$(signing_key)
    if [ -f "$key" ] && [ ! -e "$root/usr/share/keyrings/$(basename "$key")" ]; then
        cp "$key" "$root/etc/apt/trusted.gpg.d/"
    fi
}

# inside COMMAND...: in the new root, in the clone, with a newcomer's environment.
inside() {
    unshare --mount --pid --fork --kill-child --propagation private bash -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs -o mode=1777 shm "$root/dev/shm" 2>/dev/null || true
        # Process numbers begin again at 1, and mpirun stops at a folder of the same number from before.
        rm -rf "${root:?}"/tmp/*
        exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
    ' _ "$root" "${carried[@]}" bash -euc 'cd /bireme && exec "$@"' _ "$@"
}

# timed NAME COMMAND...
timed() {
    local name=$1 start=$SECONDS code=0
    shift
    say "$suite: $name"
    inside "$@" </dev/null || code=$?
    say "$suite: $name took $((SECONDS - start)) s, exit code $code"
    if [ "$code" -ne 0 ]; then
        exit 1
    fi
}

suite=${1:-}
case $suite in
bookworm | trixie) shift ;;
*) usage ;;
esac
quickstart=false tests=false keep=false
for argument in "$@"; do
    case $argument in
    --quickstart) quickstart=true ;;
    --test) tests=true ;;
    --keep) keep=true ;;
    *) usage ;;
    esac
done
if ! $quickstart && ! $tests; then
    quickstart=true tests=true
fi

[ "$(id -u)" -eq 0 ] || skip "needs root, for debootstrap and chroot"
command -v debootstrap >/dev/null || skip "needs the package debootstrap"
command -v git >/dev/null || skip "needs git, to clone this repository"
unshare --mount --pid --fork true 2>/dev/null || skip "making mount and process namespaces is not permitted"
mirror=$(indextarget '$(REPO_URI)')
[ -n "$mirror" ] || skip "apt is set up without a Debian mirror"

work=$(mktemp -d "${TMPDIR:-/tmp}/bireme-fresh.XXXXXX")
root=$work/root
leave() {
    if $keep; then
        say "left behind: $work"
    else
        rm -rf --one-file-system "$work"
    fi
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

carried=("QUICKSTART_MINUTES=${QUICKSTART_MINUTES:-0.5}" "BIREME_WERROR=ON")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    if [ -n "${!name:-}" ]; then
        carried+=("$name=${!name}")
    fi
done

start=$SECONDS
make_root
carry_over
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    say "warning: changes that are not committed are not tested"
fi
git clone -q --no-hardlinks . "$root/bireme"
say "$suite: a bare root and a clone of $(git rev-parse --short HEAD) took $((SECONDS - start)) s"
if $quickstart; then
    timed "scripts/quickstart.sh" ./scripts/quickstart.sh
    timed "scripts/quickstart.sh again" ./scripts/quickstart.sh
fi
if $tests; then
    timed "scripts/test.sh" ./scripts/test.sh
    timed "scripts/test.sh again" ./scripts/test.sh
fi
say "$suite: passed in $((SECONDS - start)) s"
