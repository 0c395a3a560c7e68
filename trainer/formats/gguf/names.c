/* The families of models that llama.cpp has, and the names of their tensors. The names follow from
 * the parts of the architecture, so that a new family needs one row. The names of an
 * encoder-decoder begin with "enc." or "dec.". */
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
    {.architecture = "olmo", .name = "olmo", .interleaved_rotary = true, .width_is_heads = true},
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
    {.architecture = "t5", .name = "t5", .max_distance = 128},
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

/* Returns the name of the table of relative positions without the prefix of its block. Only the
 * first block of a stack has this table. */
static const char *get_bias_name(const struct architecture_names *n)
{
    return n->position_bias != NULL ? n->position_bias + strlen(n->block) + strlen(".0.") : NULL;
}

static bool find_block_name(const struct architecture *a, const struct architecture_names *n,
                            const char *name, size_t length, const char **theirs)
{
    bool post = architecture_is_post_norm(a);
    const struct part_name parts[] = {
        {n->norm1, post ? "layer_output_norm" : "attn_norm"},
        {n->qkv, "attn_qkv"},
        {n->query, "attn_q"},
        {n->key, "attn_k"},
        {n->value, "attn_v"},
        {n->query_norm, "attn_q_norm"},
        {n->key_norm, "attn_k_norm"},
        {n->projection, architecture_has_decoder(a) ? "attn_o" : "attn_output"},
        {get_bias_name(n), "attn_rel_b"},
        {n->cross_norm, "cross_attn_norm"},
        {n->cross_query, "cross_attn_q"},
        {n->cross_key, "cross_attn_k"},
        {n->cross_value, "cross_attn_v"},
        {n->cross_projection, "cross_attn_o"},
        {n->attention_norm, "post_attention_norm"},
        {n->norm2, post ? "attn_output_norm" : "ffn_norm"},
        {n->gate_fc, "ffn_up"},
        {n->gate, "ffn_gate"},
        {n->fc, "ffn_up"},
        {n->ungated_fc, "ffn_up"},
        {n->fc_projection, "ffn_down"},
        {n->feed_forward_norm, "post_ffw_norm"},
    };
    return find_name(parts, COUNT(parts), name, length, theirs);
}

static bool find_global_name(const struct architecture *a, const char *name, size_t length,
                             const char **theirs)
{
    const struct architecture_names *n = a->names, *decoder = a->decoder_names;
    const struct part_name parts[] = {
        {n->token_table, "token_embd"},
        {n->position_table, "position_embd"},
        {n->token_type_table, "token_types"},
        {n->embedding_norm, "token_embd_norm"},
        {n->final_norm, decoder != NULL ? "enc.output_norm" : "output_norm"},
        {decoder != NULL ? decoder->final_norm : NULL, GGUF_DECODER_NORM},
        {a->attention.causal ? n->decoder : NULL, "output"},
    };
    return find_name(parts, COUNT(parts), name, length, theirs);
}

/* Returns the part of a name after "BLOCK.LAYER.", or NULL if the name is not in a block of n. */
static const char *find_local_name(const struct architecture_names *n, const char *name,
                                   int64_t *layer)
{
    size_t prefix = strlen(n->block);
    char *end = NULL;
    if (strncmp(name, n->block, prefix) != 0 || name[prefix] != '.') {
        return NULL;
    }
    *layer = strtoll(name + prefix + 1, &end, 10);
    return *end == '.' ? end + 1 : NULL;
}

/* Writes `prefix` and the GGUF name of a parameter in a block. Returns false if n has none. */
static bool write_block_name(const struct architecture *a, const struct architecture_names *n,
                             const char *prefix, const char *name, char out[GGUF_NAME_BYTES])
{
    int64_t layer;
    const char *suffix = strrchr(name, '.'), *local = find_local_name(n, name, &layer), *theirs;
    if (local == NULL || suffix < local ||
        !find_block_name(a, n, local, (size_t)(suffix - local), &theirs)) {
        return false;
    }
    snprintf(out, GGUF_NAME_BYTES, "%sblk.%" PRId64 ".%s%s", prefix, layer, theirs, suffix);
    return true;
}

bool gguf_tensor_name(const struct architecture *a, const char *name, char out[GGUF_NAME_BYTES])
{
    const char *suffix = strrchr(name, '.'), *theirs;
    bool has_decoder = architecture_has_decoder(a);
    if (suffix == NULL) {
        return false;
    }
    if (write_block_name(a, a->names, has_decoder ? "enc." : "", name, out) ||
        (has_decoder && write_block_name(a, a->decoder_names, "dec.", name, out))) {
        return true;
    }
    if (!find_global_name(a, name, (size_t)(suffix - name), &theirs)) {
        return false;
    }
    snprintf(out, GGUF_NAME_BYTES, "%s%s", theirs, suffix);
    return true;
}
