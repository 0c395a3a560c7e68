#include "trainer/setup/objective_spec.h"

#include "trainer/setup/hardware.h"

/* One row per objective. example: what a shard's rows hold; head: what the model predicts. */
struct objective_spec {
    enum example_kind example;
    enum model_head_kind head;
    bool has_reference;
};

static const struct objective_spec specs[] = {
    [OBJECTIVE_CLM] = {EXAMPLE_TEXT, MODEL_HEAD_LM, false},
    [OBJECTIVE_MLM] = {EXAMPLE_SENTENCE_PAIRS, MODEL_HEAD_LM, false},
    [OBJECTIVE_SFT] = {EXAMPLE_SFT, MODEL_HEAD_LM, false},
    [OBJECTIVE_DPO] = {EXAMPLE_PREFERENCE_PAIRS, MODEL_HEAD_LM, true},
    [OBJECTIVE_REWARD] = {EXAMPLE_PREFERENCE_PAIRS, MODEL_HEAD_SEQUENCE, false},
    [OBJECTIVE_CLASSIFY] = {EXAMPLE_CLASSIFY, MODEL_HEAD_SEQUENCE, false},
    [OBJECTIVE_REGRESS] = {EXAMPLE_REGRESS, MODEL_HEAD_SEQUENCE, false},
    [OBJECTIVE_CLASSIFY_TOKENS] = {EXAMPLE_CLASSIFY_TOKENS, MODEL_HEAD_TOKEN, false},
    [OBJECTIVE_ANSWER] = {EXAMPLE_ANSWER, MODEL_HEAD_QA, false},
    [OBJECTIVE_CHOOSE] = {EXAMPLE_CHOOSE, MODEL_HEAD_MULTIPLE_CHOICE, false},
    [OBJECTIVE_SEQ2SEQ] = {EXAMPLE_SEQ2SEQ, MODEL_HEAD_LM, false},
    [OBJECTIVE_DENOISE] = {EXAMPLE_TEXT, MODEL_HEAD_LM, false},
    [OBJECTIVE_EMBED] = {EXAMPLE_EMBED, MODEL_HEAD_NONE, false},
};

static const struct objective_spec *find_spec(const struct recipe *recipe)
{
    return &specs[recipe->objective];
}

enum example_kind objective_spec_example(const struct recipe *recipe)
{
    return find_spec(recipe)->example;
}

enum model_head_kind objective_spec_head(const struct recipe *recipe)
{
    return find_spec(recipe)->head;
}

bool objective_spec_has_reference(const struct recipe *recipe)
{
    return find_spec(recipe)->has_reference;
}

bool objective_spec_is_masked(const struct recipe *recipe)
{
    return find_spec(recipe)->example == EXAMPLE_SENTENCE_PAIRS;
}

bool objective_spec_reads_last_row(const struct recipe *recipe)
{
    return !recipe_architecture_is_encoder(recipe->model.architecture);
}

int64_t objective_spec_window(const struct recipe *recipe)
{
    bool is_encoder = recipe_architecture_is_encoder(recipe->model.architecture);
    int64_t window = recipe->model.sliding_window;
    window = is_encoder && window > 0 ? window / 2 + 1 : window;
    return window < recipe->model.max_position_embeddings ? window : 0;
}

bool objective_spec_shares_prompt(const struct recipe *r)
{
    bool is_host = device_kind_is_host(hardware_device_kind(r));
    return objective_spec_example(r) == EXAMPLE_PREFERENCE_PAIRS && objective_spec_window(r) == 0 &&
           (r->dpo.shared_prefix == PREFIX_AUTO ? is_host : r->dpo.shared_prefix == PREFIX_TRUE);
}

static enum packing_kind get_packing_kind(enum recipe_packing packing)
{
    switch (packing) {
    case SFT_PACK_BFD:
        return PACKING_BFD;
    case SFT_PACK_BFD_SPLIT:
        return PACKING_BFD_SPLIT;
    case SFT_PACK_WRAPPED:
        return PACKING_WRAPPED;
    case SFT_PACK_NONE:
        break;
    }
    return PACKING_NONE;
}

/* Returns the bits of trained tokens in the loss mask. */
static uint32_t get_completion_bits(enum recipe_completion_only completion_only)
{
    switch (completion_only) {
    case COMPLETION_AUTO:
        return EXAMPLE_IS_DEFAULT;
    case COMPLETION_TRUE:
        return EXAMPLE_IS_COMPLETION;
    case COMPLETION_FALSE:
        break;
    }
    return 0;
}

bool objective_spec_packing(const struct recipe *recipe, struct packing_rules *out)
{
    *out = (struct packing_rules){
        .kind = get_packing_kind(recipe->sft.packing),
        .max_length = recipe->sft.max_length,
        .loss_mask_bits = get_completion_bits(recipe->sft.completion_only_loss) |
                          (recipe->sft.assistant_only_loss ? EXAMPLE_IS_ASSISTANT : 0),
        .skip_empty = recipe->sft.skip_empty,
    };
    return find_spec(recipe)->example == EXAMPLE_SFT;
}
