#include "datasets/prepare/prepare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "datasets/prepare/input.h"

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
    REQUIRE(!in->cutter->pairs, STATUS_DATA,
            "%s holds tokens, not sentences: text or JSON Lines are needed for sentence pairs",
            path);
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
    if (jsonl_named(path)) {
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

static status check_readable(char *const *paths, int count)
{
    for (int i = 0; i < count; i++) {
        struct reader r;
        TRY(reader_open(paths[i], &r));
        reader_close(&r);
    }
    return STATUS_OK;
}

status prepare_check(const struct prepare_options *o)
{
    REQUIRE(o->input_count > 0, STATUS_USAGE, "no input file");
    REQUIRE(o->validation_fraction >= 0.0 && o->validation_fraction < 1.0, STATUS_USAGE,
            "the validation fraction is %g; it must be in [0, 1)", o->validation_fraction);
    REQUIRE(o->shard_tokens > 0, STATUS_USAGE, "shards of %lld tokens", (long long)o->shard_tokens);
    REQUIRE(o->workers >= 0, STATUS_USAGE, "%d workers", o->workers);
    TRY(check_readable(o->inputs, o->input_count)); /* before hours of work */
    return check_readable(o->validation_inputs, o->validation_input_count);
}

static status read_inputs(struct input *in, const struct prepare_options *o)
{
    for (int i = 0; i < o->input_count; i++) {
        TRY(read_input(in, o->inputs[i]));
    }
    return encoder_drain(in->encoder);
}

/* All inputs through the encoder into the sink. */
static status encode_inputs(const struct prepare_options *o, struct sink sink,
                            struct output *output, struct prepare_report *report)
{
    struct cutter cutter = {.report = report,
                            .sentences = o->sentences,
                            .pairs = sink.sentences,
                            .blanks_only = adds_blank(o->tokenizer)};
    struct input in = {.options = o, .cutter = &cutter, .output = output, .report = report};
    status result = STATUS_OK;
    cutter.text = malloc(PREPARE_PIECE_BYTES);
    REQUIRE_GOTO(result, done, cutter.text != NULL, STATUS_INTERNAL, "out of memory: a piece");
    TRY_GOTO(result, done, encoder_open(o->tokenizer, o->workers, sink, &in.encoder));
    cutter.encoder = in.encoder;
    result = read_inputs(&in, o);
done:
    encoder_close(&in.encoder);
    free(cutter.text);
    return result;
}

status prepare_clm(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    TRY(prepare_check(options));
    double began = clock_seconds();
    struct output *output = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, output_open(options, EXAMPLE_TEXT, &output));
    struct sink sink = {output, output_tokens, output_end_document, false};
    TRY_GOTO(result, done, encode_inputs(options, sink, output, out));
    TRY_GOTO(result, done, output_finish(output, out));
    out->seconds = clock_seconds() - began;
done:
    output_close(&output);
    return result;
}

static status check_pairs(const struct prepare_options *o)
{
    struct tokenizer_specials s = tokenizer_specials_of(o->tokenizer);
    REQUIRE(s.cls >= 0 && s.sep >= 0, STATUS_DATA,
            "the tokenizer has no [CLS] and [SEP], so that it cannot make sentence pairs; `bireme "
            "tokenizer train --type wordpiece`, or --special-tokens roberta, makes one that has");
    REQUIRE(o->sequence_tokens >= 8 && o->sequence_tokens <= 65536, STATUS_USAGE,
            "examples of %lld tokens; 8 to 65,536 are possible", (long long)o->sequence_tokens);
    REQUIRE(o->short_fraction >= 0.0 && o->short_fraction <= 1.0, STATUS_USAGE,
            "the fraction of short sequences is %g; it must be in [0, 1]", o->short_fraction);
    return STATUS_OK;
}

status prepare_mlm(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    TRY(prepare_check(options));
    TRY(check_pairs(options));
    double began = clock_seconds();
    struct output *output = NULL;
    struct spool *spool = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, output_open(options, EXAMPLE_SENTENCE_PAIRS, &output));
    TRY_GOTO(result, done, spool_open(output_folder(output), &spool));
    struct sink sink = {spool, spool_tokens, spool_end_document, true};
    TRY_GOTO(result, done, encode_inputs(options, sink, output, out));
    TRY_GOTO(result, done, spool_finish(spool));
    int64_t documents = spool_documents(spool);
    TRY_GOTO(result, done, pairs_make(options, spool, output));
    TRY_GOTO(result, done, output_finish(output, out));
    out->examples = out->documents;
    out->documents = documents;
    out->sentences = spool_sentences(spool);
    out->seconds = clock_seconds() - began;
done:
    spool_close(&spool);
    output_close(&output);
    return result;
}
