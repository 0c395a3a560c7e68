/* A side file of shards of preference pairs: what a reference says of every answer.
 *
 *   /logps      float64 (pairs, 2): log-probability of the chosen and of the rejected answer of each pair of the set,
 *               in the order of its shards; NaN where it is not computed yet
 *   attributes  format "bireme-logps", format_version 1; weights (what the reference's weights are known by),
 *               tokenizer_sha256, data (of the set's shards), precision; done: pairs that are computed, from the first
 *
 * It lies beside the shards, is replaced as a whole whenever more of it is computed, and belongs to one reference, one
 * set and one precision. */
#pragma once

#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

struct shard_logps_key {
    char weights[HASH_TEXT_BYTES];
    char tokenizer_sha256[HASH_TEXT_BYTES]; /* "": none is known */
    char data[HASH_TEXT_BYTES];
    char precision[8];
    int64_t pairs;
};

/* shard_logps_read - values[pairs * 2] and how many pairs of them are computed.
 *
 * Errors    STATUS_NO_INPUT: there is none; STATUS_DATA: damaged, or it is another reference's or set's: what differs,
 *           both values, what to do */
status shard_logps_read(const char *path, const struct shard_logps_key *key, double *values,
                        int64_t *done);

/* shard_logps_write - replace or create the file: temporary name, write, sync, rename.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE; the old file is untouched */
status shard_logps_write(const char *path, const struct shard_logps_key *key, const double *values,
                         int64_t done);
