/* The free parts of transformer_encoder and transformer_decoder: combinations that a model cannot
 * have. */
#include "trainer/recipe/relation_impl.h"

/* Refuses combinations of the free parts of the embedding that a model cannot have. */
static status check_free_embedding(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool is_free = recipe_architecture_is_free(c->model.architecture);
    bool pre = c->model.norm_placement == PLACEMENT_PRE;
    bool post = c->model.norm_placement == PLACEMENT_POST;
    bool branch = c->model.norm_placement == PLACEMENT_BRANCH;
    bool has_norm = c->model.normalize_embedding;
    bool factorized = is_free && c->model.embedding_size > 0;
    static const char norm[] = "model.normalize_embedding", size[] = "model.embedding_size";
    const struct relation relations[] = {
        {has_norm && !pre && !post, norm, "conflicts with", "model.norm_placement",
         "it requires pre or post"},
        {factorized && !has_norm, size, "requires", norm, "set it to true"},
        {factorized && !post, size, "conflicts with", "model.norm_placement", "it requires post"},
        {factorized && !c->model.head_transform, size, "conflicts with", "model.head_transform",
         "the transform maps hidden states to the width of the embeddings"},
        {factorized && c->model.position_embedding_type == POSITIONS_SINUSOIDAL, size,
         "conflicts with", "model.position_embedding_type", "use another type"},
        {is_free && !has_norm && (post || branch) && c->model.type_vocab_size > 0,
         "model.type_vocab_size", "requires", norm, "set it to true, or norm_placement to pre"},
    };
    return CHECK_RELATIONS(r, relations);
}

/* Accepts only one group of layers, or one group for each layer. */
static status check_groups(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    int64_t groups = c->model.num_hidden_groups;
    bool pre = c->model.norm_placement == PLACEMENT_PRE;
    static const char key[] = "model.num_hidden_groups";
    const struct relation relations[] = {
        {c->model.architecture == ARCHITECTURE_ALBERT && groups > 1, key, "conflicts with",
         "model.architecture", "albert requires 1"},
        {groups > 1 && groups != c->model.num_layers, key, "is neither 1 nor", "model.num_layers",
         NULL},
        {groups == 1 && pre && c->model.normalize_embedding, key, "conflicts with",
         "model.normalize_embedding",
         "the norm of the embedding would replace the first norm of all layers"},
    };
    return CHECK_RELATIONS(r, relations);
}

status recipe_check_free_parts(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool is_free = recipe_architecture_is_free(c->model.architecture);
    bool has_positions = is_free && !recipe_is_rotary(c);
    bool branch_norms =
        c->model.norm_placement == PLACEMENT_BRANCH || c->model.norm_placement == PLACEMENT_BOTH;
    const char *kind = "model.position_embedding_type", *rotary = "it requires rotary";
    const struct relation relations[] = {
        {has_positions && c->model.partial_rotary_factor > 0, "model.partial_rotary_factor",
         "conflicts with", kind, rotary},
        {has_positions && c->model.no_rope_layer_interval > 0, "model.no_rope_layer_interval",
         "conflicts with", kind, rotary},
        {has_positions && c->model.rope_local_base_freq > 0, "model.rope_local_base_freq",
         "conflicts with", kind, rotary},
        {is_free && c->model.rope_local_base_freq > 0 && !recipe_has_layer_types(c),
         "model.rope_local_base_freq", "requires", "model.sliding_window_pattern",
         "set it; without it use model.rope_theta"},
        {is_free && c->model.sliding_window_pattern > 0 && c->model.sliding_window == 0,
         "model.sliding_window_pattern", "requires", "model.sliding_window", "set it"},
        {c->model.position_embedding_type == POSITIONS_LEARNED && c->model.embedding_multiplier > 0,
         "model.embedding_multiplier", "conflicts with", kind,
         "learned positions would be multiplied too; use another type"},
        {branch_norms && c->model.residual_multiplier > 0, "model.residual_multiplier",
         "conflicts with", "model.norm_placement",
         "a norm follows each sub-layer; use pre or post"},
    };
    TRY(CHECK_RELATIONS(r, relations));
    TRY(check_free_embedding(r));
    return check_groups(r);
}
