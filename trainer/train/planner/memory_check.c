#include "trainer/train/planner/memory_check.h"

#include <inttypes.h>

#include "base/log.h"
#include "base/text.h"
#include "base/thread/cores.h"

enum { REMEDIES_BYTES = 512 };
#define WORTHWHILE 0.97 /* of the need: a remedy above it is not listed */

/* Settings that need less memory, as text for a message. */
struct remedies {
    const struct plan *plan;
    char text[REMEDIES_BYTES];
    size_t used;
};

/* Lists a setting if the recipe with it needs clearly less memory. */
static status try_remedy(struct remedies *list, const struct recipe *changed, const char *setting)
{
    struct recipe r = *changed;
    struct plan plan;
    char bytes[TEXT_NUMBER_BYTES];
    r.model.vocab_size = list->plan->vocabulary;
    TRY(plan_make(&r, list->plan->ranks, &plan));
    if ((double)plan.device_bytes < WORTHWHILE * (double)list->plan->device_bytes &&
        list->used < sizeof list->text) {
        list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used,
                                       "%s%s (%s)", list->used > 0 ? ", " : "", setting,
                                       text_scale_bytes((double)plan.device_bytes, bytes));
    }
    return STATUS_OK;
}

/* Tries the settings that divide the model over the ranks of the plan. */
static status try_layouts(struct remedies *list, const struct recipe *recipe)
{
    int64_t ranks = list->plan->ranks, divisor = recipe_tensor_divisor(recipe);
    char setting[64];
    struct recipe r = *recipe;
    for (r.parallel.zero_stage = list->plan->zero_stage + 1; r.parallel.zero_stage <= 2;
         r.parallel.zero_stage++) {
        snprintf(setting, sizeof setting, "parallel.zero_stage=%" PRId64, r.parallel.zero_stage);
        TRY(try_remedy(list, &r, setting));
    }
    r = *recipe;
    for (r.parallel.tensor = ranks; r.parallel.tensor > recipe->parallel.tensor;
         r.parallel.tensor--) {
        if (ranks % r.parallel.tensor == 0 && divisor % r.parallel.tensor == 0) {
            snprintf(setting, sizeof setting, "parallel.tensor=%" PRId64, r.parallel.tensor);
            return try_remedy(list, &r, setting);
        }
    }
    return STATUS_OK;
}

static status find_remedies(struct remedies *list, const struct recipe *recipe)
{
    struct recipe r = *recipe;
    r.batch.micro_size = 1;
    TRY(try_remedy(list, &r, "batch.micro_size=1"));
    r = *recipe;
    r.train.activation_checkpointing = RECOMPUTE_FULL;
    TRY(try_remedy(list, &r, "train.activation_checkpointing=full"));
    r = *recipe;
    if (recipe->train.precision == PRECISION_FP32) {
        r.train.precision = PRECISION_BF16;
        TRY(try_remedy(list, &r, "train.precision=bf16"));
    }
    r = *recipe;
    r.optimizer.state_dtype = PRECISION_BF16;
    TRY(try_remedy(list, &r, "optimizer.state_dtype=bf16"));
    TRY(try_layouts(list, recipe));
    if (list->used == 0) {
        snprintf(list->text, sizeof list->text,
                 "no other setting needs clearly less with %d rank%s; use more ranks with "
                 "parallel.zero_stage=2 or parallel.tensor, or a smaller model",
                 list->plan->ranks, text_plural(list->plan->ranks));
        return STATUS_OK;
    }
    if (list->used < sizeof list->text) {
        snprintf(list->text + list->used, sizeof list->text - list->used,
                 ", or more ranks with parallel.zero_stage=2 or parallel.tensor");
    }
    return STATUS_OK;
}

status memory_check_device(const struct recipe *recipe, const struct plan *plan, double available,
                           const char *device, bool refuse)
{
    char needed_text[TEXT_NUMBER_BYTES], text[TEXT_NUMBER_BYTES];
    struct remedies list = {.plan = plan};
    if (available <= 0 || (double)plan->device_bytes <= available) {
        return STATUS_OK;
    }
    TRY(find_remedies(&list, recipe));
    text_scale_bytes((double)plan->device_bytes, needed_text);
    text_scale_bytes(available, text);
    const char *lead = list.used > 0 ? "settings that need less: " : "";
    if (!refuse) {
        log_warning("MEMORY", "a rank needs %s, but %s has %s; %s%s", needed_text, device, text,
                    lead, list.text);
        return STATUS_OK;
    }
    RAISE(STATUS_RECIPE, "the plan does not fit: a rank needs %s, but %s has %s; %s%s", needed_text,
          device, text, lead, list.text);
}

status memory_check_run(const struct recipe *recipe, struct comm *world)
{
    struct plan plan;
    TRY(plan_make(recipe, comm_size(world), &plan));
    double available = (double)cores_memory_bytes("");
    if (!device_kind_is_host(plan.device)) {
        return STATUS_OK;
    }
    TRY(memory_check_device(recipe, &plan, available, "this machine", true));
    return memory_check_device(recipe, &plan, available / comm_local_size(world),
                               "its share of this machine", false);
}
