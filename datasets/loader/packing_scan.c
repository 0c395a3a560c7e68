/* Finds the examples of a shard set, and whether the loss includes any of their tokens. */
#include "base/number.h"
#include "datasets/loader/packing.h"

#include <inttypes.h>

enum { LOSS_MASK_TOKENS = 4096 }; /* read at a time */

struct scan {
    struct shard_set *set;
    const struct packing_rules *rules;
    struct packing *packing;
    struct packing_report *report;
    uint32_t loss_mask[LOSS_MASK_TOKENS];
    int64_t stream_first, stream_end; /* wrapped: joined tokens that are in no chunk yet */
    int shard;                        /* wrapped: shard of the joined tokens */
};

/* Sets *in_loss to whether the loss includes any of tokens [first, first + length). The first token
 * is not predicted. */
static status check_loss_mask(struct scan *s, int64_t first, int64_t length, bool *in_loss)
{
    *in_loss = false;
    for (int64_t begin = first + 1, end = first + length, count; begin < end && !*in_loss;
         begin += count) {
        count = number_min(end - begin, LOSS_MASK_TOKENS);
        TRY(shard_set_read_tokens(s->set, begin, count, NULL, s->loss_mask));
        for (int64_t i = 0; i < count && !*in_loss; i++) {
            *in_loss = (s->loss_mask[i] & s->rules->loss_mask_bits) == s->rules->loss_mask_bits;
        }
    }
    return STATUS_OK;
}

static status add_if_in_loss(struct scan *s, int64_t first, int64_t length, bool *in_loss)
{
    TRY(check_loss_mask(s, first, length, in_loss));
    s->report->tokens += *in_loss ? length : 0;
    return *in_loss ? packing_add(s->packing, first, length) : STATUS_OK;
}

static status add_example(struct scan *s, int64_t example, const struct shard_set_range *range)
{
    int64_t max_length = s->rules->max_length, length = range->end - range->first;
    bool any_in_loss = false, split = s->rules->kind == PACKING_BFD_SPLIT;
    s->report->truncated += length > max_length;
    s->report->truncated_tokens += length > max_length && !split ? length - max_length : 0;
    for (int64_t begin = range->first; begin < range->end; begin += max_length) {
        bool in_loss = false;
        TRY(add_if_in_loss(s, begin, number_min(range->end - begin, max_length), &in_loss));
        any_in_loss = any_in_loss || in_loss;
        if (!split) {
            break;
        }
    }
    if (any_in_loss) {
        return STATUS_OK;
    }
    char location[1024];
    shard_set_locate(s->set, example, 0, location, sizeof location);
    REQUIRE(s->rules->skip_empty, STATUS_DATA,
            "%s: the loss includes none of its first %" PRId64
            " tokens; raise sft.max_length, or skip such examples with sft.skip_empty: true",
            location, number_min(length, max_length));
    s->report->empty++;
    return STATUS_OK;
}

/* Adds the joined tokens in whole chunks. At the end of a shard, adds the rest too. */
static status split_stream(struct scan *s, bool ends)
{
    while (s->stream_end - s->stream_first >= (ends ? 2 : s->rules->max_length)) {
        int64_t available = s->stream_end - s->stream_first;
        int64_t length = number_min(available, s->rules->max_length);
        bool in_loss = false;
        TRY(add_if_in_loss(s, s->stream_first, length, &in_loss));
        s->report->empty += !in_loss;
        s->stream_first += length;
    }
    return STATUS_OK;
}

static status add_to_stream(struct scan *s, const struct shard_set_range *range)
{
    if (range->shard != s->shard) {
        TRY(split_stream(s, true));
        s->shard = range->shard;
        s->stream_first = range->first;
    }
    s->stream_end = range->end;
    return split_stream(s, false);
}

static status scan_set(struct scan *s)
{
    s->report->examples = shard_set_samples(s->set);
    for (int64_t i = 0; i < s->report->examples; i++) {
        struct shard_set_range range;
        TRY(shard_set_range(s->set, i, &range));
        TRY(s->rules->kind == PACKING_WRAPPED ? add_to_stream(s, &range)
                                              : add_example(s, i, &range));
    }
    TRY(split_stream(s, true));
    TRY(packing_finish(s->packing));
    s->report->packs = packing_pack_count(s->packing);
    char location[1024];
    shard_set_locate(s->set, 0, 0, location, sizeof location);
    REQUIRE(s->report->packs > 0, STATUS_DATA,
            "%s and all later examples: the loss includes none of their first %" PRId64
            " tokens; raise sft.max_length or check the loss mask",
            location, s->rules->max_length);
    return STATUS_OK;
}

status packing_scan(struct shard_set *set, const struct packing_rules *rules, int64_t pack_tokens,
                    struct packing **out, struct packing_report *report)
{
    struct scan s = {.set = set, .rules = rules, .report = report, .shard = -1};
    *report = (struct packing_report){0};
    TRY(packing_create(rules, pack_tokens, out));
    s.packing = *out;
    status result = scan_set(&s);
    if (result != STATUS_OK) {
        packing_destroy(out);
    }
    return result;
}
