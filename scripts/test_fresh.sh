#!/usr/bin/env bash
# Tests that the commands of the README work on a bare Debian machine. The script makes a minimal
# root folder with debootstrap, clones the last commit of this repository into it and runs the
# commands there.
#
#   scripts/test_fresh.sh bookworm|trixie [--quickstart] [--test] [--keep]
#   scripts/test_fresh.sh bookworm|trixie --package FILE|deb [--keep]
#   scripts/test_fresh.sh bookworm --containers FILE [--keep]
#
#   --quickstart   run scripts/quickstart.sh with QUICKSTART_MINUTES minutes of training (default:
#                  0.5), and a second time, which skips the completed stages
#   --test         run scripts/test.sh twice
#   --package FILE install a package of scripts/package.sh (*.deb, *.tar.gz, *.whl) in the root
#                  instead of the clone, and train and generate with it. "deb" instead of FILE first
#                  builds the Debian package of the last commit in another root, checks it with
#                  lintian and writes it to build-package/
#   --containers FILE
#                  run the commands of scripts/packaging/containers/Dockerfile and of bireme.def in
#                  a root each, with this Debian package, and train and generate through their entry
#                  points
#   --keep         do not remove the root folder at the end, and print its path
#
# The default is --quickstart --test. Packages come from the mirror of this machine's apt, with its
# proxies and keys. Mounts and processes are in separate namespaces and end with the script. Exit
# code 77: skipped; the script prints the reason, for example that the user is not root.
set -euo pipefail
cd "$(dirname "$0")/.."

print_message() {
    echo "test_fresh: $*"
}

skip() {
    print_message "skipped: $*"
    exit 77
}

usage() {
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
}

# print_archive_field FORMAT: print a field of the main archive in the configuration of apt.
print_archive_field() {
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt-get indextargets --format "\$(CODENAME) \$(RELEASE) \$(COMPONENT) $1" \
        'Created-By: Packages' |
        awk -v codename="$codename" '
            ($1 == codename || $2 == codename) && $3 == "main" { print $4; exit }'
}

# print_signing_key: print the path of the key of the mirror if the sources of apt contain one.
print_signing_key() {
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
        script=(/usr/share/debootstrap/scripts/sid) # an older debootstrap: new suites are like sid
    fi
    key=$(print_signing_key)
    if [ -f "$key" ]; then
        keyring=("--keyring=$key")
    fi
    debootstrap --variant=minbase "${keyring[@]}" "$suite" "$root" "$mirror" "${script[@]}" \
        >"$work/debootstrap.log" 2>&1 || {
        tail -n 20 "$work/debootstrap.log"
        print_message "debootstrap failed"
        exit 1
    }
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe" # faster; the root is temporary
}

# copy_network_settings: copy the settings of apt, the certificates, keys and host names, with which
# the new root uses the network like this machine.
copy_network_settings() {
    local settings='^Acquire::(Check-|Retries|[a-z]+::(Proxy|Timeout|CaInfo|CaPath|Verify))'
    apt-config dump | grep -iE "$settings" >"$root/etc/apt/apt.conf.d/00host" || true
    cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
    cp -L /etc/hosts "$root/etc/hosts" 2>/dev/null || true
    if [ -d /etc/ssl/certs ]; then
        mkdir -p "$root/etc/ssl/certs"
        cp -rL /etc/ssl/certs/. "$root/etc/ssl/certs/" 2>/dev/null || true
    fi
    local key
    key=$(print_signing_key)
    if [ -f "$key" ] && [ ! -e "$root/usr/share/keyrings/$(basename "$key")" ]; then
        cp "$key" "$root/etc/apt/trusted.gpg.d/"
    fi
}

# run_inside COMMAND...: run a command in the clone in the new root, with an empty environment.
run_inside() {
    unshare --mount --pid --fork --kill-child --propagation private bash -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs -o mode=1777 shm "$root/dev/shm" 2>/dev/null || true
        # Process numbers begin at 1 again, and mpirun fails if a folder with its number exists.
        rm -rf "${root:?}"/tmp/*
        exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
    ' _ "$root" "${environment[@]}" bash -euc 'cd /bireme && exec "$@"' _ "$@"
}

# run_timed NAME COMMAND...: run a command in the new root and print its duration.
run_timed() {
    local name=$1 start=$SECONDS code=0
    shift
    print_message "$suite: $name"
    run_inside "$@" </dev/null || code=$?
    print_message "$suite: $name took $((SECONDS - start)) s, exit code $code"
    if [ "$code" -ne 0 ]; then
        exit 1
    fi
}

# write_smoke_run FOLDER: write smoke_run.sh, which trains and uses a small model. The scripts below
# source it.
write_smoke_run() {
    cat >"$1/smoke_run.sh" <<'END'
for i in $(seq 200); do echo "line $i of a text"; done >text
bireme --version
bireme tokenizer train --type char --input text --output tokenizer
bireme prepare --tokenizer tokenizer --input text --output data
cat >recipe.yaml <<'YAML'
objective: clm
run_dir: run
model: {num_layers: 1, hidden_size: 16, num_heads: 2, max_position_embeddings: 32}
data: {tokenizer: tokenizer, train: data/train-*.h5, sequence_length: 32}
batch: {global_size: 4, micro_size: 2}
train: {max_steps: 3}
YAML
bireme plan recipe.yaml
bireme train recipe.yaml
[ "$(bireme generate --checkpoint run --prompt line --no-echo --max-new-tokens 5 | wc -c)" = 6 ]
END
}

# write_package_test: write a script that installs the package in its folder and uses it.
write_package_test() {
    write_smoke_run "$root/bireme"
    cat >"$root/bireme/test_package.sh" <<'END'
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/opt/bireme/bin:$PATH
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p /opt/bireme
case $(echo bireme[-_]*) in
*.deb)
    apt-get update -q
    apt-get install -q -y --no-install-recommends man-db bash-completion
    apt-get install -q -y --no-install-recommends ./bireme_*.deb
    [ -f /usr/share/man/man1/bireme-train.1.gz ]
    man bireme-train | grep -q '^ *bireme-train - '
    # The function of complete -D loads the completion of a command and returns 124.
    bash -c '. /usr/share/bash-completion/bash_completion
        $(complete -p -D | sed "s/.* -F \([^ ]*\).*/\1/") bireme || [ $? = 124 ]
        complete -p bireme'
    ;;
*.whl)
    apt-get update -q
    apt-get install -q -y --no-install-recommends python3-venv python3-numpy
    python3 -m venv --system-site-packages /opt/bireme
    pip install --no-deps ./bireme-*.whl
    ;;
*) tar -xzf bireme-*.tar.gz --strip-components 1 -C /opt/bireme ;;
esac
. ./smoke_run.sh
case $(echo bireme[-_]*) in
*.deb)
    apt-get install -q -y --no-install-recommends openmpi-bin
    mpirun --oversubscribe -np 2 bireme train recipe.yaml run_dir=ranks
    bireme inspect ranks
    apt-get purge -q -y bireme
    # Except for this folder, the empty folder in /opt and pages that `man` stored.
    if find / -xdev \( -path /bireme -o -path /opt/bireme -o -path /var/cache/man \) -prune \
        -o -name '*bireme*' -print | grep .; then
        echo 'the removed package leaves these files'
        exit 1
    fi
    ;;
esac
END
}

# write_image_build FILE: write a script that runs the commands of a Dockerfile or of an Apptainer
# definition in this root, and writes /image/run, the command that its containers run.
write_image_build() {
    mkdir -p "$root/image"
    case $1 in
    */Dockerfile)
        # Joins the lines of an instruction, and translates the instructions of this file.
        sed -e ':a' -e '/\\$/N' -e 's/\\\n//' -e 'ta' "$1" | awk '
            /^#/ || /^$/ || /^FROM / { next }
            sub(/^COPY /, "") { print "cp /image/" $0; next }
            sub(/^RUN /, "") { print "sh -c \047" $0 "\047"; next }
            sub(/^ENV /, "") { print "export " $0; print "echo export " $0 " >>/image/run"; next }
            sub(/^WORKDIR /, "") { print "mkdir -p " $0
                print "echo cd " $0 " >>/image/run"; next }
            sub(/^ENTRYPOINT \["/, "") { sub(/"\]$/, "")
                print "echo \047exec " $0 " \"$@\"\047 >>/image/run"; next }
            /^CMD \["--help"\]$/ { next }
            { print "unknown instruction: " $0 > "/dev/stderr"; exit 1 }'
        ;;
    *.def)
        awk '
            /^#/ || /^$/ { next }
            /^(Bootstrap|From): / { next }
            /^%/ { section = $1; next }
            section == "%files" { print "cp /image/" $1 " " $2; next }
            section == "%post" { print; next }
            section == "%runscript" { gsub(/\047/, "")
                print "echo \047" $0 "\047 >>/image/run"; next }
            { print "unknown section: " section > "/dev/stderr"; exit 1 }' "$1"
        ;;
    esac >"$root/image/commands"
    cp "$package" "$root/image/"
    cat >"$root/image/build.sh" <<'END'
set -eu
export DEBIAN_FRONTEND=noninteractive
echo 'set -eu' >/image/run
. /image/commands
[ -z "$(ls /var/lib/apt/lists)" ] || { echo 'lists of apt remain in the image'; exit 1; }
[ -z "$(ls /tmp/bireme_* 2>/dev/null)" ] || { echo 'the package remains in the image'; exit 1; }
END
}

# write_image_use: write a script that uses a container through its command.
write_image_use() {
    write_smoke_run "$root/image"
    cat >"$root/image/use.sh" <<'END'
set -eu
mkdir -p /work
cd /work
bireme() {
    sh /image/run "$@"
}
bireme --help | grep -q '^usage: bireme'
. /image/smoke_run.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun --oversubscribe -np 2 sh /image/run train recipe.yaml run_dir=ranks
bireme inspect ranks
END
}

# test_containers: run the commands of both files in a root each.
test_containers() {
    local file
    for file in scripts/packaging/containers/Dockerfile scripts/packaging/containers/bireme.def; do
        grep -qE "^(FROM|From:) debian:$suite-slim\$" "$file" || {
            print_message "$file is for another Debian release than $suite"
            exit 1
        }
        root=$work/$(basename "$file")
        make_root
        copy_network_settings
        mkdir "$root/bireme"
        write_image_build "$file"
        write_image_use
        run_timed "the commands of $file" sh /image/build.sh
        run_timed "the container of $file" sh /image/use.sh
        $keep || rm -rf --one-file-system "$root"
    done
}

# build_deb: build the Debian package in another root, and set the variable `package` to its path.
build_deb() {
    root=$work/builder
    make_root
    copy_network_settings
    git clone -q --no-hardlinks . "$root/bireme"
    run_timed "scripts/package.sh deb" bash -euc '
        export DEBIAN_FRONTEND=noninteractive
        ./scripts/setup.sh
        apt-get install -q -y --no-install-recommends dpkg-dev file lintian
        ./scripts/package.sh deb
        lintian --allow-root --fail-on error build-package/*.deb'
    mkdir -p build-package
    package=build-package/$(cd "$root/bireme/build-package" && echo bireme_*.deb)
    cp "$root/bireme/build-package/"bireme_*.deb build-package/
    rm -rf --one-file-system "$root"
    root=$work/root
}

suite=${1:-}
case $suite in
bookworm | trixie) shift ;;
*) usage ;;
esac
quickstart=false tests=false keep=false package='' containers=false
while [ $# -gt 0 ]; do
    case $1 in
    --quickstart) quickstart=true ;;
    --test) tests=true ;;
    --containers)
        package=${2:-}
        [ -f "$package" ] || usage
        containers=true
        shift
        ;;
    --keep) keep=true ;;
    --package)
        package=${2:-}
        [ "$package" = deb ] || [ -f "$package" ] || usage
        shift
        ;;
    *) usage ;;
    esac
    shift
done
if ! $quickstart && ! $tests && [ -z "$package" ]; then
    quickstart=true tests=true
fi

[ "$(id -u)" -eq 0 ] || skip "needs root, for debootstrap and chroot"
command -v debootstrap >/dev/null || skip "needs the package debootstrap"
command -v git >/dev/null || skip "needs git, to clone this repository"
unshare --mount --pid --fork true 2>/dev/null ||
    skip "making mount and process namespaces is not permitted"
# shellcheck disable=SC2016 # apt expands this
mirror=$(print_archive_field '$(REPO_URI)')
[ -n "$mirror" ] || skip "the configuration of apt contains no Debian mirror"

work=$(mktemp -d "${TMPDIR:-/tmp}/bireme-fresh.XXXXXX")
root=$work/root
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    if $keep; then
        print_message "kept: $work"
    else
        rm -rf --one-file-system "$work"
    fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

environment=("QUICKSTART_MINUTES=${QUICKSTART_MINUTES:-0.5}" "BIREME_WERROR=ON")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    if [ -n "${!name:-}" ]; then
        environment+=("$name=${!name}")
    fi
done

start=$SECONDS
if $containers; then
    test_containers
    print_message "$suite: passed in $((SECONDS - start)) s"
    exit
fi
if [ "$package" = deb ]; then
    build_deb
fi
make_root
copy_network_settings
if [ -n "$package" ]; then
    mkdir "$root/bireme"
    cp "$package" "$root/bireme/"
    write_package_test
    run_timed "$(basename "$package")" bash test_package.sh
    print_message "$suite: passed in $((SECONDS - start)) s"
    exit
fi
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    print_message "warning: uncommitted changes are not tested"
fi
git clone -q --no-hardlinks . "$root/bireme"
print_message "$suite: a root with a clone of $(git rev-parse --short HEAD)" \
    "took $((SECONDS - start)) s"
if $quickstart; then
    run_timed "scripts/quickstart.sh" ./scripts/quickstart.sh
    run_timed "scripts/quickstart.sh again" ./scripts/quickstart.sh
fi
if $tests; then
    run_timed "scripts/test.sh" ./scripts/test.sh
    run_timed "scripts/test.sh again" ./scripts/test.sh
fi
print_message "$suite: passed in $((SECONDS - start)) s"
