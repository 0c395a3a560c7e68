/* Tests of spike.h: scores and averages; of the warnings of spike_response.h; and of the field
 * `spikes` of a manifest. */
#include <math.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "tests/check.h"
#include "trainer/formats/checkpoint/manifest.h"
#include "trainer/formats/checkpoint/manifest_spikes_impl.h"
#include "trainer/train/spike_response.h"
#include "trainer/train/step/spike.h"

/* Observes a step with many predictions. */
static struct spike_score observe_step(struct checkpoint_spikes *s, double loss,
                                       double gradient_norm)
{
    return spike_observe(s, loss, gradient_norm, 1e6);
}

/* Observes `count` losses of exp(level) to exp(level +- noise), with a gradient norm of 1. Returns
 * the number of spikes. */
static int observe_noise(struct checkpoint_spikes *s, double level, double noise, int count)
{
    int found = 0;
    for (int i = 0; i < count; i++) {
        found += observe_step(s, exp(level + (i % 2 == 0 ? noise : -noise)), 1).is_spike;
    }
    return found;
}

static void test_scores(void)
{
    struct checkpoint_spikes s = {0};
    CHECK(observe_noise(&s, 0, 0.1, 63) == 0);
    CHECK(!observe_step(&s, 1e6, 1).is_spike); /* value 64: no decision yet */
    s = (struct checkpoint_spikes){0};
    CHECK(observe_noise(&s, 0, 0.1, 64) == 0);
    /* changes of 0.2 are a standard deviation of 0.17724; the mean is about 0 */
    struct checkpoint_spikes before = s;
    struct spike_score score = observe_step(&s, exp(1.0), 1);
    CHECK_NEAR(score.loss, 1.0 / 0.17724, 0.1); /* 5.64, below the limit of 6 */
    CHECK(!score.is_spike);
    CHECK(score.gradient_norm == 0);
    s = before;
    CHECK(observe_step(&s, exp(1.2), 1).is_spike);
    CHECK(s.averages.loss.mean - before.averages.loss.mean <=
          3 * 0.17725 / 16); /* the value is limited */
    s = before;
    CHECK(!observe_step(&s, exp(-9.0), 1).is_spike); /* a low loss is no spike */
    s = before;
    CHECK(observe_step(&s, 1, exp(0.13)).is_spike); /* the smallest deviation is 0.02 */
    s = before;
    CHECK(!observe_step(&s, 1, exp(0.11)).is_spike);
}

static void test_special_values(void)
{
    struct checkpoint_spikes s = {0};
    CHECK(observe_step(&s, 1, NAN).is_spike); /* also at the start */
    CHECK(observe_step(&s, INFINITY, 1).is_spike);
    CHECK(observe_step(&s, -INFINITY, 1).is_spike);
    s = (struct checkpoint_spikes){0};
    CHECK(observe_noise(&s, 0, 0.1, 100) == 0);
    struct checkpoint_spikes before = s;
    struct spike_score score = observe_step(&s, NAN, NAN);
    CHECK(score.is_spike && isinf(score.loss) && isinf(score.gradient_norm));
    score = observe_step(&s, 0, -1);
    CHECK(!score.is_spike && score.loss == 0 && score.gradient_norm == 0);
    CHECK(memcmp(&s, &before, sizeof s) == 0);
}

/* A fast decrease at the start does not hide a spike, and a lasting change is accepted. */
static void test_trends(void)
{
    struct checkpoint_spikes s = {0};
    for (int i = 0; i < 100; i++) {
        CHECK(!observe_step(&s, 2.4 + 3 * exp(-i / 20.0), 1).is_spike);
    }
    struct checkpoint_spikes before = s;
    CHECK(observe_step(&s, 3.2, 1).is_spike);
    s = before;
    int spikes = observe_noise(&s, log(5), 0.02, 400);
    CHECK(spikes > 0 && spikes < 300);
    CHECK(observe_noise(&s, log(5), 0.02, 100) == 0);
}

/* Batches of few examples: the loss of one wrong example is no spike, at any loss. */
static void test_small_batches(void)
{
    struct checkpoint_spikes s = {0};
    CHECK(observe_noise(&s, log(0.05), 0.1, 100) == 0);
    struct checkpoint_spikes before = s;
    CHECK(!spike_observe(&s, 1.5, 1, 8).is_spike);
    s = before;
    CHECK(spike_observe(&s, 3.5, 1, 8).is_spike);
    s = before;
    CHECK(spike_observe(&s, 1.5, 1, 1000).is_spike);
    s = before;
    CHECK(!spike_observe(&s, 0.05, 5, 8).is_spike);
    s = before;
    CHECK(spike_observe(&s, 0.05, 5, 1000).is_spike);
    s = (struct checkpoint_spikes){0};
    CHECK(observe_noise(&s, log(2.4), 0.01, 100) == 0); /* an even loss before the model learns */
    CHECK(!spike_observe(&s, 3.1, 1, 8).is_spike);
}

static void test_skipped(void)
{
    struct checkpoint_spikes s = {0};
    CHECK(spike_add_skipped(&s, (struct checkpoint_samples){24, 36}));
    CHECK(spike_add_skipped(&s, (struct checkpoint_samples){48, 60}));
    CHECK(s.skipped_count == 2);
    CHECK(spike_add_skipped(&s, (struct checkpoint_samples){60, 72})); /* touches */
    CHECK(s.skipped_count == 2 && s.skipped[1].first == 48 && s.skipped[1].end == 72);
    CHECK(spike_add_skipped(&s, (struct checkpoint_samples){30, 84})); /* overlaps both */
    CHECK(s.skipped_count == 1 && s.skipped[0].first == 24 && s.skipped[0].end == 84);
    for (int64_t i = 1; i < CHECKPOINT_SPIKES_MAX; i++) {
        CHECK(spike_add_skipped(&s, (struct checkpoint_samples){100 * i, 100 * i + 1}));
    }
    CHECK(!spike_add_skipped(&s, (struct checkpoint_samples){10000, 10012}));
    CHECK(s.skipped_count == CHECKPOINT_SPIKES_MAX);
}

/* ---- the manifest ---- */

static struct checkpoint_spikes make_spikes(void)
{
    struct checkpoint_spikes s = {.updated_step = 17, .count = 3, .rollbacks = 2};
    (void)observe_noise(&s, 0.7, 1 / 3.0, 77);
    CHECK(spike_add_skipped(&s, (struct checkpoint_samples){0, 12}));
    CHECK(spike_add_skipped(&s, (struct checkpoint_samples){24, 48}));
    return s;
}

static char *make_manifest(struct manifest *m, size_t *bytes)
{
    char *text = NULL;
    *m = (struct manifest){.ranks = 1, .state = {.step = 20, .spikes = make_spikes()}};
    m->version = strdup("1");
    m->recipe = strdup("objective: clm");
    m->data_fingerprint = strdup("none");
    CHECK_OK(manifest_to_text(m, &text, bytes));
    return text;
}

static void test_round_trip(void)
{
    struct manifest m, parsed;
    char reason[MANIFEST_REASON_BYTES] = "";
    size_t bytes = 0;
    char *text = make_manifest(&m, &bytes);
    CHECK(manifest_parse(text, bytes, &parsed, reason));
    CHECK(memcmp(&m.state.spikes, &parsed.state.spikes, sizeof m.state.spikes) == 0);
    manifest_destroy(&m);
    manifest_destroy(&parsed);
    free(text);
}

/* Removes the field, as in a checkpoint of an older version, and updates the digest. */
static void test_older_manifest(void)
{
    static const char tail[] = ",\n \"sha256\": \"";
    struct manifest m, parsed;
    char reason[MANIFEST_REASON_BYTES] = "", digest[HASH_TEXT_BYTES];
    size_t bytes = 0;
    char *text = make_manifest(&m, &bytes), *field = strstr(text, "\n \"spikes\"");
    CHECK(field != NULL);
    char *next = strstr(field, "\n \"ranks\"");
    memmove(field, next, strlen(next) + 1);
    char *end = strstr(text, tail);
    CHECK_OK(hash_memory(text, (size_t)(end - text), digest));
    memcpy(end + strlen(tail), digest, strlen(digest));
    CHECK(manifest_parse(text, strlen(text), &parsed, reason));
    CHECK(parsed.state.spikes.updated_step == 20 && parsed.state.spikes.averages.loss.count == 0);
    CHECK(parsed.state.spikes.skipped_count == 0);
    manifest_destroy(&m);
    manifest_destroy(&parsed);
    free(text);
}

static bool parse_changed(const char *name, const char *value)
{
    struct checkpoint_spikes good = make_spikes(), parsed;
    json_t *field = manifest_spikes_to_json(&good),
           *changed = json_loads(value, JSON_DECODE_ANY, NULL);
    CHECK(manifest_parse_spikes(field, 17, &parsed));
    CHECK(changed != NULL && json_object_set_new(field, name, changed) == 0);
    bool result = manifest_parse_spikes(field, 17, &parsed);
    json_decref(field);
    return result;
}

static void test_bad_fields(void)
{
    static const char *const bad[][2] = {
        {"count", "-1"},
        {"count", "1.5"},
        {"rollbacks", "-1"},
        {"rollbacks", "4"},
        {"rollbacks", "1.5"},
        {"updated_step", "18"},
        {"updated_step", "-1"},
        {"loss", "3"},
        {"loss", "{\"mean\": 0, \"change\": -1, \"last\": 0, \"count\": 1}"},
        {"loss", "{\"mean\": 0, \"change\": 1, \"last\": 0, \"count\": -1}"},
        {"grad_norm", "{\"mean\": 0, \"change\": 1, \"count\": 1}"},
        {"skipped_samples", "null"},
        {"skipped_samples", "[3]"},
        {"skipped_samples", "[[3, 3]]"},
        {"skipped_samples", "[[-1, 3]]"},
        {"skipped_samples", "[[1, 2, 3]]"},
        {"skipped_samples", "[[1, 3], [3, 4]]"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!parse_changed(bad[i][0], bad[i][1]));
    }
    CHECK(parse_changed("skipped_samples", "[]"));
    char many[2000] = "[[0, 1]";
    for (int i = 1; i <= CHECKPOINT_SPIKES_MAX; i++) {
        size_t used = strlen(many);
        snprintf(many + used, sizeof many - used, ", [%d, %d]", 2 * i, 2 * i + 1);
    }
    CHECK(!parse_changed("skipped_samples", strcat(many, "]")));
}

/* Only the first of consecutive spikes is printed, and at most ten warnings in all. */
static void test_warnings(void)
{
    enum { STEPS = 60 };
    static struct job job;
    static char text[STEPS * 400];
    struct spike_response response = {0};
    job.session.recipe.train.on_spike = ON_SPIKE_WARN;
    log_quiet(true);
    log_divert_warnings(text, sizeof text);
    for (int i = 0; i < STEPS; i++) {
        struct step_result result = {.loss = 4, .spike = {.loss = 7, .is_spike = i % 3 != 0}};
        struct spike_event event;
        CHECK_OK(spike_response_apply(&response, &job, &result, &event));
        CHECK((event.action != NULL) == result.spike.is_spike);
    }
    log_divert_warnings(NULL, 0);
    log_quiet(false);
    int warnings = 0;
    for (const char *c = text; (c = strstr(c, "[W-SPIKE]")) != NULL; c++) {
        warnings++;
    }
    CHECK_EQUAL(warnings, 10);
    CHECK(strstr(text, "; metrics.jsonl lists the further spikes [W-SPIKE]") != NULL);
}

int main(void)
{
    test_scores();
    test_special_values();
    test_trends();
    test_small_batches();
    test_skipped();
    test_round_trip();
    test_older_manifest();
    test_bad_fields();
    test_warnings();
    return 0;
}
