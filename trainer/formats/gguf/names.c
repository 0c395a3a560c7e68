/* The families of models that llama.cpp has, and the names of their tensors. The names follow from
 * the parts of the architecture, so that a new family needs one row. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/formats/gguf/gguf_impl.h"

static const struct gguf_family families[] = {
    {.architecture = "gpt2", .name = "gpt2"},
    {.architecture = "bert", .name = "bert"},
    {.architecture = "roberta", .name = "bert"},
    {.architecture = "distilbert", .name = "bert"},
    {.architecture = "modernbert", .name = "modern-bert", .width_is_heads = true},
    {.architecture = "llama", .name = "llama", .interleaved_rotary = true, .has_biases = true},
    {.architecture = "mistral",
     .name = "llama",
     .interleaved_rotary = true,
     .ignores_window = true},
    {.architecture = "granite", .name = "granite", .interleaved_rotary = true, .has_biases = true},
    {.architecture = "smollm3",
     .name = "smollm3",
     .interleaved_rotary = true,
     .rotates_every_fourth = true},
    {.architecture = "qwen2", .name = "qwen2", .ignores_window = true, .width_is_heads = true},
    {.architecture = "qwen3", .name = "qwen3", .ignores_window = true},
    {.architecture = "olmo2", .name = "olmo2", .width_is_heads = true, .needs_output = true},
    {.architecture = "stablelm", .name = "stablelm", .width_is_heads = true, .needs_output = true},
    {.architecture = "phi3",
     .name = "phi3",
     .ignores_window = true,
     .stores_window = true,
     .width_is_heads = true},
    {.architecture = "gemma2",
     .name = "gemma2",
     .fixed_scale = true,
     .mean_scale_layers = 46,
     .has_softcaps = true},
    {.architecture = "gemma3_text", .name = "gemma3", .fixed_scale = true, .mean_scale_layers = 62},
};

const struct gguf_family *gguf_find_family(const char *architecture)
{
    for (int i = 0; i < COUNT(families); i++) {
        if (strcmp(families[i].architecture, architecture) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

const struct gguf_family *gguf_find_named_family(const char *name)
{
    for (int i = 0; i < COUNT(families); i++) {
        if (strcmp(families[i].name, name) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

double gguf_family_scale(const struct gguf_family *family, int64_t layers, int64_t width,
                         int64_t heads, int64_t head_width)
{
    return 1 / sqrt((double)(layers == family->mean_scale_layers ? width / heads : head_width));
}

const char *gguf_family_names(char *text, size_t bytes)
{
    text[0] = '\0';
    for (int i = 0; i < COUNT(families); i++) {
        text_append_item(text, bytes, families[i].architecture, i, COUNT(families), "and");
    }
    return text;
}

/* A part of an architecture and its name in GGUF files. */
struct part_name {
    const char *ours; /* NULL: the architecture does not have the part */
    const char *theirs;
};

static bool find_name(const struct part_name *parts, int count, const char *name, size_t length,
                      const char **theirs)
{
    for (int i = 0; i < count; i++) {
        bool equal = parts[i].ours != NULL && strlen(parts[i].ours) == length &&
                     strncmp(parts[i].ours, name, length) == 0;
        if (equal) {
            *theirs = parts[i].theirs;
            return true;
        }
    }
    return false;
}

static bool find_block_name(const struct architecture *a, const char *name, size_t length,
                            const char **theirs)
{
    const struct architecture_names *n = a->names;
    bool post = architecture_is_post_norm(a);
    const struct part_name parts[] = {
        {n->norm1, post ? "layer_output_norm" : "attn_norm"},
        {n->qkv, "attn_qkv"},
        {n->query, "attn_q"},
        {n->key, "attn_k"},
        {n->value, "attn_v"},
        {n->query_norm, "attn_q_norm"},
        {n->key_norm, "attn_k_norm"},
        {n->projection, "attn_output"},
        {n->attention_norm, "post_attention_norm"},
        {n->norm2, post ? "attn_output_norm" : "ffn_norm"},
        {n->gate_fc, "ffn_up"},
        {n->gate, "ffn_gate"},
        {n->fc, "ffn_up"},
        {n->fc_projection, "ffn_down"},
        {n->feed_forward_norm, "post_ffw_norm"},
    };
    return find_name(parts, COUNT(parts), name, length, theirs);
}

static bool find_global_name(const struct architecture *a, const char *name, size_t length,
                             const char **theirs)
{
    const struct architecture_names *n = a->names;
    const struct part_name parts[] = {
        {n->token_table, "token_embd"},       {n->position_table, "position_embd"},
        {n->token_type_table, "token_types"}, {n->embedding_norm, "token_embd_norm"},
        {n->final_norm, "output_norm"},       {a->attention.causal ? n->decoder : NULL, "output"},
    };
    return find_name(parts, COUNT(parts), name, length, theirs);
}

bool gguf_tensor_name(const struct architecture *a, const char *name, char out[GGUF_NAME_BYTES])
{
    size_t prefix = strlen(a->names->block);
    const char *suffix = strrchr(name, '.'), *local = name, *theirs;
    bool in_block = strncmp(name, a->names->block, prefix) == 0 && name[prefix] == '.';
    char *end = NULL;
    int64_t layer = in_block ? strtoll(name + prefix + 1, &end, 10) : 0;
    if (suffix == NULL || (in_block && *end != '.')) {
        return false;
    }
    local = in_block ? end + 1 : name;
    size_t length = (size_t)(suffix - local);
    if (in_block && find_block_name(a, local, length, &theirs)) {
        snprintf(out, GGUF_NAME_BYTES, "blk.%" PRId64 ".%s%s", layer, theirs, suffix);
        return true;
    }
    if (!in_block && find_global_name(a, local, length, &theirs)) {
        snprintf(out, GGUF_NAME_BYTES, "%s%s", theirs, suffix);
        return true;
    }
    return false;
}
