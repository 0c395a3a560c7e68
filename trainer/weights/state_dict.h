/* Named views of a rank's flat buffers, for the checkpoint: which part of which tensor lies where.
 *
 * A rank's part of a parameter may be several rectangles of the whole (tensor parallelism), and its moments
 * may be those of a range of elements alone (ZeRO): each such range is cut at the ends of rows, so that every
 * piece is a rectangle that says where it lies in the whole. */
#pragma once

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/model/model.h"
#include "trainer/optimizer/optimizer.h"

struct family {
    struct checkpoint_family family;
    struct checkpoint_tensor *tensors;
    char (*names)[2 * MODEL_NAME_BYTES];
    int most;
};

/* Which parameters. FAMILY_MODEL: all but adapters; FAMILY_HEAD: those of it that are trained beside them. */
enum family_part { FAMILY_WHOLE = 0, FAMILY_TRAINED, FAMILY_FROZEN, FAMILY_MODEL, FAMILY_HEAD };

/* What a rank holds of a model: its parameters, and whether it writes those that all ranks of its
 * tensor-parallel group hold (one of them does). */
struct family_layout {
    const struct model_parameter *parameters;
    int count;
    bool writes_replicated;
    enum family_part part;
};

/* Which elements of the flat buffers lie where in memory; sharded: other ranks of the data-parallel group
 * hold other ranges. */
struct family_ranges {
    const struct optimizer_range *ranges;
    int count;
    bool sharded;
};

/* family_weights - the weights as the family "model".
 *
 * Memory    the views are into weights, which may be NULL where only sizes are asked for */
status family_weights(const struct family_layout *layout, const struct family_ranges *ranges,
                      float *weights, struct family *out);

/* family_moments - both moments as the family "optimizer": exp_avg/NAME and exp_avg_sq/NAME. */
status family_moments(const struct family_layout *layout, const struct family_ranges *ranges,
                      float *moment1, float *moment2, struct family *out);
void family_destroy(struct family *family);
