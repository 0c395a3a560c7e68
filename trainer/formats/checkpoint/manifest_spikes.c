#include "trainer/formats/checkpoint/manifest_spikes_impl.h"

static json_t *trend_to_json(const struct spike_trend *trend)
{
    return json_pack("{s:f, s:f, s:f, s:I}", "mean", trend->mean, "change", trend->change, "last",
                     trend->last, "count", (json_int_t)trend->count);
}

json_t *manifest_spikes_to_json(const struct checkpoint_spikes *spikes)
{
    json_t *skipped = json_array();
    for (int i = 0; i < spikes->skipped_count; i++) {
        const struct checkpoint_samples *s = &spikes->skipped[i];
        json_array_append_new(skipped,
                              json_pack("[I, I]", (json_int_t)s->first, (json_int_t)s->end));
    }
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:o}", "loss",
                     trend_to_json(&spikes->averages.loss), "grad_norm",
                     trend_to_json(&spikes->averages.gradient_norm), "updated_step",
                     (json_int_t)spikes->updated_step, "count", (json_int_t)spikes->count,
                     "rollbacks", (json_int_t)spikes->rollbacks, "skipped_samples", skipped);
}

/* JSON has no infinities and no NaN, so the numbers are finite. */
static bool parse_trend(json_t *field, struct spike_trend *out)
{
    json_int_t count = 0;
    bool good = json_unpack(field, "{s:F, s:F, s:F, s:I}", "mean", &out->mean, "change",
                            &out->change, "last", &out->last, "count", &count) == 0;
    out->count = count;
    return good && count >= 0 && out->change >= 0;
}

static bool parse_skipped(json_t *list, struct checkpoint_spikes *out)
{
    int64_t end = -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t range[2];
        if (i >= CHECKPOINT_SPIKES_MAX ||
            json_unpack(json_array_get(list, i), "[I, I!]", &range[0], &range[1]) != 0 ||
            range[0] <= end || range[1] <= range[0]) {
            return false;
        }
        end = range[1];
        out->skipped[out->skipped_count++] = (struct checkpoint_samples){range[0], range[1]};
    }
    return json_is_array(list);
}

bool manifest_parse_spikes(json_t *field, int64_t step, struct checkpoint_spikes *out)
{
    json_int_t updated = 0, count = 0, rollbacks = 0;
    *out = (struct checkpoint_spikes){.skipped_count = 0};
    bool good = json_unpack(field, "{s:I, s:I, s?I}", "updated_step", &updated, "count", &count,
                            "rollbacks", &rollbacks) == 0 &&
                parse_trend(json_object_get(field, "loss"), &out->averages.loss) &&
                parse_trend(json_object_get(field, "grad_norm"), &out->averages.gradient_norm) &&
                parse_skipped(json_object_get(field, "skipped_samples"), out);
    out->updated_step = updated;
    out->count = count;
    out->rollbacks = rollbacks;
    return good && updated >= 0 && updated <= step && count >= 0 && rollbacks >= 0 &&
           rollbacks <= count;
}
