/* TensorBoard's event files: the numbers of metrics.jsonl as curves. Rank 0 only.
 *
 * Each session of a run writes a file of its own, events.out.tfevents.<seconds>.<host>.<pid>. Names sort
 * in the order of the sessions, also where the clock was set back: TensorBoard reads them in this
 * order. A file begins with its version and with the start of a session at the first step that it may
 * hold; what older files say of that step and of later ones is superseded.
 *
 * Layout    a record is: length u64, its masked crc32c u32, one Event (tensorboard.proto), its
 *           masked crc32c u32, little-endian. crc32c is that of iSCSI (RFC 3720), and masked is
 *           rotate_right(crc, 15) + 0xa282ead8, so that a crc over data that has crcs in it stays good
 * Numerics  a value is a float there: counts above 2^24 are rounded, metrics.jsonl has them exactly
 * Source    tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "trainer/logging/metric.h"

struct tensorboard;

/* tensorboard_create - a new file in folder, which is made where it is missing.
 *
 * Units     first_step: the first step that this session may write, 0 for a run that begins
 * Order     the caller holds the run folder's lock
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status tensorboard_create(const char *folder, int64_t first_step, struct tensorboard **out);

/* tensorboard_write - every numeric field as a scalar named "event/name", one record for all.
 *
 * Null, text and flags are left out; a number that is not finite is written as it is.
 * Units     seconds since 1970
 * Memory    none is allocated
 * Errors    STATUS_WRITE: the record is not there; STATUS_INTERNAL if there are more than 64 fields or a
 *           name is too long */
status tensorboard_write(struct tensorboard *t, const char *event, double seconds, int64_t step,
                         const struct metric *fields, int count);

/* tensorboard_sync - until here the records survive a power cut.  Errors: STATUS_WRITE */
status tensorboard_sync(struct tensorboard *t);

/* tensorboard_destroy - sync and close; NULL is fine.  Errors: STATUS_WRITE */
status tensorboard_destroy(struct tensorboard **t);
