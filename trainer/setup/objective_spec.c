#include "trainer/setup/objective_spec.h"

#include "trainer/setup/derive.h"
#include "trainer/setup/hardware.h"

/* The properties of an objective. */
struct objective_spec {
    const struct objective *objective; /* its loss */
    enum example_kind example;         /* of its shards */
    enum model_head_kind head;
    bool has_reference;  /* the loss needs a reference model */
    const char *command; /* that uses the trained model */
};

static const struct objective_spec specs[RECIPE_OBJECTIVES] = {
    [OBJECTIVE_CLM] = {&objective_clm, EXAMPLE_TEXT, MODEL_HEAD_LM, false, "generate"},
    [OBJECTIVE_MLM] = {&objective_mlm, EXAMPLE_SENTENCE_PAIRS, MODEL_HEAD_LM, false, "fill-mask"},
    [OBJECTIVE_SFT] = {&objective_sft, EXAMPLE_SFT, MODEL_HEAD_LM, false, "generate"},
    [OBJECTIVE_DPO] = {&objective_dpo, EXAMPLE_PREFERENCE_PAIRS, MODEL_HEAD_LM, true, "generate"},
    [OBJECTIVE_REWARD] = {&objective_reward, EXAMPLE_PREFERENCE_PAIRS, MODEL_HEAD_SEQUENCE, false,
                          "score"},
    [OBJECTIVE_CLASSIFY] = {&objective_classify, EXAMPLE_CLASSIFY, MODEL_HEAD_SEQUENCE, false,
                            "classify"},
    [OBJECTIVE_REGRESS] = {&objective_regress, EXAMPLE_REGRESS, MODEL_HEAD_SEQUENCE, false,
                           "classify"},
    [OBJECTIVE_CLASSIFY_TOKENS] = {&objective_classify_tokens, EXAMPLE_CLASSIFY_TOKENS,
                                   MODEL_HEAD_TOKEN, false, "classify"},
    [OBJECTIVE_ANSWER] = {&objective_extractive_qa, EXAMPLE_ANSWER, MODEL_HEAD_QA, false, "answer"},
    [OBJECTIVE_CHOOSE] = {&objective_multiple_choice, EXAMPLE_CHOOSE, MODEL_HEAD_MULTIPLE_CHOICE,
                          false, "classify"},
    [OBJECTIVE_SEQ2SEQ] = {&objective_seq2seq, EXAMPLE_SEQ2SEQ, MODEL_HEAD_LM, false, "translate"},
    [OBJECTIVE_DENOISE] = {&objective_denoise, EXAMPLE_TEXT, MODEL_HEAD_LM, false, "evaluate"},
    [OBJECTIVE_EMBED] = {&objective_embed, EXAMPLE_EMBED, MODEL_HEAD_NONE, false, "embed"},
};

static const struct objective_spec *find_spec(const struct recipe *recipe)
{
    return &specs[recipe->objective];
}

const struct objective *objective_spec_objective(const struct recipe *recipe)
{
    return find_spec(recipe)->objective;
}

enum example_kind objective_spec_example(const struct recipe *recipe)
{
    bool is_pair = recipe->objective == OBJECTIVE_SFT &&
                   recipe_architecture_has_decoder(recipe->model.architecture);
    return is_pair ? EXAMPLE_SEQ2SEQ : find_spec(recipe)->example;
}

enum model_head_kind objective_spec_head(const struct recipe *recipe)
{
    return find_spec(recipe)->head;
}

bool objective_spec_has_reference(const struct recipe *recipe)
{
    return find_spec(recipe)->has_reference;
}

const char *objective_spec_command(const struct recipe *recipe)
{
    return find_spec(recipe)->command;
}

bool objective_spec_is_masked(const struct recipe *recipe)
{
    return find_spec(recipe)->example == EXAMPLE_SENTENCE_PAIRS;
}

bool objective_spec_shares_prompt(const struct recipe *r)
{
    bool is_host = device_kind_is_host(hardware_device_kind(r));
    return objective_spec_example(r) == EXAMPLE_PREFERENCE_PAIRS && derive_window(r) == 0 &&
           (r->dpo.shared_prefix == RECIPE_AUTO ? is_host : r->dpo.shared_prefix == RECIPE_TRUE);
}

static enum packing_kind get_packing_kind(enum recipe_packing packing)
{
    switch (packing) {
    case RECIPE_PACKING_BFD:
        return PACKING_BFD;
    case RECIPE_PACKING_BFD_SPLIT:
        return PACKING_BFD_SPLIT;
    case RECIPE_PACKING_WRAPPED:
        return PACKING_WRAPPED;
    case RECIPE_PACKING_NONE:
        break;
    }
    return PACKING_NONE;
}

/* Returns the bits of trained tokens in the loss mask. */
static uint32_t get_completion_bits(enum recipe_tristate completion_only)
{
    switch (completion_only) {
    case RECIPE_AUTO:
        return EXAMPLE_IS_DEFAULT;
    case RECIPE_TRUE:
        return EXAMPLE_IS_COMPLETION;
    case RECIPE_FALSE:
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
    return objective_spec_example(recipe) == EXAMPLE_SFT;
}
