#include "datasets/prepare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "datasets/prepare_impl.h"

static bool ends_with(const char *path, const char *ending)
{
    size_t length = strlen(path), tail = strlen(ending);
    return length > tail && strcmp(path + length - tail, ending) == 0;
}

/* path with another ending of the same length. */
static status other_ending(char out[FILE_PATH_BYTES], const char *path, const char *ending)
{
    int used = snprintf(out, FILE_PATH_BYTES, "%.*s%s", (int)(strlen(path) - strlen(ending)), path,
                        ending);
    REQUIRE(used < FILE_PATH_BYTES, STATUS_USAGE, "path too long: %s", path);
    return STATUS_OK;
}

static bool is_listed(const struct prepare_options *o, const char *path)
{
    for (int i = 0; i < o->input_count; i++) {
        if (strcmp(o->inputs[i], path) == 0) {
            return true;
        }
    }
    return false;
}

/* Tokens go to the output directly, after all text before them. */
static status read_tokens(struct input *in, const char *path)
{
    char bin[FILE_PATH_BYTES], idx[FILE_PATH_BYTES];
    TRY(encoder_drain(in->encoder));
    if (ends_with(path, ".idx")) {
        TRY(other_ending(bin, path, ".bin"));
        return is_listed(in->options, bin) ? STATUS_OK : prepare_megatron(in, bin, path);
    }
    TRY(other_ending(idx, path, ".idx"));
    return file_exists(idx) ? prepare_megatron(in, path, idx) : prepare_llmc(in, path);
}

static status read_input(struct input *in, const char *path)
{
    if (ends_with(path, ".jsonl") || ends_with(path, ".ndjson")) {
        return prepare_jsonl(in, path);
    }
    if (ends_with(path, ".bin") || ends_with(path, ".idx")) {
        return read_tokens(in, path);
    }
    return prepare_text(in, path);
}

/* Whether the tokenizer adds a blank to a text that begins with a line's end. A tokenizer that cannot take
 * one at all is asked for no cut there either. */
static bool adds_blank(const struct tokenizer *tokenizer)
{
    struct token_list ids = {0};
    char *text = NULL;
    size_t bytes = 0;
    bool same =
        tokenizer_encode(tokenizer, "\na", 2, false, &ids) == STATUS_OK &&
        tokenizer_decode(tokenizer, ids.ids, ids.count, false, &text, &bytes) == STATUS_OK &&
        bytes == 2 && memcmp(text, "\na", 2) == 0;
    status_clear();
    free(text);
    token_list_free(&ids);
    return !same;
}

static status check_options(const struct prepare_options *o)
{
    REQUIRE(o->input_count > 0, STATUS_USAGE, "no input file");
    REQUIRE(o->validation_fraction >= 0.0 && o->validation_fraction < 1.0, STATUS_USAGE,
            "the validation fraction is %g; it must be in [0, 1)", o->validation_fraction);
    REQUIRE(o->shard_tokens > 0, STATUS_USAGE, "shards of %lld tokens", (long long)o->shard_tokens);
    REQUIRE(o->workers >= 0, STATUS_USAGE, "%d workers", o->workers);
    for (int i = 0; i < o->input_count; i++) { /* before hours of work */
        struct reader r;
        TRY(reader_open(o->inputs[i], &r));
        reader_close(&r);
    }
    return STATUS_OK;
}

static status read_inputs(struct input *in, const struct prepare_options *o)
{
    for (int i = 0; i < o->input_count; i++) {
        TRY(read_input(in, o->inputs[i]));
    }
    return encoder_drain(in->encoder);
}

status prepare_clm(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    TRY(check_options(options));
    double began = clock_seconds();
    struct cutter cutter = {.report = out, .blanks_only = adds_blank(options->tokenizer)};
    struct input in = {.options = options, .cutter = &cutter, .report = out};
    status result = STATUS_OK;
    cutter.text = malloc(PREPARE_PIECE_BYTES);
    REQUIRE_GOTO(result, done, cutter.text != NULL, STATUS_INTERNAL, "out of memory: a piece");
    TRY_GOTO(result, done, output_open(options, &in.output));
    TRY_GOTO(result, done,
             encoder_open(options->tokenizer, options->workers, in.output, &in.encoder));
    cutter.encoder = in.encoder;
    TRY_GOTO(result, done, read_inputs(&in, options));
    TRY_GOTO(result, done, output_finish(in.output, out));
    out->seconds = clock_seconds() - began;
done:
    encoder_close(&in.encoder);
    output_close(&in.output);
    free(cutter.text);
    return result;
}
