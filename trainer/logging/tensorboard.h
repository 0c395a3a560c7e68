/* TensorBoard event files: the numbers of metrics.jsonl as scalars. Only rank 0 uses this module.
 *
 * Each session of a run (from a start or resume to its end) writes a separate file
 * events.out.tfevents.<seconds>.<host>.<pid>. TensorBoard reads the files in the order of their
 * names, so the names sort in the order of the sessions, even if the clock was set back. A file
 * begins with its version and with the start of a session at its first step. TensorBoard then
 * discards the values of older files for this step and later steps.
 *
 * Layout    a record is: length u64, masked crc32c of the length u32, one Event
 *           (tensorboard.proto), masked crc32c of the Event u32; little-endian. crc32c is the CRC
 *           of iSCSI (RFC 3720). masked(crc) = rotate_right(crc, 15) + 0xa282ead8, which keeps the
 *           CRC effective for data that contain CRCs
 * Numerics  TensorBoard stores values as float: counts above 2^24 are rounded. metrics.jsonl is
 *           exact
 * Source    tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "trainer/logging/metric.h"

/* Limits of tensorboard_write: the numbers of a line, and the bytes of "event/name" with its NUL.
 * An evaluation of 32 labels has 160 numbers, with names of up to 95 bytes. */
enum { TENSORBOARD_SCALARS_MAX = 256, TENSORBOARD_TAG_BYTES = 112 };

struct tensorboard;

/* tensorboard_create - create a new file in `folder`; create the folder if necessary.
 *
 * Units     first_step: the first step that this session may write; 0 for a new run
 * Order     the caller holds the lock of the run folder
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status tensorboard_create(const char *folder, int64_t first_step, struct tensorboard **out);

/* tensorboard_write - write every numeric field as a scalar named "event/name", in one record.
 *
 * Null values, text and flags are skipped. A number that is not finite is written unchanged.
 *
 * Units     seconds since 1970
 * Memory    allocates none
 * Errors    STATUS_WRITE: the record has not been written; STATUS_INTERNAL if there are more than
 *           TENSORBOARD_SCALARS_MAX fields or a name is too long */
status tensorboard_write(struct tensorboard *t, const char *event, double seconds, int64_t step,
                         const struct metric *fields, int count);

/* tensorboard_sync - sync the file, so that all records survive a power failure.
 *
 * Errors    STATUS_WRITE */
status tensorboard_sync(struct tensorboard *t);

/* tensorboard_destroy - sync and close the file; *t may be NULL.
 *
 * Errors    STATUS_WRITE */
status tensorboard_destroy(struct tensorboard **t);
