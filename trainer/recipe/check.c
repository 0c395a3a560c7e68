/* Settings against each other: what null leaves to the program is filled in, then contradictions are
 * found, each told with both keys and the place of one of them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trainer/recipe/settings.h"

static struct place place_of(const struct reading *r, const char *key)
{
    return r->places[recipe_table_find(key)];
}

/* place_of_pair - where a contradiction was made: on the command line, else at the first key. */
static struct place place_of_pair(const struct reading *r, const char *a, const char *b)
{
    struct place first = place_of(r, a);
    struct place second = place_of(r, b);
    if (first.kind == PLACE_COMMAND || (first.kind == PLACE_FILE && second.kind != PLACE_COMMAND)) {
        return first;
    }
    return second;
}

static void default_run_dir(const struct reading *r)
{
    struct recipe *c = r->recipe;
    const char *slash = strrchr(r->name, '/');
    const char *stem = slash != NULL ? slash + 1 : r->name;
    size_t length = strlen(stem);
    const char *dot = strrchr(stem, '.');
    if (dot != NULL && dot != stem) {
        length = (size_t)(dot - stem);
    }
    snprintf(c->run_dir, sizeof c->run_dir, "runs/%.*s", (int)(length < 200 ? length : 200), stem);
}

/* RoBERTa's positions begin with row 2. */
static int64_t skipped_positions(const struct recipe *c)
{
    return strcmp(c->model.architecture, "roberta") == 0 ? 2 : 0;
}

static void resolve(const struct reading *r)
{
    struct recipe *c = r->recipe;
    if (c->run_dir[0] == '\0') {
        default_run_dir(r);
    }
    if (c->model.intermediate_size == 0) {
        c->model.intermediate_size = 4 * c->model.hidden_size;
    }
    if (c->model.num_kv_heads == 0) {
        c->model.num_kv_heads = c->model.num_heads;
    }
    if (c->model.attention_dropout < 0) {
        c->model.attention_dropout = c->model.dropout;
    }
    if (c->data.sequence_length == 0) {
        c->data.sequence_length = c->model.max_position_embeddings - skipped_positions(c);
    }
    if (c->model.type_vocab_size < 0) {
        c->model.type_vocab_size = strcmp(c->model.architecture, "bert") == 0      ? 2
                                   : strcmp(c->model.architecture, "roberta") == 0 ? 1
                                                                                   : 0;
    }
    if (c->model.rope_original_positions == 0) {
        c->model.rope_original_positions = c->model.max_position_embeddings;
    }
    if (c->mlm.max_predictions == 0) {
        double most = ceil(c->mlm.mask_probability * (double)c->data.sequence_length - 1e-9);
        c->mlm.max_predictions = most < 1 ? 1 : (int64_t)most;
    }
    if (c->sft.max_length == 0) {
        c->sft.max_length = c->data.sequence_length;
    }
    if (c->batch.micro_size == 0) {
        c->batch.micro_size = c->batch.global_size < 8 ? c->batch.global_size : 8;
    }
    if (c->adapter.type[0] != '\0' && c->adapter.targets[0] == '\0') {
        bool llama = strcmp(c->model.architecture, "llama") == 0;
        bool gpt2 = strcmp(c->model.architecture, "gpt2") == 0;
        snprintf(c->adapter.targets, sizeof c->adapter.targets, "%s",
                 llama  ? "q_proj, v_proj"
                 : gpt2 ? "c_attn"
                        : "query, value");
    }
    if (c->schedule.warmup_steps < 0 && c->schedule.warmup_ratio < 0) {
        c->schedule.warmup_steps = 0;
    }
    if (c->evaluate.every < 0) {
        c->evaluate.every = c->data.validation[0] != '\0' ? 250 : 0;
    }
}

static status check_heads(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    int64_t heads = c->model.num_heads, narrow = c->model.num_kv_heads;
    bool llama = strcmp(c->model.architecture, "llama") == 0;
    if (heads % narrow != 0 || (narrow != heads && !llama)) {
        return recipe_fail(r, place_of_pair(r, "model.num_kv_heads", "model.num_heads"),
                           "model.num_kv_heads", "%lld %s", (long long)narrow,
                           llama ? "does not divide model.num_heads"
                                 : "differs from model.num_heads; only llama can");
    }
    if (llama && c->model.hidden_size / heads % 2 != 0) {
        return recipe_fail(r, place_of_pair(r, "model.num_heads", "model.hidden_size"),
                           "model.num_heads",
                           "heads of %lld features: rotary positions need an even number",
                           (long long)(c->model.hidden_size / heads));
    }
    return STATUS_OK;
}

static status check_rotary(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    bool plain = strcmp(c->model.rope_type, "default") == 0;
    if (!plain && strcmp(c->model.architecture, "llama") != 0) {
        return recipe_fail(r, place_of_pair(r, "model.rope_type", "model.architecture"),
                           "model.rope_type", "%s needs model.architecture llama, not %s",
                           c->model.rope_type, c->model.architecture);
    }
    if (strcmp(c->model.rope_type, "llama3") == 0 &&
        !(c->model.rope_low_freq_factor < c->model.rope_high_freq_factor)) {
        return recipe_fail(
            r, place_of_pair(r, "model.rope_low_freq_factor", "model.rope_high_freq_factor"),
            "model.rope_low_freq_factor", "%g is not less than model.rope_high_freq_factor, %g",
            c->model.rope_low_freq_factor, c->model.rope_high_freq_factor);
    }
    return STATUS_OK;
}

static status check_model(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    if (c->model.hidden_size % c->model.num_heads != 0) {
        return recipe_fail(r, place_of_pair(r, "model.hidden_size", "model.num_heads"),
                           "model.hidden_size", "%lld is not a multiple of model.num_heads, %lld",
                           (long long)c->model.hidden_size, (long long)c->model.num_heads);
    }
    TRY(check_heads(r));
    TRY(check_rotary(r));
    int64_t skipped = skipped_positions(c);
    if (c->data.sequence_length > c->model.max_position_embeddings - skipped) {
        return recipe_fail(
            r, place_of_pair(r, "data.sequence_length", "model.max_position_embeddings"),
            "data.sequence_length", "%lld is more than model.max_position_embeddings, %lld%s",
            (long long)c->data.sequence_length, (long long)c->model.max_position_embeddings,
            skipped > 0 ? ", less the 2 that roberta leaves free" : "");
    }
    if (c->model.vocab_size == 0 && c->data.tokenizer[0] == '\0') {
        return recipe_fail(r, place_of_pair(r, "data.tokenizer", "model.vocab_size"),
                           "data.tokenizer", "missing; give data.tokenizer or model.vocab_size");
    }
    return STATUS_OK;
}

/* Objectives that every architecture has a head for. */
static bool has_task(const struct recipe *c)
{
    static const char *const tasks[] = {"classify", "regress", "classify_tokens", "answer",
                                        "choose",   "embed",   "reward"};
    bool found = false;
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        found = found || strcmp(c->objective, tasks[i]) == 0;
    }
    return found;
}

static bool masks(const struct recipe *c)
{
    return strcmp(c->objective, "mlm") == 0;
}

/* check_objective - the architecture can do what is asked of it. */
static status check_objective(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    bool encoder =
        strcmp(c->model.architecture, "bert") == 0 || strcmp(c->model.architecture, "roberta") == 0;
    struct place place = place_of_pair(r, "objective", "model.architecture");
    bool reward = strcmp(c->objective, "reward") == 0;
    if ((masks(c) != encoder && !has_task(c)) || (encoder && reward)) {
        return recipe_fail(r, place, "objective",
                           "%s contradicts model.architecture, %s: mlm is for bert and roberta, "
                           "the others are for gpt2",
                           c->objective, c->model.architecture);
    }
    if (masks(c) && c->mlm.max_predictions > c->data.sequence_length) {
        return recipe_fail(r, place_of_pair(r, "mlm.max_predictions", "data.sequence_length"),
                           "mlm.max_predictions", "%lld is more than data.sequence_length, %lld",
                           (long long)c->mlm.max_predictions, (long long)c->data.sequence_length);
    }
    return STATUS_OK;
}

static status check_freezing(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    if (c->train.freeze_layers > c->model.num_layers) {
        return recipe_fail(r, place_of_pair(r, "train.freeze_layers", "model.num_layers"),
                           "train.freeze_layers", "%lld is more than model.num_layers, %lld",
                           (long long)c->train.freeze_layers, (long long)c->model.num_layers);
    }
    return STATUS_OK;
}

/* check_adapter - there is a model, and nothing of it is frozen otherwise. */
static status check_adapter(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    if (c->adapter.type[0] == '\0') {
        return STATUS_OK;
    }
    if (c->model.init_from[0] == '\0') {
        return recipe_fail(r, place_of_pair(r, "adapter.type", "model.init_from"), "adapter.type",
                           "%s needs the model that it is beside: give model.init_from",
                           c->adapter.type);
    }
    if (c->train.freeze[0] != '\0' || c->train.freeze_layers > 0) {
        return recipe_fail(r, place_of_pair(r, "adapter.type", "train.freeze"), "adapter.type",
                           "%s freezes the whole model; leave out train.freeze and "
                           "train.freeze_layers",
                           c->adapter.type);
    }
    return STATUS_OK;
}

static status check_length(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    bool steps = c->train.max_steps > 0;
    bool epochs = c->train.epochs > 0;
    struct place place = place_of_pair(r, "train.max_steps", "train.epochs");
    if (steps && epochs) {
        return recipe_fail(r, place, "train.max_steps",
                           "%lld contradicts train.epochs; give one of them, the other null",
                           (long long)c->train.max_steps);
    }
    if (!steps && !epochs) {
        return recipe_fail(
            r, place, "train.max_steps", "missing; give train.max_steps or train.epochs%s",
            c->train.max_minutes > 0 ? " (train.max_minutes ends a run before that)" : "");
    }
    return STATUS_OK;
}

/* check_warmup - the warm-up, and for wsd the decay too, fit into the steps (where these are known). */
static status check_warmup(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    if (c->schedule.warmup_steps >= 0 && c->schedule.warmup_ratio >= 0) {
        return recipe_fail(
            r, place_of_pair(r, "schedule.warmup_steps", "schedule.warmup_ratio"),
            "schedule.warmup_steps",
            "%lld contradicts schedule.warmup_ratio; give one of them, the other null",
            (long long)c->schedule.warmup_steps);
    }
    if (c->train.max_steps > 0 && c->schedule.warmup_steps > c->train.max_steps) {
        return recipe_fail(r, place_of_pair(r, "schedule.warmup_steps", "train.max_steps"),
                           "schedule.warmup_steps", "%lld is more than train.max_steps, %lld",
                           (long long)c->schedule.warmup_steps, (long long)c->train.max_steps);
    }
    bool ratio = c->schedule.warmup_ratio >= 0;
    const char *key = ratio ? "schedule.warmup_ratio" : "schedule.warmup_steps";
    double share = ratio ? c->schedule.warmup_ratio
                   : c->train.max_steps > 0
                       ? (double)c->schedule.warmup_steps / (double)c->train.max_steps
                       : 0;
    if (c->schedule.name == SCHEDULE_WSD && share + c->schedule.decay_ratio > 1 + 1e-12) {
        return recipe_fail(r, place_of_pair(r, "schedule.decay_ratio", key), "schedule.decay_ratio",
                           "%g with the warm-up of %s (%g of the steps) is more than all steps",
                           c->schedule.decay_ratio, key, share);
    }
    return STATUS_OK;
}

static status check_batch(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    if (c->batch.micro_size > c->batch.global_size) {
        return recipe_fail(r, place_of_pair(r, "batch.micro_size", "batch.global_size"),
                           "batch.micro_size", "%lld is more than batch.global_size, %lld",
                           (long long)c->batch.micro_size, (long long)c->batch.global_size);
    }
    if ((double)c->batch.micro_size * (double)c->data.sequence_length > 1e9) {
        return recipe_fail(r, place_of_pair(r, "batch.micro_size", "data.sequence_length"),
                           "batch.micro_size",
                           "%lld times data.sequence_length, %lld, is more than 1e9 tokens",
                           (long long)c->batch.micro_size, (long long)c->data.sequence_length);
    }
    return STATUS_OK;
}

static status check_optimizer(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    if (c->optimizer.nvlamb && strcmp(c->optimizer.name, "lamb") != 0) {
        return recipe_fail(r, place_of_pair(r, "optimizer.nvlamb", "optimizer.name"),
                           "optimizer.nvlamb", "true needs optimizer.name lamb, not %s",
                           c->optimizer.name);
    }
    if (c->optimizer.stochastic_rounding && c->train.precision != PRECISION_BF16) {
        return recipe_fail(r, place_of_pair(r, "optimizer.stochastic_rounding", "train.precision"),
                           "optimizer.stochastic_rounding",
                           "true needs train.precision bf16: in fp32 no weights are rounded");
    }
    if (c->optimizer.init_from[0] != '\0' && c->model.init_from[0] == '\0') {
        return recipe_fail(r, place_of_pair(r, "optimizer.init_from", "model.init_from"),
                           "optimizer.init_from",
                           "moments of other weights are of no use; give model.init_from too");
    }
    return STATUS_OK;
}

static status check_sft(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    if (c->sft.max_length > c->data.sequence_length) {
        return recipe_fail(r, place_of_pair(r, "sft.max_length", "data.sequence_length"),
                           "sft.max_length", "%lld is more than data.sequence_length, %lld",
                           (long long)c->sft.max_length, (long long)c->data.sequence_length);
    }
    return STATUS_OK;
}

static status check_evaluation(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    if (c->evaluate.every > 0 && c->data.validation[0] == '\0') {
        return recipe_fail(r, place_of_pair(r, "evaluate.every", "data.validation"),
                           "evaluate.every", "%lld needs data.validation; give it, or write 0",
                           (long long)c->evaluate.every);
    }
    const char *key = c->evaluate.patience > 0 ? "evaluate.patience" : "checkpoint.keep_best";
    if ((c->evaluate.patience > 0 || c->checkpoint.keep_best) && c->evaluate.every == 0) {
        return recipe_fail(r, place_of_pair(r, key, "evaluate.every"), key,
                           "needs evaluations to compare; give data.validation and "
                           "evaluate.every above 0");
    }
    return STATUS_OK;
}

/* check_tensor - ranks that share a model share its heads and its inner features evenly. */
static status check_tensor(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    int64_t heads = c->model.num_kv_heads,
            inner = c->model.intermediate_size; /* divides the heads */
    int64_t ranks = c->parallel.tensor;
    if (heads % ranks == 0 && inner % ranks == 0) {
        return STATUS_OK;
    }
    char fitting[128] = "1";
    size_t used = 1;
    for (int64_t d = 2; d <= heads && used + 24 < sizeof fitting; d++) {
        if (heads % d == 0 && inner % d == 0) {
            used += (size_t)snprintf(fitting + used, sizeof fitting - used, ", %lld", (long long)d);
        }
    }
    const char *key = heads % ranks == 0            ? "model.intermediate_size"
                      : heads == c->model.num_heads ? "model.num_heads"
                                                    : "model.num_kv_heads";
    return recipe_fail(r, place_of_pair(r, "parallel.tensor", key), "parallel.tensor",
                       "%lld does not divide %s, %lld; these divide heads and inner size: %s",
                       (long long)ranks, key, (long long)(heads % ranks != 0 ? heads : inner),
                       fitting);
}

/* check_reproducible - what is still summed over ranks' parts, whose order the ranks decide. */
static status check_reproducible(const struct reading *r)
{
    const struct recipe *c = r->recipe;
    const char *key = "parallel.reproducible";
    if (c->parallel.reproducible && strcmp(c->optimizer.name, "lamb") == 0) {
        return recipe_fail(r, place_of_pair(r, key, "optimizer.name"), key,
                           "lamb's trust ratios are sums over the parts that ranks have; use "
                           "optimizer.name adamw, or write false");
    }
    if (c->parallel.reproducible && c->parallel.reduce_dtype == PRECISION_BF16) {
        return recipe_fail(
            r, place_of_pair(r, key, "parallel.reduce_dtype"), key,
            "sums of gradients rounded to bf16 depend on how they are shared out; use "
            "parallel.reduce_dtype fp32, or write false");
    }
    if (c->parallel.reproducible && c->train.device == RECIPE_DEVICE_CUDA) {
        return recipe_fail(r, place_of_pair(r, key, "train.device"), key,
                           "sums in a fixed order are made on CPUs alone; use train.device cpu, or "
                           "write false");
    }
    return STATUS_OK;
}

status recipe_check_resolve(const struct reading *r)
{
    resolve(r);
    TRY(check_model(r));
    TRY(check_objective(r));
    TRY(check_tensor(r));
    TRY(check_reproducible(r));
    TRY(check_batch(r));
    TRY(check_sft(r));
    TRY(check_freezing(r));
    TRY(check_adapter(r));
    TRY(check_length(r));
    TRY(check_warmup(r));
    TRY(check_optimizer(r));
    return check_evaluation(r);
}
