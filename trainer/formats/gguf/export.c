/* Writes a checkpoint as a GGUF file, tensor by tensor. */
#include "trainer/formats/gguf/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/gguf/gguf_impl.h"

/* A parameter that the file contains. The matrix is [rows, columns] = [out, in] in the file. */
struct exported_tensor {
    int parameter;
    char name[GGUF_NAME_BYTES];
    enum gguf_type type;
    int64_t rows, columns; /* rows 0: a vector */
    int64_t skipped_rows;  /* of the position table: rows that no token uses */
    int64_t heads;         /* > 0: the rows of each head are reordered for llama.cpp's rotation */
};

struct gguf_job {
    struct export_source source;
    const struct architecture *architecture;
    const struct gguf_family *family;
    enum gguf_type type;
    struct exported_tensor *tensors;
    int count;
    struct gguf_writer *writer;
    float *buffer; /* [CHECKPOINT_READ_ELEMENTS] */
};

/* ---- the list of tensors ---- */

static enum gguf_type choose_type(const struct gguf_job *job, const struct exported_tensor *t,
                                  enum model_role role)
{
    bool is_table = role == MODEL_POSITION_TABLE || role == MODEL_TOKEN_TYPE_TABLE ||
                    role == MODEL_POSITION_BIAS;
    bool is_output = role == MODEL_TOKEN_TABLE || role == MODEL_DECODER;
    bool has_blocks = job->type == GGUF_Q8_0 || job->type == GGUF_Q4_0;
    if (t->rows == 0 || is_table) {
        return GGUF_F32;
    }
    if (has_blocks && t->columns % GGUF_BLOCK != 0) {
        return GGUF_F16;
    }
    return job->type == GGUF_Q4_0 && is_output ? GGUF_Q8_0 : job->type;
}

static bool describe_tensor(const struct gguf_job *job, int index, struct exported_tensor *t)
{
    const struct model_parameter *p = &job->source.parameters[index];
    if (!gguf_tensor_name(job->architecture, p->name, t->name)) {
        return false;
    }
    t->parameter = index;
    t->columns = p->whole_columns;
    t->rows = p->dimensions == 1 ? 0 : p->whole_rows;
    if (p->role == MODEL_POSITION_TABLE) {
        t->skipped_rows = job->architecture->embedding.first_position;
        t->rows -= t->skipped_rows;
    }
    t->heads = gguf_count_reordered_heads(job->family, &job->source.config, t->name);
    t->type = choose_type(job, t, p->role);
    return true;
}

/* Returns whether the file contains the factors of Llama 3's rotary frequencies. */
static bool has_rotary_factors(const struct gguf_job *job)
{
    return job->source.config.rope_scaling.kind == ROTARY_LLAMA3;
}

/* Returns whether the file also contains the token table as the output matrix. */
static bool repeats_table(const struct gguf_job *job, const struct exported_tensor *t)
{
    return job->family->needs_output && job->source.config.tied &&
           job->source.parameters[t->parameter].role == MODEL_TOKEN_TABLE;
}

static status add_tensor(struct gguf_job *job, const struct exported_tensor *t)
{
    job->count++;
    return gguf_add_tensor(job->writer, t->name, t->type, t->rows, t->columns);
}

static status declare_tensors(struct gguf_job *job)
{
    TRY(ALLOCATE(job->tensors, job->source.count + 1, "the tensors of a GGUF file"));
    for (int i = 0; i < job->source.count; i++) {
        struct exported_tensor *t = &job->tensors[job->count];
        if (!describe_tensor(job, i, t)) {
            continue;
        }
        TRY(add_tensor(job, t));
        if (repeats_table(job, t)) {
            t[1] = t[0];
            snprintf(t[1].name, sizeof t[1].name, "output.weight");
            TRY(add_tensor(job, &t[1]));
        }
    }
    return has_rotary_factors(job) ? gguf_add_tensor(job->writer, "rope_freqs.weight", GGUF_F32, 0,
                                                     model_head_width(&job->source.config) / 2)
                                   : STATUS_OK;
}

/* ---- the data ---- */

/* Collects the elements of a tensor. */
struct collection {
    float *values;
    int64_t count;
};

static status collect_values(void *user, const float *values, int64_t count)
{
    struct collection *c = user;
    memcpy(c->values + c->count, values, (size_t)count * sizeof *values);
    c->count += count;
    return STATUS_OK;
}

/* Returns the factor by which a tensor is multiplied. llama.cpp does not scale the outputs of T5's
 * decoder, so the norm before the output matrix contains this factor. */
static float get_factor(const struct gguf_job *job, const struct exported_tensor *t)
{
    double divisor = job->source.config.logits_divisor;
    bool is_scaled = strcmp(t->name, GGUF_DECODER_NORM ".weight") == 0 && divisor > 0;
    return is_scaled ? (float)(1 / divisor) : 1;
}

/* Writes a tensor. `values` has the order of transformers; `spare` has the same size. */
static status write_values(struct gguf_job *job, const struct exported_tensor *t, float *values,
                           float *spare)
{
    const struct model_parameter *p = &job->source.parameters[t->parameter];
    int64_t elements = p->whole_rows * p->whole_columns;
    float norm_offset = huggingface_norm_offset(job->source.architecture, p);
    float factor = get_factor(job, t);
    for (int64_t i = 0; i < elements && norm_offset > 0; i++) {
        values[i] += norm_offset; /* GGUF files store the factor itself */
    }
    for (int64_t i = 0; i < elements && factor < 1; i++) {
        values[i] *= factor;
    }
    if (p->transposed && p->dimensions == 2) {
        gguf_transpose(spare, values, t->columns, t->rows);
        values = spare;
    } else if (t->heads > 0) {
        bool is_vector = t->rows == 0;
        gguf_reorder_heads(spare, values, t->heads, is_vector ? t->columns : t->rows,
                           is_vector ? 1 : t->columns, true);
        values = spare;
    }
    return gguf_write_tensor(job->writer, values + t->skipped_rows * t->columns);
}

static status write_tensor(struct gguf_job *job, const struct exported_tensor *t)
{
    const struct model_parameter *p = &job->source.parameters[t->parameter];
    size_t elements = (size_t)(p->whole_rows * p->whole_columns);
    struct collection c = {0};
    float *spare = NULL;
    bool needs_spare = (p->transposed && p->dimensions == 2) || t->heads > 0;
    TRY(ALLOCATE(c.values, elements, t->name));
    status result = needs_spare ? ALLOCATE(spare, elements, t->name) : STATUS_OK;
    if (result == STATUS_OK) {
        result = export_source_read(&job->source, t->parameter, job->buffer, collect_values, &c);
    }
    if (result == STATUS_OK) {
        result = write_values(job, t, c.values, spare);
    }
    free(c.values);
    free(spare);
    return result;
}

/* Writes the factors by which Llama 3 divides the rotary frequencies. */
static status write_rotary_factors(const struct gguf_job *job)
{
    const struct model_config *c = &job->source.config;
    const struct rotary_scaling plain = {.kind = ROTARY_PLAIN};
    int64_t width = model_head_width(c);
    float *factors;
    TRY(ALLOCATE(factors, width / 2, "the rotary factors"));
    for (int64_t i = 0; i < width / 2; i++) {
        factors[i] = (float)(rotary_frequency(i, width, c->rope_theta, &plain) /
                             rotary_frequency(i, width, c->rope_theta, &c->rope_scaling));
    }
    status result = gguf_write_tensor(job->writer, factors);
    free(factors);
    return result;
}

/* Reads the parameters that the file does not contain, because the fingerprint of a base model
 * covers all of them. */
static status skip_values(void *user, const float *values, int64_t count)
{
    (void)user;
    (void)values;
    (void)count;
    return STATUS_OK;
}

static status write_tensors(struct gguf_job *job, struct huggingface_summary *summary)
{
    TRY(ALLOCATE(job->buffer, CHECKPOINT_READ_ELEMENTS, "reading a checkpoint"));
    const struct exported_tensor *next = job->tensors;
    for (int i = 0; i < job->source.count; i++) {
        bool is_written = false;
        while (next < job->tensors + job->count && next->parameter == i) {
            summary->parameters += next->columns * (next->rows > 0 ? next->rows : 1);
            TRY(write_tensor(job, next++));
            is_written = true;
        }
        if (!is_written && job->source.adapters != NULL) {
            TRY(export_source_read(&job->source, i, job->buffer, skip_values, NULL));
        }
    }
    TRY(has_rotary_factors(job) ? write_rotary_factors(job) : STATUS_OK);
    summary->tensors = job->count;
    return export_source_check_base(&job->source);
}

/* ---- the whole export ---- */

static status write_file(struct gguf_job *job, struct huggingface_summary *summary)
{
    gguf_put_model(job->writer, &job->source, job->family, job->type);
    TRY(gguf_put_tokenizer(job->writer, &job->source));
    TRY(declare_tensors(job));
    return write_tensors(job, summary);
}

static status export_file(struct gguf_job *job, const char *checkpoint, const char *output,
                          struct huggingface_summary *summary)
{
    char names[256];
    TRY(export_source_open(&job->source, checkpoint, false));
    job->architecture = model_architecture(job->source.config.architecture);
    job->family = gguf_find_family(job->source.config.architecture);
    REQUIRE(job->family != NULL, STATUS_UNAVAILABLE,
            "%s: model.architecture %s cannot be exported to GGUF; %s can",
            job->source.found.folder, job->source.config.architecture,
            gguf_family_names(names, sizeof names));
    TRY(gguf_check_model(&job->source, job->family));
    *summary = (struct huggingface_summary){.files = 1, .tokenizer = job->source.tokenizer != NULL};
    status result = gguf_writer_create(output, &job->writer);
    if (result == STATUS_OK) {
        result = write_file(job, summary);
    }
    return gguf_writer_finish(&job->writer, result);
}

status gguf_export(const char *checkpoint, const char *output, enum gguf_type type,
                   struct huggingface_summary *summary)
{
    struct gguf_job *job = NULL;
    TRY(ALLOCATE(job, 1, checkpoint));
    job->type = type;
    status result = export_file(job, checkpoint, output, summary);
    KEEP_FIRST(result, export_source_close(&job->source));
    free(job->tensors);
    free(job->buffer);
    free(job);
    return result;
}
