/* Reads packs from a shard set into the rows of a batch. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "datasets/loader/batch.h"
#include "datasets/loader/packing.h"

/* Adds the example in out->ids and out->loss_mask. */
static void add_example(struct packing_rows *out, uint32_t loss_mask_bits, int64_t length)
{
    for (int64_t i = 0; i + 1 < length; i++) {
        int64_t row = out->rows + i;
        bool in_loss = (out->loss_mask[i + 1] & loss_mask_bits) == loss_mask_bits;
        out->inputs[row] = out->ids[i];
        out->positions[row] = (int32_t)i;
        out->targets[row] = in_loss ? out->ids[i + 1] : BATCH_IGNORED;
    }
    out->rows += length - 1;
    out->tokens_seen += length;
    out->longest = number_max(out->longest, length - 1);
    out->cu_rows[++out->segments] = (int32_t)out->rows;
}

status packing_read(const struct packing *p, const struct packing_epoch *epoch,
                    struct shard_set *set, int64_t pack, struct packing_rows *out)
{
    for (int64_t i = 0; i < packing_pack_examples(p, pack); i++) {
        int64_t first, length;
        packing_get_example(p, epoch, pack, i, &first, &length);
        TRY(shard_set_read_tokens(set, first, length, out->ids, out->loss_mask));
        add_example(out, packing_get_rules(p)->loss_mask_bits, length);
    }
    return STATUS_OK;
}

void packing_locate(const struct packing *p, const struct packing_epoch *epoch,
                    const struct shard_set *set, int64_t pack, char *text, int bytes)
{
    int64_t first, length, examples = packing_pack_examples(p, pack);
    packing_get_example(p, epoch, pack, 0, &first, &length);
    shard_set_locate_token(set, first, text, bytes);
    size_t used = strlen(text);
    if (examples > 1) {
        snprintf(text + used, (size_t)bytes - used,
                 ", the first of %" PRId64 " examples in its pack", examples);
    }
}
