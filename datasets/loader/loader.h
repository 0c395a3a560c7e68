/* The data loader: a background thread reads the micro-batches of this rank ahead of time.
 *
 *   source        The shards of one path or glob pattern, with a weight. Several sources are
 *                 a mixture.
 *   sample        The unit that the loader orders and counts. For text it is a window of T + 1
 *                 tokens of one shard (shard_set.h), for EXAMPLE_SFT a pack of examples
 *                 (packing.h), and for other kinds one example (example.h).
 *   number        The position g of a sample in the training order, counted from 0 over all steps
 *                 and ranks.
 *   global batch  The samples of a step over all ranks: the numbers [step * G, (step + 1) * G).
 *   micro-batch   At most B samples of one rank (batch.h).
 *
 * Order of samples: the training order of a source is a keyed permutation of (seed, epoch, index).
 * A mixture interleaves the samples of its sources in exact proportion to their rates
 * (sample_order.h). Both are pure functions of the number g. Therefore there is no index file, the
 * state of the loader is one integer, and the global batch is the same for any number of ranks R.
 *
 * Division among ranks: each rank reads a contiguous shard of the global batch, as in
 * comm/partition.h. The first G mod R ranks have one sample more than G div R. With
 * interleave_micro_batches the global batch is split into micro-batches, which are assigned to the
 * ranks in turn.
 *
 * Rows: the rows of a micro-batch have no padding. Attention and positions stay inside each
 * example. The masking of a sentence pair is a pure function of (seed, epoch, source, example), see
 * masking.h. EXAMPLE_SEQ2SEQ has the sources and the targets in separate rows. The input of a row
 * of a target is the token before it. The input of the first row is decoder_start, or the last
 * token of the target. Examples of task kinds are packed like sentence pairs.
 *
 * Calls     loader_open, loader_next for each micro-batch, loader_close */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/loader/batch.h"
#include "datasets/loader/denoise.h"
#include "datasets/loader/masking.h"
#include "datasets/loader/packing.h"
#include "datasets/shard/example.h"

struct loader;

/* Value of limit_samples: end after one epoch. */
#define LOADER_ONE_EPOCH INT64_C(-1)

struct loader_source {
    const char *path; /* a shard, or a glob pattern */
    double weight;    /* > 0; only ratios of weights matter */
};

/* The rates of the sources of a mixture. With by_examples, the rate of a source of n examples is
 * min(weight * n, maximum)^(1 / temperature), as in mixing_rate_num_examples of seqio with scale =
 * weight. Otherwise it is the weight.
 *
 * Source    Raffel et al. 2020, arXiv:1910.10683, section 3.5.2; Wei et al. 2022,
 *           arXiv:2109.01652 */
struct loader_mixing {
    bool by_examples;
    double maximum; /* 0: none */
    double temperature;
};

/* A value of decoder_start: the first input of the decoder is the last token of the target. This is
 * the end token, or the language token of the text (mBART). */
enum { LOADER_START_LAST = -2 };

struct loader_options {
    const struct loader_source *sources;
    int source_count;
    struct loader_mixing mixing;
    int64_t sequence_tokens;       /* T */
    int64_t global_sequences;      /* G: samples of a step over all ranks */
    int64_t micro_sequences;       /* B: largest number of samples in a micro-batch */
    int rank, ranks;               /* of the data-parallel group */
    bool interleave_micro_batches; /* rank r reads the micro-batches r, r + R, ... of a step */
    uint64_t seed;
    bool shuffle;          /* false: in the order of the shards (evaluation) */
    bool document_mask;    /* attention stays inside documents; positions restart */
    int64_t first_sample;  /* sample to start with, for resume */
    int64_t limit_samples; /* end after this many samples from sample 0; 0: never */
    int64_t vocab_size;    /* token ids of every shard; with two vocabularies, the larger number */
    /* seq2seq: limits of the ids of sources and targets if they have two vocabularies; 0: none */
    int64_t source_vocab_size, target_vocab_size;
    const char *tokenizer_sha256; /* tokenizer hash that every shard must have; NULL: not checked */
    /* EXAMPLE_TEXT: windows. Otherwise examples of at most T tokens; for preference pairs, prompt
     * and either response together have at most T tokens; source and target have at most T each. */
    enum example_kind kind;
    /* Preference pairs: for each source the log-probabilities [examples, 2] by the reference model;
     * NULL: none. Not copied; must outlive the loader. */
    const double *const *reference_logps;
    /* seq2seq: the id before the first token of each target, or LOADER_START_LAST */
    int32_t decoder_start;
    /* EXAMPLE_TEXT: source and target are made from each window. sentence_ends is not copied and
     * must outlive the loader. */
    struct denoise denoise;
    bool shared_prompt; /* preference pairs: both responses in one segment after one prompt */
    bool head_reads_responses; /* preference pairs: a head reads the last row of each response */
    /* Sentence pairs that are not masked in their files. token_kinds is not copied and must outlive
     * the loader. max_predictions applies to all sentence pairs. */
    struct masking masking;
    const struct packing_rules *packing; /* EXAMPLE_SFT; used only by loader_open */
    /* Read each step twice, to compute its counts (batch.rank_counts) before its first micro-batch.
     * Applies to sentence pairs and tasks. */
    bool count_global_batch;
    int64_t max_texts;         /* EXAMPLE_CHOOSE: largest number of texts in an example */
    bool head_reads_last_row;  /* a task head reads the last row of each text, not the first */
    const char *labels_sha256; /* label hash that every shard must have; NULL: hash of the first */
    enum shard_join join_encoding; /* EXAMPLE_SFT: encoding that every shard must have */
    int64_t prefetch_batches;      /* micro-batches to read ahead; 0: enough to hide the reading */
};

/* loader_open - open and check all shards, start the thread and wait for its first micro-batch.
 * Sets of up to 64 Mi tokens are verified completely, larger ones window by window.
 *
 * Errors    STATUS_NO_INPUT: no file matches; STATUS_DATA with file, position and reason: a damaged
 *           shard, another tokenizer, no sample of T + 1 tokens in a set; STATUS_RECIPE: invalid
 *           options; STATUS_UNAVAILABLE if this HDF5 library is not thread-safe */
status loader_open(const struct loader_options *options, struct loader **out);

/* loader_close - stop the thread, close all files and set *loader to NULL; NULL is allowed. It may
 * be called while the thread reads. */
status loader_close(struct loader **loader);

/* loader_samples - return the number of samples of one epoch. The epoch of a mixture ends with the
 * source that ends first. */
int64_t loader_samples(const struct loader *loader);

/* loader_source_share - return the fraction of a run's samples that come from a source. *examples
 * receives the number of its examples. */
double loader_source_share(const struct loader *loader, int source, int64_t *examples);

/* loader_tokens - return the number of tokens of all sources. */
int64_t loader_tokens(const struct loader *loader);

/* loader_packing_report - return the totals of packing over all sources; zeros without packing. */
struct packing_report loader_packing_report(const struct loader *loader);

/* loader_fingerprint - return a SHA-256 of everything that determines order and content of batches.
 *
 * These are seed, sequence length, weights, and for each shard its file name without folders, its
 * header and the SHA-256 of its tokens. */
const char *loader_fingerprint(const struct loader *loader);

/* loader_locate - write the location of sample number g (batch.samples) for messages:
 * "FILE tokens A to B". */
void loader_locate(const struct loader *loader, int64_t number, char *text, int bytes);

/* loader_next - return the next micro-batch of this rank.
 *
 * The samples of a rank in a step are split into micro-batches of at most B samples. *last is true
 * for the last micro-batch of the rank in a step. A rank without samples in a step gets one
 * micro-batch with sequences = 0 and *last = true. At the end of limited data, out->sequences = 0,
 * *last = false and *end = true, on all ranks after the same number of steps. The last step may
 * have fewer than G samples.
 *
 * Memory    *out is valid until the next call
 * Errors    the error of the thread, on this and every later call: STATUS_DATA with file, position
 *           and reason */
status loader_next(struct loader *loader, struct batch *out, bool *last, bool *end);

/* loader_stall_seconds - return the total time that loader_next has waited for the thread. */
double loader_stall_seconds(const struct loader *loader);

/* loader_memory_bytes - return the host memory of a loader with these options, for `bireme plan`.
 * It counts the shards but does not open them. */
int64_t loader_memory_bytes(const struct loader_options *options);
