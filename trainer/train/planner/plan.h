/* Computes the cost of a recipe without training: parameters, memory of a rank, FLOPs and
 * communication of a step. `bireme plan` prints it and the start line of metrics.jsonl repeats it.
 * A test compares the planned memory with the memory of runs.
 *
 * FLOPs     a multiply-add counts as two. The forward pass of a token costs 2 for each element of
 *           each matrix in a GEMM. The attention of a layer (scores and mixing) costs 4 T C, and
 *           half of that if it is causal. The output matrix counts with the real vocabulary, tied
 *           or not. Embedding lookups, biases and norms do not count. If all weights are trained,
 *           backward costs twice the forward pass. The total is then 6 N + 6 L T C, or with
 *           bidirectional attention 6 N + 12 L T C. Frozen weights cost less
 *           (docs/reference/flops.md). The MLM head processes only the predicted tokens. A
 *           classification head processes one row per example. The tokens of an encoder-decoder are
 *           the tokens of sources and targets; each matrix counts for the tokens that it reads.
 * Bytes     sent by a rank in a step, for R data-parallel ranks. ZeRO stage 0: a ring all-reduce
 *           of the f32 gradients, 2 (R - 1) / R times their bytes. Stage 1: a reduce-scatter of the
 *           gradients and an all-gather of the weights; the latter is half as large in bf16 as in
 *           fp32. Stage 2: the gradients of the layers are scattered for every micro-batch. The t
 *           ranks of a tensor-parallel group all-reduce [N, C] in f32 4 L + 2 times per
 *           micro-batch. With sequence parallelism these are 4 L + 2 scatters and 6 L + 2 gathers.
 *           An encoder-decoder has 4 L + 2 all-reduces for the encoder and 6 L + 2 for the decoder.
 *           With sequence parallelism it has 6 L + 2 and 9 L + 2 gathers.
 * Ranks     figures of a rank describe rank 0, which holds the most if the vocabulary is split
 *           unevenly.
 * Memory    assumes that all ranks are on one host. The buffers then include the other ranks'
 *           gradients that a rank reads from shared memory. */
#pragma once

#include "base/device/device.h"
#include "comm/comm.h"
#include "trainer/recipe/recipe.h"

/* Kinds of memory, as in rank_bytes of metrics.jsonl. */
enum plan_kind {
    PLAN_WEIGHTS,     /* f32 (ZeRO with bf16: this rank's shard only), and the bf16 copy */
    PLAN_GRADIENTS,   /* f32; ZeRO stage 2: embeddings, two layers and this rank's shard */
    PLAN_OPTIMIZER,   /* two moments; ZeRO: of this rank's shard */
    PLAN_ACTIVATIONS, /* of a micro-batch */
    PLAN_BUFFERS,     /* kernels, loaders, snapshot, communication, program */
    PLAN_KINDS
};

/* Parts of the model in the parameter counts. */
enum plan_part {
    PLAN_TOKEN_EMBEDDING, /* includes a tied output matrix */
    PLAN_POSITION_EMBEDDING,
    PLAN_ATTENTION,
    PLAN_FEED_FORWARD,
    PLAN_NORMS,
    PLAN_OUTPUT,
    PLAN_ADAPTERS,
    PLAN_PARTS
};

/* device, tokenizer, tasks, shards, initial weights, initial moments */
enum { PLAN_UNCHECKED_MAX = 6 };

/* Bytes of PLAN_BUFFERS. */
struct plan_buffers {
    int64_t kernels, loaders, pinned, snapshot, rollback, samples, writer, communication, program;
};

/* The figures of a plan. */
struct plan {
    int ranks, tensor, data; /* data: data-parallel ranks */
    int zero_stage;          /* 0 with one data-parallel rank */
    int threads;             /* per rank, with all ranks on this host */
    int64_t vocabulary;
    int64_t parameters; /* of the model */
    int64_t trained_parameters;
    int64_t part[PLAN_PARTS];
    int64_t rank_parameters; /* on rank 0; less than parameters with tensor parallelism */
    int64_t bytes[PLAN_KINDS];
    struct plan_buffers buffers; /* parts of bytes[PLAN_BUFFERS] */
    int64_t total_bytes;
    int64_t shared_memory_bytes; /* of /dev/shm, if all ranks are on one host */
    enum device_kind device;
    /* On a GPU: without the memory of driver and NCCL. On a CPU: without the communication buffers,
     * which are memory of the other ranks of the host; ranks of other hosts have none here. */
    int64_t device_bytes;
    int64_t device_memory; /* memory of the GPU, from plan_check; 0: no GPU */
    int64_t micro_steps;   /* maximum number of micro-batches of a rank per step */
    int64_t tokens;        /* per step, over all ranks */
    double gemm_flops;     /* per token: GEMMs, forward and backward, over all ranks */
    double fp8_flops;      /* the part of gemm_flops with FP8 operands */
    double token_flops;    /* per token: GEMMs and attention, causal attention by half */
    double token_flops_full_attention;
    double step_flops;     /* per step, over all ranks */
    double sent_bytes;     /* per step, by each rank */
    double tensor_bytes;   /* the part sent within the tensor-parallel group */
    int64_t train_tokens;  /* in the shards; -1: unknown before plan_check */
    int64_t epoch_samples; /* sequences; -1: unknown */
    double epoch_steps;    /* -1: unknown */
    int64_t total_steps;   /* 0: unknown (train.epochs without shards) */
    int64_t warmup_steps;
    /* errors of a device and of inputs that plan_check could not open */
    char unchecked[PLAN_UNCHECKED_MAX][STATUS_TEXT_BYTES];
    int unchecked_count;
};

/* plan_make - compute the plan of a resolved recipe for a number of ranks.
 *
 * Reads the tokenizer if model.vocab_size is null.
 *
 * Errors    STATUS_NO_INPUT and STATUS_DATA for the tokenizer, STATUS_RECIPE */
status plan_make(const struct recipe *recipe, int ranks, struct plan *out);

/* plan_check - check that `bireme train` would start, and add the figures that depend on the data.
 *
 * Opens device, tokenizer, every shard, model.init_from and optimizer.init_from with the functions
 * that train calls. A recipe with model.vocab_size can be planned without its inputs;
 * plan->unchecked lists the missing ones. It also lists a GPU that this build or machine lacks. A
 * checkpoint of another recipe in run_dir is the warning W-RUN-DIR. If `elsewhere` is true, the
 * plan is for another machine: device, precision and run_dir are not opened.
 *
 * Errors    as train at its start, with the location in the recipe */
status plan_check(const struct recipe *recipe, bool elsewhere, struct plan *plan);

/* plan_kind_name - return "weights", "gradients", ... */
const char *plan_kind_name(enum plan_kind kind);

/* plan_part_name - return "token_embedding", "position_embedding", ... */
const char *plan_part_name(enum plan_part part);
