/* Every architecture of ARCHITECTURE_LIST has a row in each table that describes
 * architectures, and the tables contain the same facts. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/check.h"
#include "trainer/formats/huggingface/architectures.h"
#include "trainer/model/architecture.h"
#include "trainer/model/config.h"
#include "trainer/recipe/settings.h"

/* Returns whether .used of the key's setting contains this architecture. */
static bool reads_key(const char *key, enum recipe_architecture architecture)
{
    static const char prefix[] = "model.architecture=";
    const char *used = recipe_table[recipe_table_find(key)].used;
    char text[CHOICES_BYTES];
    const char *names[CHOICES_MAX];
    CHECK(strncmp(used, prefix, strlen(prefix)) == 0);
    int count = recipe_value_choices(used + strlen(prefix), text, names);
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], recipe_architecture_name(architecture)) == 0) {
            return true;
        }
    }
    return false;
}

/* Compares a fact of one architecture; a failure prints its name. */
static void check_fact(enum recipe_architecture architecture, const char *fact, bool a, bool b)
{
    if (a != b) {
        fprintf(stderr, "%s: %s\n", recipe_architecture_name(architecture), fact);
    }
    CHECK(a == b);
}

static bool has_cross_attention(const struct block *block)
{
    bool found = false;
    for (int i = 0; i < block->count; i++) {
        found = found || block->sublayers[i] == SUBLAYER_CROSS_ATTENTION;
    }
    return found;
}

/* The block of a stack has cross-attention if the stack has names for its matrices. */
static void check_blocks(enum recipe_architecture e, const struct architecture *a)
{
    const struct model_config config = {.architecture = a->name};
    const struct architecture composed = architecture_compose(&config);
    const struct architecture_names *names[STACKS_MAX] = {a->names, a->decoder_names};
    for (int i = 0; i < STACKS_MAX && names[i] != NULL; i++) {
        check_fact(e, "cross-attention", has_cross_attention(&composed.blocks[i]),
                   names[i]->cross_query != NULL);
    }
}

static void check_architecture(enum recipe_architecture e)
{
    const char *name = recipe_architecture_name(e);
    const struct architecture *a = model_architecture(name);
    const struct huggingface_architecture *h = huggingface_find_architecture(name);
    check_fact(e, "a row in model/architecture.c", a != NULL, true);
    check_fact(e, "a row in huggingface/architectures.c", h != NULL, true);
    CHECK_TEXT(h->model_type, name);
    CHECK_EQUAL(h->architecture, e);
    check_fact(e, "targets in names.c", recipe_architecture_targets(e) != NULL, true);

    check_blocks(e, a);
    bool has_decoder = architecture_has_decoder(a);
    bool is_swiglu = a->feed_forward.gated && !a->feed_forward.gelu;
    check_fact(e, "placement", a->norm.placement != PLACEMENT_DEFAULT, true);
    check_fact(e, "positions", a->embedding.positions != POSITIONS_DEFAULT, true);
    check_fact(e, "has_free_parts", h->has_free_parts, a->free_parts);
    check_fact(e, "token types", recipe_architecture_token_types(e) > 0,
               a->names->token_type_table != NULL && !a->free_parts);

    check_fact(e, "FREE", reads_key("model.norm_placement", e), a->free_parts);
    check_fact(e, "ENCODER_DECODER", reads_key("model.num_decoder_layers", e), has_decoder);
    check_fact(e, "ROTARY", reads_key("model.rope_theta", e),
               architecture_is_rotary(a) || a->free_parts);
    check_fact(e, "ACTIVATED", reads_key("model.activation", e), !is_swiglu);
    check_fact(e, "ATTENTION_BIASED", reads_key("model.attention_bias", e), h->has_attention_bias);
    check_fact(e, "MLP_BIASED", reads_key("model.mlp_bias", e), h->has_mlp_bias);
    check_fact(e, "use_qkv_bias", reads_key("model.use_qkv_bias", e), h->has_qkv_bias);
    check_fact(e, "next_sentence", reads_key("model.next_sentence", e),
               recipe_architecture_has_next_sentence(e));
}

int main(void)
{
    for (int i = 0; i < RECIPE_ARCHITECTURES; i++) {
        check_architecture((enum recipe_architecture)i);
    }
    return 0;
}
