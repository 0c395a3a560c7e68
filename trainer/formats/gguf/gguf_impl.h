/* Declarations that the files of this folder share. */
#pragma once

#include "trainer/formats/gguf/gguf.h"
#include "trainer/formats/huggingface/export_source.h"
#include "trainer/model/architecture.h"

/* A family of models that llama.cpp implements. */
struct gguf_family {
    const char *architecture;  /* name in architecture.c */
    const char *name;          /* general.architecture in GGUF files */
    bool interleaved_rotary;   /* the rotation pairs columns 2 i and 2 i + 1 of a head */
    bool rotates_every_fourth; /* one of four layers has no positions; there is no key for it */
    bool ignores_window;       /* llama.cpp attends to all earlier tokens */
    bool stores_window;        /* with ignores_window: the file still contains the window */
    bool fixed_scale;          /* there is no key for the scale of attention (gguf_family_scale) */
    int64_t mean_scale_layers; /* with this number of layers, the scale is 1 / sqrt(C / H) */
    bool has_softcaps;         /* for the attention scores and the logits */
    bool has_biases;           /* model.attention_bias and model.mlp_bias */
    bool width_is_heads;       /* the width equals the width of all heads together */
    bool needs_output;         /* the file contains the output matrix also if it is tied */
    int64_t max_distance;      /* the only one for relative positions; 0: no relative positions */
};

/* The final norm of a decoder that follows an encoder. */
#define GGUF_DECODER_NORM "dec.output_norm"

/* gguf_find_family - find the family of an architecture; NULL if llama.cpp does not have it. */
const struct gguf_family *gguf_find_family(const char *architecture);

/* gguf_family_names - write the names of all families for messages to text[bytes]; return text. */
const char *gguf_family_names(char *text, size_t bytes);

/* gguf_family_scale - return the scale of attention of a family with fixed_scale: 1 / sqrt(D). In
 * the largest model it is 1 / sqrt(C / H). llama.cpp recognizes that model by its number of layers.
 */
double gguf_family_scale(const struct gguf_family *family, int64_t layers, int64_t width,
                         int64_t heads, int64_t head_width);

/* gguf_tensor_name - write the name of a parameter in GGUF files to out.
 *
 * Returns   false if GGUF files do not have the parameter, such as the heads of BERT */
bool gguf_tensor_name(const struct architecture *architecture, const char *name,
                      char out[GGUF_NAME_BYTES]);

/* gguf_count_reordered_heads - return the heads of a matrix or bias of queries or keys if GGUF
 * files order its rows in another way. Return 0 for the other tensors. name: in GGUF files. */
int64_t gguf_count_reordered_heads(const struct gguf_family *family,
                                   const struct model_config *config, const char *name);

/* gguf_reorder_heads - reorder the rows of each head. The rotation of transformers pairs the rows i
 * and i + D/2 of a head. The rotation of llama.cpp pairs the rows 2 i and 2 i + 1.
 *
 * interleave: true: from the order of transformers to the order of GGUF files; false: back.
 *
 * Shapes    out, in f32 [rows, columns], rows = heads D */
void gguf_reorder_heads(float *out, const float *in, int64_t heads, int64_t rows, int64_t columns,
                        bool interleave);

/* gguf_transpose - transpose in f32 [rows, columns] to out [columns, rows]. */
void gguf_transpose(float *out, const float *in, int64_t rows, int64_t columns);

/* gguf_check_model - check that llama.cpp computes the same as this model; log a warning for small
 * differences.
 *
 * Errors    STATUS_UNAVAILABLE naming the setting */
status gguf_check_model(const struct export_source *source, const struct gguf_family *family);

/* gguf_put_model - add the metadata of the model. */
void gguf_put_model(struct gguf_writer *w, const struct export_source *source,
                    const struct gguf_family *family, enum gguf_type type);

/* gguf_put_tokenizer - add the metadata of the tokenizer, and the chat template.
 *
 * Errors    STATUS_UNAVAILABLE for a tokenizer that llama.cpp does not have; STATUS_INTERNAL */
status gguf_put_tokenizer(struct gguf_writer *w, const struct export_source *source);

/* gguf_find_named_family - find the first family with this general.architecture; NULL: none. */
const struct gguf_family *gguf_find_named_family(const char *name);

/* gguf_read_tokenizer - write the tokenizer of a GGUF file, and its chat template, to a model
 * folder. *exists is false if the file has no tokenizer.
 *
 * Errors    STATUS_UNAVAILABLE for an unsupported kind; STATUS_DATA; errors of file_write */
status gguf_read_tokenizer(const struct gguf_file *file, const char *folder, bool *exists);

/* gguf_get_number - return the value of a key that is one number, else default_value. */
double gguf_get_number(const struct gguf_file *file, const char *name, double default_value);

/* gguf_get_text - return the value of a key that is one text; NULL: there is none. */
const char *gguf_get_text(const struct gguf_file *file, const char *name);
