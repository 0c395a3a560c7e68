/* Examples for fine-tuning into packs of at most T tokens, each of which is one sequence of a batch.
 *
 *   none       an example is a pack of its own
 *   bfd        best-fit decreasing: examples from the longest to the shortest, each into the pack with the least room
 *              that suffices, of equal ones the oldest; what is longer than max_length is cut off
 *   bfd_split  likewise, but what is longer becomes several examples
 *   wrapped    a continuous stream of the tokens of a shard, cut every max_length tokens; no boundaries are kept
 *
 * The lengths in each pack are the same in all epochs, and so is the number of packs; which examples of a length stand
 * in its places is a keyed permutation of (seed, epoch, length). So resuming is one integer, as for windows (loader.h),
 * and nothing is packed anew.
 *
 * Source    Ding et al. 2024, "Fewer truncations improve language modeling", arXiv:2404.10830; TRL's pack_dataset */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/shard/shard_set.h"

enum packing_kind { PACKING_NONE, PACKING_BFD, PACKING_BFD_SPLIT, PACKING_WRAPPED };

struct packing_rules {
    enum packing_kind kind;
    int64_t max_length; /* tokens of an example, or of a stretch of the stream; 2 to T */
    uint32_t learn; /* bits of loss_mask (example.h): a token is learned where it has all of them */
    bool skip_empty; /* leave examples out in which nothing is learned; false: they are an error */
};

struct packing_report {
    int64_t examples;
    int64_t cut, cut_tokens; /* examples longer than max_length, and what was lost of them */
    int64_t empty;           /* examples (wrapped: stretches) in which nothing is learned */
    int64_t packs, tokens;   /* tokens: in all packs */
};

struct packing;

/* packing_create - of no examples yet; room: T. */
status packing_create(const struct packing_rules *rules, int64_t room, struct packing **out);
/* packing_add - tokens [first, first + length) of the set are an example; 2 <= length <= T. */
status packing_add(struct packing *p, int64_t first, int64_t length);
/* packing_finish - all examples into packs.
 *
 * Memory    12 bytes an example, with bfd 16 and 8 a pack (meanwhile 32) */
status packing_finish(struct packing *p);
void packing_destroy(struct packing **p);

/* packing_scan - the examples of a set of shards, packed.
 *
 * The loss mask of the whole set is read.
 * Errors    STATUS_DATA: an example with nothing to learn, unless rules.skip_empty; nothing is left; a damaged shard */
status packing_scan(struct shard_set *set, const struct packing_rules *rules, int64_t room,
                    struct packing **out, struct packing_report *report);

const struct packing_rules *packing_rules_of(const struct packing *p);
int64_t packing_packs(const struct packing *p);
int64_t packing_pack_rows(const struct packing *p, int64_t pack); /* of packing_read */
int64_t packing_pack_examples(const struct packing *p, int64_t pack);

/* Which examples stand in the places; shuffle false: always the same ones. */
struct packing_epoch {
    uint64_t seed, epoch, source;
    bool shuffle;
};

/* packing_example - where example `index` of a pack begins in the set, and its length. */
void packing_example(const struct packing *p, const struct packing_epoch *epoch, int64_t pack,
                     int64_t index, int64_t *first, int64_t *length);

/* Rows of a batch, to which packs are added; a row is a token that predicts the next one of its example. */
struct packing_rows {
    int32_t *inputs, *targets, *positions; /* targets: BATCH_IGNORED where nothing is learned */
    int32_t *cu_rows; /* [segments + 1], cu_rows[0] = 0: an example is a segment */
    int64_t rows, segments, longest;
    int64_t seen;    /* tokens of the examples: an example of n has n - 1 rows */
    int32_t *ids;    /* [T] working memory */
    uint32_t *marks; /* [T] likewise */
};

/* packing_read - all examples of a pack, in at most T rows. */
status packing_read(const struct packing *p, const struct packing_epoch *epoch,
                    struct shard_set *set, int64_t pack, struct packing_rows *out);

/* packing_locate - a pack by the place of its first example, for messages. */
void packing_locate(const struct packing *p, const struct packing_epoch *epoch,
                    const struct shard_set *set, int64_t pack, char *text, int bytes);
