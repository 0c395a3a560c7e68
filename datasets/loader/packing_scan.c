/* From a set of shards to packs: which tokens are an example, and whether anything of it is learned. */
#include "datasets/loader/packing.h"

enum { MARKS = 4096 };

struct scan {
    struct shard_set *set;
    const struct packing_rules *rules;
    struct packing *packing;
    struct packing_report *report;
    uint32_t marks[MARKS];
    int64_t stream_first, stream_end; /* of the stream, what is in no stretch yet */
    int shard;
};

/* Whether something of tokens [first, first + length) is learned; the first of them is not predicted. */
static status is_learned(struct scan *s, int64_t first, int64_t length, bool *learned)
{
    *learned = false;
    for (int64_t at = first + 1, end = first + length, count; at < end && !*learned; at += count) {
        count = end - at < MARKS ? end - at : MARKS;
        TRY(shard_set_at(s->set, at, count, NULL, s->marks));
        for (int64_t i = 0; i < count && !*learned; i++) {
            *learned = (s->marks[i] & s->rules->learn) == s->rules->learn;
        }
    }
    return STATUS_OK;
}

static status add_if_learned(struct scan *s, int64_t first, int64_t length, bool *learned)
{
    TRY(is_learned(s, first, length, learned));
    s->report->tokens += *learned ? length : 0;
    return *learned ? packing_add(s->packing, first, length) : STATUS_OK;
}

static status add_example(struct scan *s, int64_t example, const struct shard_set_range *range)
{
    int64_t most = s->rules->max_length, length = range->end - range->first;
    bool some = false, split = s->rules->kind == PACKING_BFD_SPLIT;
    s->report->cut += length > most;
    s->report->cut_tokens += length > most && !split ? length - most : 0;
    for (int64_t at = range->first; at < range->end; at += most) {
        bool learned = false;
        TRY(add_if_learned(s, at, range->end - at < most ? range->end - at : most, &learned));
        some = some || learned;
        if (!split) {
            break;
        }
    }
    if (some) {
        return STATUS_OK;
    }
    char place[1024];
    shard_set_locate(s->set, example, 0, place, sizeof place);
    REQUIRE(s->rules->skip_empty, STATUS_DATA,
            "%s: nothing to learn in its first %lld tokens; raise sft.max_length, or leave such "
            "examples out with sft.skip_empty: true",
            place, (long long)(length < most ? length : most));
    s->report->empty++;
    return STATUS_OK;
}

/* What the stream holds, in whole stretches; all of it where it ends. */
static status cut_stream(struct scan *s, bool ends)
{
    while (s->stream_end - s->stream_first >= (ends ? 2 : s->rules->max_length)) {
        int64_t held = s->stream_end - s->stream_first;
        int64_t length = held < s->rules->max_length ? held : s->rules->max_length;
        bool learned = false;
        TRY(add_if_learned(s, s->stream_first, length, &learned));
        s->report->empty += !learned;
        s->stream_first += length;
    }
    return STATUS_OK;
}

static status add_to_stream(struct scan *s, const struct shard_set_range *range)
{
    if (range->shard != s->shard) {
        TRY(cut_stream(s, true));
        s->shard = range->shard;
        s->stream_first = range->first;
    }
    s->stream_end = range->end;
    return cut_stream(s, false);
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
    TRY(cut_stream(s, true));
    TRY(packing_finish(s->packing));
    s->report->packs = packing_packs(s->packing);
    char place[1024];
    shard_set_locate(s->set, 0, 0, place, sizeof place);
    REQUIRE(s->report->packs > 0, STATUS_DATA,
            "%s and all after it: nothing is learned of any example within %lld tokens", place,
            (long long)s->rules->max_length);
    return STATUS_OK;
}

status packing_scan(struct shard_set *set, const struct packing_rules *rules, int64_t room,
                    struct packing **out, struct packing_report *report)
{
    struct scan s = {.set = set, .rules = rules, .report = report, .shard = -1};
    *report = (struct packing_report){0};
    TRY(packing_create(rules, room, out));
    s.packing = *out;
    status result = scan_set(&s);
    if (result != STATUS_OK) {
        packing_destroy(out);
    }
    return result;
}
