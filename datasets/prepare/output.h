/* Writes documents or examples to the shards of the training and validation sets.
 *
 * Shards are written to a temporary folder inside of the output folder. prepare_output_finish gives
 * them their final names.
 *
 * Calls     prepare_output_open. Documents: prepare_output_write_tokens and
 *           prepare_output_end_document for each one. Examples: prepare_output_set_labels if the
 *           kind has labels, prepare_output_write_example for each one. Then prepare_output_finish
 *           and prepare_output_close; after an error only prepare_output_close */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "datasets/prepare/prepare.h"
#include "datasets/shard/example.h"
#include "datasets/shard/labels.h"

struct prepare_output;

/* The set that an example belongs to. BY_FRACTION: as validation_fraction selects. */
enum prepare_split { PREPARE_SPLIT_BY_FRACTION, PREPARE_SPLIT_TRAIN, PREPARE_SPLIT_VALIDATION };

/* prepare_output_open - create the output folder and a locked temporary folder inside of it.
 *
 * Memory    options is borrowed until prepare_output_close
 * Errors    STATUS_CREATE (also if another preparation holds the lock), STATUS_PERMISSION */
status prepare_output_open(const struct prepare_options *options, enum example_kind kind,
                           struct prepare_output **out);

/* prepare_output_set_labels - set the label names that every shard stores. Call it before the
 * first example.
 *
 * Errors    STATUS_DATA if the names are too long for a shard */
status prepare_output_set_labels(struct prepare_output *o, const struct labels *labels);

/* prepare_output_temporary_folder - return the path of the temporary folder, which
 * prepare_output_close removes. */
const char *prepare_output_temporary_folder(const struct prepare_output *o);

/* prepare_output_write_example - write one complete example.
 *
 * Shapes    ids [count]; values: for each column of the kind, [count] if the column is per token,
 *           otherwise one value
 * Errors    STATUS_USAGE if the example does not fit into a shard; as shard_writer */
status prepare_output_write_example(struct prepare_output *o, enum prepare_split split,
                                    const int32_t *ids, int64_t count,
                                    const uint32_t *const *values);

/* prepare_output_count_validation - return how many of at least two examples belong to the
 * validation set: the rounded fraction, but at least one example and not all of them. */
int64_t prepare_output_count_validation(int64_t examples, double fraction);

/* prepare_output_draw_from_stratum - draw the validation document of a stratum (shuffle_split).
 *
 * The documents are divided into strata of 1 / validation_fraction documents each. Returns the
 * index of the document drawn; *end receives the end of the stratum. */
int64_t prepare_output_draw_from_stratum(const struct prepare_options *options, int64_t stratum,
                                         int64_t *end);

/* prepare_output_write_tokens - append ids to the current document. `output` is a struct
 * prepare_output; the function fits struct encoder_sink.
 *
 * Errors    as shard_writer; STATUS_DATA if there are too many shards */
status prepare_output_write_tokens(void *output, const int32_t *ids, int64_t count);

/* prepare_output_end_document - end the current document; does nothing if it has no tokens. The
 * function fits struct encoder_sink. */
status prepare_output_end_document(void *output);

/* prepare_output_finish - separate the validation set, replace earlier shards with the new ones,
 * and fill in the report.
 *
 * Errors    STATUS_DATA if a split would be empty; STATUS_CREATE, STATUS_WRITE */
status prepare_output_finish(struct prepare_output *o, struct prepare_report *report);

/* prepare_output_close - remove the temporary folder and set *output to NULL; NULL is allowed. It
 * keeps a pending error. After an error it also removes an output folder that was created and
 * is empty. */
void prepare_output_close(struct prepare_output **output);
