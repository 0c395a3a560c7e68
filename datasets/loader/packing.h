/* Packing: SFT examples are combined into packs of at most T tokens. A pack is one batch sequence.
 *
 *   none       each example is a pack
 *   bfd        best-fit decreasing: from the longest to the shortest, each example is put into the
 *              pack with the least sufficient space; if several are equal, into the oldest.
 *              Examples longer than max_length are truncated
 *   bfd_split  as bfd, but longer examples are split into several examples
 *   wrapped    the tokens of a shard are joined, and split after every max_length tokens.
 *              Boundaries of examples are lost
 *
 * The lengths in each pack and the number of packs are the same in all epochs. A keyed permutation
 * of (seed, epoch, length) selects the examples of each length. As for windows (loader.h), the
 * state is one integer, and resuming does not pack again.
 *
 * Calls     packing_scan for a shard set, or packing_create, packing_add for each example and
 *           packing_finish; then packing_read for each pack; packing_destroy
 *
 * Source: Ding et al. 2024, "Fewer truncations improve language modeling", arXiv:2404.10830;
 * pack_dataset of TRL. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/shard/shard_set.h"

enum packing_kind { PACKING_NONE, PACKING_BFD, PACKING_BFD_SPLIT, PACKING_WRAPPED };

struct packing_rules {
    enum packing_kind kind;
    int64_t max_length; /* tokens of an example, or of a chunk (wrapped); 2 to T */
    /* bits of the loss mask (example.h); the loss includes a token if all of these bits are set */
    uint32_t loss_mask_bits;
    bool skip_empty; /* skip examples without tokens in the loss; false: report an error */
};

struct packing_report {
    int64_t examples;
    int64_t truncated;        /* examples longer than max_length */
    int64_t truncated_tokens; /* tokens that they lost */
    int64_t empty;            /* examples (wrapped: chunks) without tokens in the loss */
    int64_t packs;
    int64_t tokens; /* in all packs */
};

struct packing;

/* packing_create - create a packing without examples; pack_tokens: T.
 *
 * Errors    STATUS_RECIPE: max_length is not in 2 to T */
status packing_create(const struct packing_rules *rules, int64_t pack_tokens, struct packing **out);

/* packing_add - add tokens [first, first + length) of the set as an example; 2 <= length <= T.
 *
 * Errors    STATUS_DATA: too many examples */
status packing_add(struct packing *p, int64_t first, int64_t length);

/* packing_finish - assign all examples to packs.
 *
 * Memory    12 bytes per example; with bfd 16 per example and 8 per pack, and 32 per example during
 *           the call */
status packing_finish(struct packing *p);

/* packing_destroy - release the packing and set *p to NULL; NULL is allowed. */
void packing_destroy(struct packing **p);

/* packing_scan - create a packing of all examples of a shard set. It reads the loss mask of the
 * whole set.
 *
 * Errors    STATUS_DATA: an example without tokens in the loss, unless rules.skip_empty; no example
 *           is left; a damaged shard */
status packing_scan(struct shard_set *set, const struct packing_rules *rules, int64_t pack_tokens,
                    struct packing **out, struct packing_report *report);

/* packing_get_rules - return the rules of the packing. */
const struct packing_rules *packing_get_rules(const struct packing *p);

/* packing_pack_count - return the number of packs. */
int64_t packing_pack_count(const struct packing *p);

/* packing_pack_rows - return the number of rows that packing_read adds for a pack. */
int64_t packing_pack_rows(const struct packing *p, int64_t pack);

/* packing_pack_examples - return the number of examples in a pack. */
int64_t packing_pack_examples(const struct packing *p, int64_t pack);

/* The key of the permutation of examples. Without shuffle, examples are not permuted. */
struct packing_epoch {
    uint64_t seed, epoch, source;
    bool shuffle;
};

/* packing_get_example - find the first token in the set and the length of an example of a pack. */
void packing_get_example(const struct packing *p, const struct packing_epoch *epoch, int64_t pack,
                         int64_t index, int64_t *first, int64_t *length);

/* Rows of a batch to which packs are added. A row predicts the next token of its example. */
struct packing_rows {
    int32_t *inputs, *targets, *positions; /* targets: BATCH_IGNORED if not in the loss */
    int32_t *cu_rows; /* [segments + 1], cu_rows[0] = 0; each example is a segment */
    int64_t rows, segments, longest;
    int64_t tokens_seen; /* tokens of the examples; an example of n tokens has n - 1 rows */
    int32_t *ids;        /* [T] workspace */
    uint32_t *loss_mask; /* [T] workspace */
};

/* packing_read - add all examples of a pack to the rows: at most T rows. */
status packing_read(const struct packing *p, const struct packing_epoch *epoch,
                    struct shard_set *set, int64_t pack, struct packing_rows *out);

/* packing_locate - write the location of the first example of a pack, for messages. */
void packing_locate(const struct packing *p, const struct packing_epoch *epoch,
                    const struct shard_set *set, int64_t pack, char *text, int bytes);
