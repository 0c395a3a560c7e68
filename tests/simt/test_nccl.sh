#!/bin/bash
# Tests training on several emulated GPUs with the NCCL mock: one GPU for each rank, collectives on
# streams, and collectives in CUDA graphs. The mock refuses a collective that only some ranks have
# captured, and graphs of different captures.
# usage: test_nccl.sh PART; ctest sets BIREME_PROGRAM (CPU), BIREME_SIMT, BIREME_NCCL_MOCK and
# BIREME_SOURCE_DIR
# ctest: name simt_nccl
# ctest: parts layouts graphs late counts fallback abort
# ctest: timeout 300
# shellcheck disable=SC2034,SC2086,SC2154 # settings are words; tiny_training.sh shares variables
source "${BIREME_SOURCE_DIR:=$PWD}/tests/simt/devices.sh"

[ -n "${BIREME_NCCL_MOCK:-}" ] || {
    echo "skipped: built without MPI, so there is no NCCL mock"
    exit 77
}
need_mpirun
export BIREME_NCCL=$BIREME_NCCL_MOCK SIMT_STREAMS=eager
many="$small train.max_steps=5 evaluate.every=0 checkpoint.every=5 batch.global_size=2
    batch.micro_size=1"

# train_nccl RUN RANKS SETTING...: train recipe.yaml with one emulated GPU for each rank.
train_nccl() {
    local run=$1 ranks=$2
    shift 2
    program=$gpu
    SIMT_DEVICES=$ranks run_ranks "$ranks" 0 train recipe.yaml run_dir="$run" train.device=cuda "$@"
    ! grep -q 'W-COMM-STAGED' stderr || fail "$run: the ranks do not use NCCL"
}

# The losses of all layouts equal the losses of one CPU.
test_layouts() {
    train_cpu one $small
    local layout
    for layout in zero_stage=1 zero_stage=2 tensor=2 "tensor=2 parallel.sequence=true"; do
        train_nccl "two-${layout// /-}" 2 parallel.$layout $small
        compare_losses one "two-${layout// /-}" 1e-5
    done
    train_nccl four 4 parallel.tensor=2 parallel.zero_stage=2 $small
    compare_losses one four 1e-5
    # There is only one communicator, so streams may execute late.
    SIMT_STREAMS=late train_nccl late 2 parallel.tensor=2 $small
    compare_losses two-tensor=2 late 0
}

# compare_graphs NAME RANKS SETTING...: training with graphs gives the same bits as without.
compare_graphs() {
    local name=$1 ranks=$2 created launched updated
    shift 2
    train_nccl "$name" "$ranks" $many "$@"
    SIMT_GRAPHS=$PWD/counts train_nccl "$name-graphs" "$ranks" $many "$@" train.cuda_graphs=true
    compare_losses "$name" "$name-graphs" 0
    compare_weights "$name" "$name-graphs" 00000005
    read -r created launched updated <counts
    [ "$created" -ge 2 ] && [ "$launched" -ge $((2 * created)) ] && [ "$updated" -gt 0 ] ||
        fail "$name: $created graphs, $launched launches, $updated argument updates"
}

test_graphs() {
    compare_graphs tensor 2 parallel.tensor=2
    compare_graphs sequence 2 parallel.tensor=2 parallel.sequence=true train.precision=bf16
    compare_graphs zero 2 parallel.zero_stage=2 batch.global_size=4
    compare_graphs four 4 parallel.tensor=2 parallel.zero_stage=1 batch.global_size=4
    # Checks this test: without argument updates the model differs.
    SIMT_STALE=1 train_nccl stale 2 parallel.tensor=2 train.cuda_graphs=true $many
    if (compare_losses tensor stale 0) >/dev/null 2>&1; then
        fail "stale arguments were not detected"
    fi
}

# In a graph, collectives run as late as possible. These layouts have only one communicator.
test_late() {
    export SIMT_STREAMS=late
    compare_graphs tensor 2 parallel.tensor=2
    compare_graphs sequence 2 parallel.tensor=2 parallel.sequence=true
}

# write_program FILE VARIABLE VALUE: write a program that sets a variable on rank 1 only.
write_program() {
    printf '#!/bin/bash\n[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export %s=%q\nexec %q "$@"\n' \
        "$2" "$3" "$gpu" >"$1"
    chmod +x "$1"
}

# count_operations SETTING...: print the operations that the host of rank 1 queues in a step: the
# kernels and other operations outside of graphs, the launches of graphs, and their sum.
count_operations() {
    local steps real=$gpu
    for steps in 5 7; do
        write_program counted SIMT_LAUNCHES "$PWD/launches-$steps"
        gpu=$PWD/counted
        train_nccl run-$steps 2 $many model.num_layers=4 train.max_steps=$steps checkpoint.every=0 \
            "$@"
        gpu=$real
        rm -rf run-$steps
    done
    paste -d' ' launches-5 launches-7 | awk '{ printf "%g %g %g %g\n", ($4 - $1) / 2,
        ($5 - $2) / 2, ($6 - $3) / 2, ($4 + $5 + $6 - $1 - $2 - $3) / 2 }'
}

# Collectives in graphs: the host queues fewer operations than with graphs between collectives
# (NCCL_GRAPH_MIXING_SUPPORT=0), and fewer than without graphs.
test_counts() {
    local sequence plain between all
    for sequence in false true; do
        plain=$(count_operations parallel.tensor=2 parallel.sequence=$sequence)
        between=$(NCCL_GRAPH_MIXING_SUPPORT=0 count_operations parallel.tensor=2 \
            parallel.sequence=$sequence train.cuda_graphs=true)
        all=$(count_operations parallel.tensor=2 parallel.sequence=$sequence train.cuda_graphs=true)
        printf 'sequence=%s, kernels, others, graphs, sum\n%s\n' $sequence \
            "without graphs: $plain
graphs between collectives: $between
collectives in graphs: $all"
        set -- $plain $between $all
        [ "$4" -gt "$8" ] && [ "$8" -gt $((2 * ${12})) ] || fail "too many operations"
    done
}

# If one rank cannot create graphs, or if its launches differ, all ranks use none.
test_fallback() {
    train_nccl plain 2 parallel.tensor=2 $many
    local variable real=$gpu
    for variable in SIMT_NO_GRAPHS SIMT_REFUSE_UPDATES; do
        write_program one_rank $variable 1
        gpu=$PWD/one_rank
        train_nccl $variable 2 parallel.tensor=2 train.cuda_graphs=true $many
        gpu=$real
        compare_losses plain $variable 0
        compare_weights plain $variable 00000005
    done
}

# If a rank fails while communicators have graphs, ncclCommAbort does not return. The job still ends
# with the code of the error.
test_abort() {
    local launch
    for launch in 8 9 10; do
        write_program one_rank SIMT_FAIL_LAUNCH $launch
        program=$PWD/one_rank
        SIMT_DEVICES=2 run_ranks 2 70 train recipe.yaml run_dir=failed-$launch train.device=cuda \
            parallel.tensor=2 train.cuda_graphs=true $many
        grep -q 'launching a graph of [0-9]* operations failed' stderr || fail "no error"
        ! grep -q 'a graph of rank' stderr || fail "launch $launch: rank 1 agreed after its error"
    done
}

run_part "$@"
