/* The free parts of transformer_encoder and transformer_decoder: combinations that a model cannot
 * have. */
#include "trainer/recipe/relation_impl.h"

/* Refuses combinations of the free parts of the embedding that a model cannot have. */
static status check_free_embedding(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool is_free = recipe_architecture_is_free(recipe->model.architecture);
    bool pre = recipe->model.norm_placement == PLACEMENT_PRE;
    bool post = recipe->model.norm_placement == PLACEMENT_POST;
    bool branch = recipe->model.norm_placement == PLACEMENT_BRANCH;
    bool has_norm = recipe->model.normalize_embedding;
    bool factorized = is_free && recipe->model.embedding_size > 0;
    static const char norm[] = "model.normalize_embedding", size[] = "model.embedding_size";
    const struct relation relations[] = {
        {has_norm && !pre && !post, norm, "conflicts with", "model.norm_placement",
         "it requires pre or post"},
        {factorized && !has_norm, size, "requires", norm, "set it to true"},
        {factorized && !post, size, "conflicts with", "model.norm_placement", "it requires post"},
        {factorized && !recipe->model.head_transform, size, "conflicts with",
         "model.head_transform", "the transform maps hidden states to the width of the embeddings"},
        {factorized && recipe->model.position_embedding_type == POSITIONS_SINUSOIDAL, size,
         "conflicts with", "model.position_embedding_type", "use another type"},
        {is_free && !has_norm && (post || branch) && recipe->model.type_vocab_size > 0,
         "model.type_vocab_size", "requires", norm, "set it to true, or norm_placement to pre"},
    };
    return CHECK_RELATIONS(reader, relations);
}

/* Accepts only one group of layers, or one group for each layer. */
static status check_groups(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    int64_t groups = recipe->model.num_hidden_groups;
    bool pre = recipe->model.norm_placement == PLACEMENT_PRE;
    static const char key[] = "model.num_hidden_groups";
    const struct relation relations[] = {
        {recipe->model.architecture == ARCHITECTURE_ALBERT && groups > 1, key, "conflicts with",
         "model.architecture", "albert requires 1"},
        {groups > 1 && groups != recipe->model.num_layers, key, "is neither 1 nor",
         "model.num_layers", NULL},
        {groups == 1 && pre && recipe->model.normalize_embedding, key, "conflicts with",
         "model.normalize_embedding",
         "the norm of the embedding would replace the first norm of all layers"},
    };
    return CHECK_RELATIONS(reader, relations);
}

status recipe_check_free_parts(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool is_free = recipe_architecture_is_free(recipe->model.architecture);
    bool has_positions = is_free && !recipe_is_rotary(recipe);
    bool branch_norms = recipe->model.norm_placement == PLACEMENT_BRANCH ||
                        recipe->model.norm_placement == PLACEMENT_BOTH;
    const char *kind = "model.position_embedding_type", *rotary = "it requires rotary";
    const struct relation relations[] = {
        {has_positions && recipe->model.partial_rotary_factor > 0, "model.partial_rotary_factor",
         "conflicts with", kind, rotary},
        {has_positions && recipe->model.no_rope_layer_interval > 0, "model.no_rope_layer_interval",
         "conflicts with", kind, rotary},
        {has_positions && recipe->model.rope_local_base_freq > 0, "model.rope_local_base_freq",
         "conflicts with", kind, rotary},
        {is_free && recipe->model.rope_local_base_freq > 0 && !recipe_has_layer_types(recipe),
         "model.rope_local_base_freq", "requires", "model.sliding_window_pattern",
         "set it; without it use model.rope_theta"},
        {is_free && recipe->model.sliding_window_pattern > 0 && recipe->model.sliding_window == 0,
         "model.sliding_window_pattern", "requires", "model.sliding_window", "set it"},
        {recipe->model.position_embedding_type == POSITIONS_LEARNED &&
             recipe->model.embedding_multiplier > 0,
         "model.embedding_multiplier", "conflicts with", kind,
         "learned positions would be multiplied too; use another type"},
        {branch_norms && recipe->model.residual_multiplier > 0, "model.residual_multiplier",
         "conflicts with", "model.norm_placement",
         "a norm follows each sub-layer; use pre or post"},
    };
    TRY(CHECK_RELATIONS(reader, relations));
    TRY(check_free_embedding(reader));
    return check_groups(reader);
}

void recipe_shorten_groups(struct recipe *recipe)
{
    if (recipe->model.num_hidden_groups > 1 &&
        recipe->model.num_hidden_groups == recipe->model.num_layers) {
        recipe->model.num_hidden_groups = 0;
    }
}
