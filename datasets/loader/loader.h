/* Which sample, which rank, which step: batches read ahead by a background thread.
 *
 * A sample is a window of T + 1 tokens of one shard (shard_set.h). The order of training is a keyed
 * permutation of (seed, epoch, index), and a mixture of sets takes samples in turn by exact proportional
 * shares (order.h): both are pure functions of the sample's number g, counted from 0 over all steps and
 * ranks. No index file; resume is one integer. So the global batch of a step, samples
 * [step * G, (step + 1) * G), is the same at any number of ranks; rank r of R takes a contiguous share
 * of it, as comm/partition.h shares: the first G mod R ranks have one more than G div R. With `deal` the global
 * batch is cut into micro-batches first, the same ones at any number of ranks, and these are shared out.
 *
 * With a `kind` of examples a sample is one example (example.h), in the same order; what is masked of a sentence pair
 * is a function of (seed, epoch, source, example) alone (masking.h). A sample of EXAMPLE_SFT is a pack of examples
 * (packing.h): attention and positions stay inside of each, and the rows have no padding. Kinds of tasks have a text, or
 * a pair, an example, packed as sentence pairs are. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/loader/batch.h"
#include "datasets/shard/example.h"
#include "datasets/loader/masking.h"
#include "datasets/loader/packing.h"

struct loader;

/* limit_samples: end after one epoch. */
#define LOADER_ONE_EPOCH INT64_C(-1)

struct loader_source {
    const char *path; /* a shard, or a glob of shards */
    double weight;    /* > 0; only ratios count */
};

struct loader_options {
    const struct loader_source *sources;
    int source_count;
    int64_t sequence_tokens;  /* T */
    int64_t global_sequences; /* G: samples of a step over all ranks */
    int64_t micro_sequences;  /* B: samples of a micro-batch at most */
    int rank, ranks;          /* of the data-parallel group */
    bool
        deal; /* micro-batches of the global batch are dealt out in turn: rank r's are r, r + R, ... */
    uint64_t seed;
    bool shuffle;         /* false: in the order of the shards (evaluation) */
    bool document_mask;   /* attention stays inside documents, positions restart */
    int64_t first_sample; /* where to begin: the resume cursor */
    int64_t
        limit_samples;  /* end after this many samples from sample 0; 0: never (wraps by epoch) */
    int64_t vocab_size; /* of the model's tokenizer; every shard must agree */
    const char *tokenizer_sha256; /* likewise; NULL: not checked */
    enum example_kind
        kind; /* EXAMPLE_TEXT: windows; else examples instead; T: tokens of one at most, of a preference pair with
                                  either answer */
    /* Preference pairs: of each source the reference's log-probabilities [examples, 2]; NULL: none. Kept. */
    const double *const *reference;
    bool shared_prompt;   /* of a pair both answers in one segment, behind one prompt */
    bool last_of_answers; /* of a pair the answers' last rows are for a task's head */
    struct masking
        masking; /* of sentence pairs that are not masked in their files; kinds is kept, and must outlive
                               the loader. most: predictions of an example, for all of them */
    const struct packing_rules *packing; /* of EXAMPLE_SFT; only for loader_open */
    bool
        looks_ahead; /* a step's share of sentence pairs, or of texts of a task, is read twice, so that its sums are known beforehand */
    int64_t texts;   /* of an example of EXAMPLE_CHOOSE at most */
    bool last_rows;  /* the head of a task reads each text's last row, not its first */
    const char
        *labels_sha256;    /* of a task: every shard must agree; NULL: the shards with each other */
    int64_t ahead_batches; /* micro-batches read ahead; 0: a default that hides the reading */
};

/* loader_open - open every shard and check it, start the reading thread, wait for its first batch.
 *
 * Sets of up to 64 Mi tokens are read and verified whole, larger ones window by window.
 * Errors    STATUS_NO_INPUT: the glob matches nothing; STATUS_DATA: a bad shard, a wrong tokenizer,
 *           no sample of T + 1 tokens in the whole set; each with file, place and reason.
 *           STATUS_UNAVAILABLE if this HDF5 was built without threads */
status loader_open(const struct loader_options *options, struct loader **out);

/* loader_close - stop the thread and close everything; also in the middle of the data. */
status loader_close(struct loader **loader);

/* loader_samples - samples of one epoch; for a mixture: samples until the first source is through. */
int64_t loader_samples(const struct loader *loader);
int64_t loader_tokens(const struct loader *loader);

/* loader_packing - what became of the examples, over all sources; zeros without packing. */
struct packing_report loader_packing(const struct loader *loader);

/* loader_fingerprint - a SHA-256 over what decides order and content: seed, sequence length, weights,
 * names of the shards without folders, their headers and the SHA-256 of their tokens. */
const char *loader_fingerprint(const struct loader *loader);

/* loader_locate - "FILE tokens A to B" of sample number g (batch.samples), to name it in a message. */
void loader_locate(const struct loader *loader, int64_t number, char *text, int bytes);

/* loader_next - the next micro-batch of this rank, in order; *out is valid until the next call.
 *
 * A step's share is cut into micro-batches of at most B; *last tells that this one completes the
 * rank's share of a step (a rank with an empty share gets batches with sequences = 0 and last = true).
 * At the end of limited data: out->sequences = 0, *last = false and *end = true, on all ranks after the
 * same number of steps; the last step may be shorter than G.
 * Errors    what the reading thread met: STATUS_DATA with file, place and reason; then again and again */
status loader_next(struct loader *loader, struct batch *out, bool *last, bool *end);

/* loader_stall_seconds - how long loader_next has waited for the thread, in all. */
double loader_stall_seconds(const struct loader *loader);

/* loader_memory_bytes - of the loader with these options, for `bireme plan`; of the shards only their number is asked. */
int64_t loader_memory_bytes(const struct loader_options *options);
