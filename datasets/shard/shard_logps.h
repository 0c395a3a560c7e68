/* A file next to shards of preference pairs: the log-probabilities that the reference model assigns
 * to all responses.
 *
 *   /logps      float64 (pairs, 2): log-probabilities of the chosen and the rejected response of
 *               each pair of the set, in the order of its shards; NaN if not computed yet
 *   attributes  format "bireme-logps", format_version 1; weights (fingerprint of the reference
 *               weights), tokenizer_sha256, data (hash of the shard set), precision;
 *               done: number of computed pairs, from the first
 *
 * The file is valid for one reference model, one set of shards and one precision: its key.
 *
 * Calls     shard_logps_read; if some pairs are missing, compute them and call shard_logps_write,
 *           which replaces the whole file */
#pragma once

#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

/* The reference model, shard set and precision that a file is valid for. */
struct shard_logps_key {
    char weights[HASH_TEXT_BYTES];          /* fingerprint of the reference weights */
    char tokenizer_sha256[HASH_TEXT_BYTES]; /* "": unknown */
    char data[HASH_TEXT_BYTES];             /* hash of the shard set */
    char precision[8];
    int64_t pairs; /* pairs of the shard set */
};

/* shard_logps_read - read values[2 * pairs], and set *done to the number of computed pairs.
 *
 * Errors    STATUS_NO_INPUT: no such file; STATUS_DATA: a damaged file, or a file for another key.
 *           The message names the difference, both values and the remedy. */
status shard_logps_read(const char *path, const struct shard_logps_key *key, double *values,
                        int64_t *done);

/* shard_logps_write - create or replace the file: write a temporary file, sync, rename.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE; the old file is then unchanged */
status shard_logps_write(const char *path, const struct shard_logps_key *key, const double *values,
                         int64_t done);
