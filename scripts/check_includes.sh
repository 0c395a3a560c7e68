#!/usr/bin/env bash
# Checks the #include lines of the project: the include table below, include cycles, and the folders
# that may include the headers of a vendor. Also checks that docs/design/architecture.md lists the
# folders of the table.
#
#   scripts/check_includes.sh [--self-test] [ROOT]
#
# Prints `file:line: rule` for each violation and exits with code 1. --self-test checks temporary
# trees with one known violation each and fails unless all of them are reported.
set -euo pipefail
set -f # the patterns below are for `case`; they are not expanded to file names

# The include table. A row consists of a folder and the folders or single headers that its files may
# include in addition to the folder itself. An indented line continues a row. A row may contain only
# folders of the rows above it; therefore there is no cycle between folders. The section Folders of
# docs/design/architecture.md has the same rows in the same order (check_page).
newline=$'\n'
table='
base:
base/device: base
base/thread: base
base/input: base
kernels: base base/device
kernels/cpu: base base/device base/thread kernels
kernels/cpu/gemm: base kernels/cpu
kernels/cpu/attention: base kernels/cpu kernels/cpu/gemm/amx.h kernels/cpu/gemm/tiles.h
kernels/cuda: base base/device kernels
kernels/cuda/attention: base kernels/cuda
kernels/cuda/gemm: base kernels/cuda
comm: base
comm/watchdog: base base/thread comm
comm/shared: base comm comm/watchdog
comm/host: base comm comm/shared comm/watchdog
comm/device: base base/device base/thread comm comm/watchdog
comm/bucket: base base/device comm
datasets/rows: base base/input
datasets/shard: base
datasets/sentencepiece: base base/thread
datasets/text: base datasets/sentencepiece
datasets/tokenizer: base base/input base/thread datasets/rows datasets/sentencepiece
  datasets/text
datasets/tokenizer/train: base datasets/rows datasets/text datasets/tokenizer
datasets/chat: base datasets/shard datasets/tokenizer
datasets/loader: base base/device base/thread datasets/shard datasets/tokenizer
datasets/prepare: base base/input base/thread datasets/rows datasets/shard datasets/tokenizer
  datasets/chat
trainer/model: base base/device base/thread kernels/kernels.h kernels/fp8.h comm/comm.h
trainer/recipe: base kernels/rotary.h trainer/model/architecture.h trainer/model/config.h
trainer/logging: base base/device
trainer/logging/report: base base/input trainer/recipe
trainer/objective: base base/device kernels/kernels.h kernels/contrastive_loss.h
  kernels/preference_batch.h kernels/preference_loss.h comm/comm.h datasets/loader/batch.h
trainer/optimizer: base kernels/kernels.h kernels/spike_score.h comm trainer/recipe/recipe.h
  trainer/model trainer/objective
trainer/setup: base base/device base/thread kernels/kernels.h kernels/fp8.h comm
  comm/device/device.h datasets/loader datasets/shard datasets/tokenizer trainer/recipe
  trainer/model trainer/objective
trainer/formats/json: base
trainer/formats/checkpoint: base base/device base/thread kernels/spike_score.h comm/comm.h
  comm/partition.h datasets/shard/h5file.h trainer/formats/json
trainer/formats/weights: base trainer/recipe trainer/model trainer/optimizer trainer/setup
  trainer/formats/checkpoint
trainer/formats/huggingface: base datasets/shard datasets/text datasets/tokenizer datasets/chat
  trainer/recipe trainer/model trainer/setup trainer/formats/json trainer/formats/checkpoint
  trainer/formats/weights
trainer/formats/gguf: base kernels/kernels.h datasets/chat datasets/sentencepiece datasets/text
  datasets/tokenizer trainer/recipe trainer/model trainer/setup trainer/formats/checkpoint
  trainer/formats/huggingface
trainer/inference: base base/device kernels/kernels.h comm/comm.h datasets/loader datasets/tokenizer
  trainer/model trainer/objective
trainer/inference/prediction: base kernels/kernels.h datasets/tokenizer trainer/recipe trainer/model
  trainer/setup trainer/inference
trainer/inference/server: base comm datasets/chat datasets/shard datasets/tokenizer trainer/recipe
  trainer/logging trainer/model trainer/setup trainer/formats/weights trainer/inference
  trainer/inference/prediction
trainer/evaluation: base base/input comm datasets/loader datasets/shard datasets/text
  datasets/tokenizer trainer/recipe trainer/logging trainer/objective trainer/inference
trainer/evaluation/tasks: base kernels/kernels.h comm datasets/rows datasets/text datasets/tokenizer
  trainer/recipe trainer/model trainer/inference
trainer/train/step: base base/device kernels/kernels.h kernels/spike_score.h kernels/spike_terms.h
  comm comm/bucket comm/watchdog datasets/loader trainer/model trainer/objective trainer/optimizer
  trainer/setup trainer/formats/checkpoint trainer/formats/weights
trainer/train: base base/thread kernels/kernels.h comm comm/watchdog datasets/chat
  datasets/loader datasets/shard trainer/recipe trainer/logging trainer/logging/report trainer/model
  trainer/objective trainer/optimizer trainer/setup trainer/formats/checkpoint
  trainer/formats/weights trainer/inference trainer/evaluation trainer/evaluation/tasks
  trainer/train/step
trainer/train/bench: base base/device kernels/kernels.h datasets/loader trainer/recipe trainer/model
  trainer/objective trainer/setup trainer/train trainer/train/step
trainer/train/planner: base base/device base/thread comm comm/shared/space.h datasets/loader
  trainer/recipe trainer/model trainer/objective trainer/optimizer trainer/setup
  trainer/formats/checkpoint trainer/formats/weights trainer/evaluation trainer/train
  trainer/train/step
trainer/library: base datasets/chat datasets/tokenizer trainer/setup trainer/formats/weights
  trainer/inference trainer/inference/prediction
trainer/cli/output: base datasets/prepare trainer/optimizer/schedule.h trainer/train/planner
trainer/cli: base base/input base/thread kernels/kernels.h comm comm/shared/space.h datasets/loader
  datasets/shard datasets/rows datasets/tokenizer datasets/chat datasets/prepare trainer/recipe
  trainer/logging trainer/logging/report trainer/model trainer/objective trainer/optimizer
  trainer/setup trainer/formats/checkpoint trainer/formats/weights trainer/formats/huggingface
  trainer/formats/gguf trainer/inference trainer/inference/prediction trainer/inference/server
  trainer/evaluation trainer/evaluation/tasks trainer/train trainer/train/step
  trainer/train/bench trainer/train/planner trainer/cli/output
trainer: base base/thread kernels/kernels.h comm trainer/cli
'
declare -A may_include=()

# read_table: fill may_include; report a row that contains a folder of a later row.
read_table() {
    local row folder entry known=" " broken=0
    while IFS= read -r row; do
        [ -n "$row" ] || continue
        folder=${row%%:*}
        may_include[$folder]=" $folder ${row#*:} "
        for entry in ${row#*:}; do
            case $known in
            *" ${entry%/*.h} "*) ;;
            *)
                echo "check_includes: row $folder of the table contains $entry," \
                    "which is not in a row above it"
                broken=1
                ;;
            esac
        done
        known+="$folder "
    done <<<"${table//$newline  / }"
    return $broken
}

# check_page PAGE: the section "Folders" of this page has the folders of the table in their order.
check_page() {
    local difference
    [ -e "$1" ] || return 0
    difference=$(diff <(sed -n 's/^\([a-z/]*\):.*/\1/p' <<<"$table") <(sed -n '/^## Folders/,/^## /{
        /^| `\(base\|comm\|datasets\|kernels\|trainer\)\//s/^| `\([a-z/]*\)\/`.*/\1/p; }' "$1")) ||
        {
            echo "$1: the section Folders differs from the include table of" \
                "scripts/check_includes.sh ('<'):"
            grep '^[<>]' <<<"$difference"
            return 1
        }
}

# is_allowed FILE HEADER: whether this file may include this header of the project.
is_allowed() {
    local list=${may_include[${1%/*}]:-}
    case $list in
    *" ${2%/*} "* | *" $2 "*) return 0 ;;
    esac
    case $1 in tests/*) return 0 ;; esac
    return 1
}

# check_cycles ROOT: no header includes itself, directly or through other headers.
check_cycles() {
    local loop
    loop=$(cd "$1" && grep -rE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"' \
        --include='*.h' --include='*.cuh' base datasets kernels comm trainer 2>/dev/null |
        sed -E 's/^([^:]*):[^"]*"([^"]*)".*/\1 \2/' | tsort 2>&1 >/dev/null || true)
    if [ -n "$loop" ]; then
        local header='\(.*\.c\{0,1\}u\{0,1\}h\)'
        echo "$loop" | sed -n "s/^tsort: $header\$/\1: this header is part of an include cycle/p"
        return 1
    fi
}

# is_vendor_allowed FILE HEADER: whether this file may include this header of a vendor. Each vendor
# library is included in one place; all other system headers are allowed.
is_vendor_allowed() {
    local file=$1
    case $2 in
    mpi.h | mpi-ext.h)
        case $file in comm/host/mpi*.c | comm/host/mpi_impl.h) return 0 ;; esac
        ;;
    nccl.h) ;; # comm/device/ opens the library at run time and declares its functions
    cuda* | cublas* | nvtx* | cub/* | cutlass/*)
        case $file in kernels/cuda/*) return 0 ;; esac
        ;;
    hdf5* | H5*)
        case $file in datasets/shard/h5file.h) return 0 ;; esac
        ;;
    zlib*)
        case $file in base/input/*.c | datasets/shard/*.c) return 0 ;; esac
        ;;
    dnnl* | oneapi/* | cblas* | mkl* | openblas* | lapack*)
        case $file in kernels/cpu/gemm/plans.c) return 0 ;; esac
        ;;
    yaml*)
        case $file in trainer/recipe/*.c) return 0 ;; esac
        ;;
    jansson*)
        # Headers for other folders declare struct json_t. Only these include jansson.h.
        case $file in
        datasets/*_impl.h | trainer/*_impl.h | datasets/*.c | trainer/*.c) return 0 ;;
        datasets/rows/jsonl.h | datasets/rows/columns.h | datasets/prepare/rows.h) return 0 ;;
        trainer/recipe/recipe_json.h | trainer/logging/json_text.h) return 0 ;;
        trainer/logging/report/history.h | trainer/formats/huggingface/json_file.h) return 0 ;;
        trainer/cli/*.h) return 0 ;;
        esac
        ;;
    pcre2* | utf8proc*)
        case $file in datasets/tokenizer/*.c | datasets/text/*.c) return 0 ;; esac
        ;;
    microhttpd*)
        case $file in trainer/inference/server/http.c) return 0 ;; esac
        ;;
    openssl/*)
        case $file in base/hash.c) return 0 ;; esac
        ;;
    archive*)
        case $file in base/input/input.c) return 0 ;; esac
        ;;
    protobuf-c/*)
        case $file in
        trainer/logging/tensorboard.c | datasets/sentencepiece/model_file.c) return 0 ;;
        esac
        ;;
    isa-l*)
        case $file in trainer/logging/tensorboard.c) return 0 ;; esac
        ;;
    *) return 0 ;;
    esac
    return 1
}

# check_line FILE LINE TEXT: check one #include line.
check_line() {
    local file=$1 line=$2 text=$3 header
    case $text in
    *\"*\"*)
        header=${text#*\"}
        header=${header%%\"*}
        case $header in
        tests/*)
            case $file in
            tests/*) ;;
            *) echo "$file:$line: no file outside tests/ may include tests ($header)" ;;
            esac
            ;;
        base/* | datasets/* | kernels/* | comm/* | trainer/*)
            if ! is_allowed "$file" "$header"; then
                echo "$file:$line: the include table of scripts/check_includes.sh does not allow" \
                    "$header here"
            fi
            ;;
        build_info.h | chat_page.h) ;; # CMake generates them in the build folder
        tensorboard.pb-c.h)
            case $file in
            trainer/logging/tensorboard.c | tests/*) ;;
            *) echo "$file:$line: $header belongs to trainer/logging/tensorboard.c" ;;
            esac
            ;;
        sentencepiece_model.pb-c.h)
            case $file in
            datasets/sentencepiece/model_file.c | tests/*) ;;
            *) echo "$file:$line: $header belongs to datasets/sentencepiece/model_file.c" ;;
            esac
            ;;
        *) echo "$file:$line: write the path of \"$header\" relative to the project" ;;
        esac
        case $header in
        *_impl.h | *.cuh)
            case $file in
            tests/* | "${header%/*}"/*) ;;
            *) echo "$file:$line: $header is private to its folder" ;;
            esac
            ;;
        esac
        ;;
    *\<*\>*)
        header=${text#*<}
        header=${header%%>*}
        if ! is_vendor_allowed "$file" "$header"; then
            case $file in
            tests/*) ;; # a test may include any header
            *) echo "$file:$line: <$header> may only be included in the folder of its vendor" ;;
            esac
        fi
        ;;
    esac
}

# check_tree ROOT: check every #include line of the tree.
check_tree() {
    local found file line text
    check_cycles "$1" || return 1
    found=$(cd "$1" && grep -rnE '^[[:space:]]*#[[:space:]]*include' --include='*.[ch]' \
        --include='*.cu' --include='*.cuh' base datasets kernels comm trainer tests 2>/dev/null |
        while IFS=: read -r file line text; do check_line "$file" "$line" "$text"; done)
    if [ -n "$found" ]; then
        echo "$found"
        return 1
    fi
}

# The known violations: the file, and the line that the check must report.
violations="base/a.c|#include \"comm/comm.h\"
base/b.c|#include <hdf5.h>
datasets/loader/a.c|#include \"kernels/kernels.h\"
kernels/a.c|#include \"datasets/loader/batch.h\"
kernels/cpu/norm.c|#include <dnnl.h>
comm/a.c|#include \"kernels/kernels.h\"
comm/host/self.c|#include <mpi.h>
trainer/train/loop.c|#  include <mpi.h>
trainer/model/a.c|#include \"datasets/loader/batch.h\"
trainer/objective/a.c|#include \"trainer/model/model.h\"
trainer/optimizer/a.c|#include \"trainer/setup/derive.h\"
trainer/recipe/a.c|#include \"trainer/train/loop.h\"
trainer/logging/metrics.c|#include \"trainer/recipe/recipe.h\"
trainer/formats/checkpoint/a.c|#include \"trainer/model/model.h\"
trainer/formats/checkpoint/manifest.c|#include \"trainer/recipe/recipe.h\"
trainer/train/step/step.c|#include \"kernels/cpu/cpu_impl.h\"
trainer/logging/tensorboard.c|#include \"trainer/recipe/recipe.h\"
trainer/logging/metrics.c|#include \"tensorboard.pb-c.h\"
trainer/logging/metrics.c|#include <isa-l/crc.h>
trainer/train/loop.c|#include <yaml.h>
trainer/main.c|#include \"tests/check.h\"
comm/b.c|#include \"bucket.h\"
datasets/loader/b.c|#include <openssl/evp.h>
datasets/rows/csv.c|#include <archive.h>
datasets/shard/labels.h|#include <jansson.h>
datasets/shard/chunks.h|#include <hdf5.h>
trainer/cli/a.c|#include <cuda_runtime.h>
comm/device/nccl.c|#include <nccl.h>
trainer/inference/server/server.c|#include <microhttpd.h>
trainer/library/a.c|#include \"comm/bucket/bucket.h\""

self_test() {
    local root file text found missed=0
    root=$(mktemp -d)
    # shellcheck disable=SC2064 # the name of the folder is inserted now
    trap "rm -rf '$root'" EXIT
    while IFS='|' read -r file text; do
        mkdir -p "$root/$(dirname "$file")"
        printf '#include <stdint.h>\n#include "base/status.h"\n%s\n' "$text" >"$root/$file"
        found=$(check_tree "$root" || true)
        case $found in
        "$file:3: "*) ;;
        *)
            echo "self-test: not reported: $file: $text"
            missed=1
            ;;
        esac
        rm "$root/$file"
    done <<<"$violations"
    mkdir -p "$root/trainer/train"
    printf '#include "comm/comm.h"\n#include <stdio.h>\n' >"$root/trainer/train/loop.c"
    if ! check_tree "$root"; then
        echo "self-test: the check rejects a clean tree"
        missed=1
    fi
    mkdir -p "$root/base"
    printf '#include "base/b.h"\n' >"$root/base/a.h"
    printf '#include "base/a.h"\n' >"$root/base/b.h"
    case $(check_tree "$root" || true) in
    *"include cycle"*) ;;
    *)
        echo "self-test: not reported: a cycle of two headers"
        missed=1
        ;;
    esac
    printf '## Folders\n\n| `%s/` | content |\n## Next\n' base >"$root/page.md"
    case $(table="base:${newline}comm: base" check_page "$root/page.md" || true) in
    *"< comm"*) ;;
    *)
        echo "self-test: not reported: a folder that the page does not list"
        missed=1
        ;;
    esac
    if ! table="base:" check_page "$root/page.md"; then
        echo "self-test: the check rejects a page that lists all folders"
        missed=1
    fi
    may_include=()
    if table="kernels: base${newline}base:" read_table >/dev/null; then
        echo "self-test: not reported: a row that contains a folder below it"
        missed=1
    fi
    return $missed
}

read_table || exit 1
if [ "${1:-}" = --self-test ]; then
    self_test
    echo "check_includes: the check reports every known violation"
    exit 0
fi
root=${1:-$(dirname "$0")/..}
if ! check_page "$root/docs/design/architecture.md" || ! check_tree "$root"; then
    echo "check_includes: the lines above break the include rules (docs/design/architecture.md)" >&2
    exit 1
fi
echo "check_includes: clean"
