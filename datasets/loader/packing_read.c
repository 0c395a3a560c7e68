/* Packs out of a set of shards into the rows of a batch. */
#include <stdio.h>
#include <string.h>

#include "datasets/loader/batch.h"
#include "datasets/loader/packing.h"

static void add_example(struct packing_rows *out, uint32_t learn, int64_t length)
{
    for (int64_t i = 0; i + 1 < length; i++) {
        int64_t row = out->rows + i;
        bool learned = (out->marks[i + 1] & learn) == learn;
        out->inputs[row] = out->ids[i];
        out->positions[row] = (int32_t)i;
        out->targets[row] = learned ? out->ids[i + 1] : BATCH_IGNORED;
    }
    out->rows += length - 1;
    out->seen += length;
    out->longest = length - 1 > out->longest ? length - 1 : out->longest;
    out->cu_rows[++out->segments] = (int32_t)out->rows;
}

status packing_read(const struct packing *p, const struct packing_epoch *epoch,
                    struct shard_set *set, int64_t pack, struct packing_rows *out)
{
    for (int64_t i = 0; i < packing_pack_examples(p, pack); i++) {
        int64_t first, length;
        packing_example(p, epoch, pack, i, &first, &length);
        TRY(shard_set_at(set, first, length, out->ids, out->marks));
        add_example(out, packing_rules_of(p)->learn, length);
    }
    return STATUS_OK;
}

void packing_locate(const struct packing *p, const struct packing_epoch *epoch,
                    const struct shard_set *set, int64_t pack, char *text, int bytes)
{
    int64_t first, length, examples = packing_pack_examples(p, pack);
    packing_example(p, epoch, pack, 0, &first, &length);
    shard_set_locate_token(set, first, text, bytes);
    size_t used = strlen(text);
    if (examples > 1) {
        snprintf(text + used, (size_t)bytes - used, ", the first of %lld examples in its pack",
                 (long long)examples);
    }
}
