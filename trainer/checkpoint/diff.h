/* What can be done with checkpoints without a run: compare two, cut one anew (`bireme checkpoint`). Blocks of
 * 4 MiB are in memory, never a model. The folders are those that checkpoint_choose has found whole. */
#pragma once

#include <jansson.h>

#include "trainer/checkpoint/manifest.h"

/* checkpoint_look - is the folder whole: manifest and sizes, and digests where asked for?
 *
 * Memory    out is for manifest_destroy in any case
 * Errors    false: why is in reason[MANIFEST_REASON_BYTES] */
bool checkpoint_look(const char *folder, bool digests, struct manifest *out, char *reason);

/* checkpoint_diff - compares every tensor of two checkpoints, whatever layouts wrote them.
 *
 * A tensor differs where it is missing, has another shape, or where its largest |a - b| is not at most
 * tolerance times its largest |a|; with tolerance 0, where its bits differ.
 * Memory    *out, for json_decref: {"a", "b", "equal", "tensors", "different": [{"family", "name", "reason"
 *           or "elements", "largest_difference", "relative"}]}
 * Errors    STATUS_CHECKPOINT where one cannot be read; none for a difference */
status checkpoint_diff(const char *a, const char *b, double tolerance, json_t **out);

/* checkpoint_reshard - writes the checkpoint at source anew, as `ranks` ranks would have written it; output
 * appears when it is whole.
 *
 * Errors    STATUS_CREATE if output exists; STATUS_WRITE, STATUS_PERMISSION, STATUS_CHECKPOINT */
status checkpoint_reshard(const char *source, const char *output, int ranks);
