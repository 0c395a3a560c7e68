/* What a recipe costs before anything is trained: parameters, memory of a rank, work and traffic of a
 * step. `bireme plan` prints it, the start line of metrics.jsonl repeats it, and a test holds the
 * memory against what a run then uses.
 *
 * FLOPs     a multiply and an add count as two. A token's forward pass costs 2 for each element of each
 *           matrix that takes part in a product (the output matrix with the real vocabulary, tied or not;
 *           embeddings are looked up, biases and norms are not counted) and 4 T C for each layer's
 *           attention (scores and mixing), of which causal attention needs half. Backward costs twice
 *           the forward pass: 6 N + 6 L T C in all, with attention to both sides 6 N + 12 L T C. mlm's head
 *           takes the share of the tokens that is predicted, the labels' one row of an example.
 * Bytes     sent by a rank in a step: what a ring all-reduce of the f32 gradients would send,
 *           2 (R - 1) / R times their bytes, R data-parallel ranks; at ZeRO stage 1 a reduce-scatter of the gradients and an
 *           all-gather of the weights, which is as much in fp32 and half of it in bf16; at stage 2 layers'
 *           gradients are scattered for every micro-batch. The t ranks that share a model add up [N, C] in f32 4 L + 2 times a
 *           micro-batch (with sequence parallelism 4 L + 2 scatters and 6 L + 2 gathers).
 * Ranks     figures of a rank are of the first one: it holds the most where a vocabulary is shared unevenly.
 * Memory    all ranks are assumed to be on one host: buffers then hold, besides working memory, the part
 *           of the other ranks' gradients that a rank reads from shared memory. */
#pragma once

#include "base/device.h"
#include "trainer/recipe/recipe.h"

/* The kinds of metrics.jsonl's rank_bytes. */
enum plan_kind {
    PLAN_WEIGHTS,   /* f32 (with ZeRO in bf16 of this rank's shares), and the bf16 copy */
    PLAN_GRADIENTS, /* f32; at ZeRO stage 2 of the tables, of two layers, and of this rank's shares */
    PLAN_OPTIMIZER,   /* two f32 moments, with ZeRO of this rank's shares */
    PLAN_ACTIVATIONS, /* of a micro-batch */
    PLAN_BUFFERS,     /* kernels, loaders, snapshot, communication, the program itself */
    PLAN_KINDS
};

enum plan_part {
    PLAN_TOKEN_EMBEDDING, /* tied: the output matrix too */
    PLAN_POSITION_EMBEDDING,
    PLAN_ATTENTION,
    PLAN_FEED_FORWARD,
    PLAN_NORMS,
    PLAN_OUTPUT,
    PLAN_ADAPTERS,
    PLAN_PARTS
};

enum { PLAN_UNCHECKED_MAX = 4 }; /* tokenizer, shards, weights and moments to begin with */

struct plan_buffers {
    int64_t kernels, loaders, pinned, snapshot, writer, communication, program;
};

struct plan {
    int ranks, tensor, data; /* data-parallel ranks */
    int zero_stage;          /* 0 where there is one data-parallel rank */
    int threads;             /* of a rank, with all ranks on this host */
    int64_t vocabulary;
    int64_t parameters; /* of the model */
    int64_t trained_parameters;
    int64_t part[PLAN_PARTS];
    int64_t rank_parameters; /* of one rank: the same without tensor parallelism */
    int64_t bytes[PLAN_KINDS];
    struct plan_buffers buffers; /* what bytes[PLAN_BUFFERS] is made of */
    int64_t total_bytes;
    enum device_kind device;
    int64_t
        device_bytes; /* of these in the device's memory, the driver's and NCCL's own not counted */
    int64_t device_memory; /* what plan_check has seen of a GPU; 0: nothing */
    int64_t micro_steps;   /* forward passes of a rank in a step, at most */
    int64_t tokens;        /* of a step, over all ranks */
    double product_flops;  /* of a token's matrix products, forward and backward, over all ranks */
    double token_flops;    /* and with attention */
    double step_flops;     /* over all ranks */
    double sent_bytes;     /* of a step, by each rank */
    double tensor_bytes;   /* what of that goes to the ranks that share a model */
    int64_t train_tokens;  /* in the shards; -1: unknown before plan_check */
    int64_t epoch_samples; /* sequences; -1: unknown */
    double epoch_steps;    /* -1: unknown */
    int64_t total_steps;   /* 0: unknown, with train.epochs and no shards */
    int64_t warmup_steps;
    char unchecked[PLAN_UNCHECKED_MAX][STATUS_TEXT_BYTES]; /* what plan_check could not look at */
    int unchecked_count;
};

/* plan_make - from a resolved recipe; reads the tokenizer where the recipe has no vocab_size.
 *
 * Errors    STATUS_NO_INPUT and STATUS_DATA of the tokenizer, STATUS_RECIPE */
status plan_make(const struct recipe *recipe, int ranks, struct plan *out);

/* plan_check - whether `train` would begin: device, precision, tokenizer, every shard and model.init_from,
 * opened and checked by the functions that train calls. Fills in what the data decides.
 *
 * A recipe with model.vocab_size can be planned without its inputs: what is missing is in
 * plan->unchecked then. elsewhere: for another machine, whose device and precision are not this one's.
 * Errors    those of train's start, each with the recipe's place */
status plan_check(const struct recipe *recipe, bool elsewhere, struct plan *plan);

const char *plan_kind_name(enum plan_kind kind); /* "weights", ... */
const char *plan_part_name(enum plan_part part); /* "token_embedding", ... */
