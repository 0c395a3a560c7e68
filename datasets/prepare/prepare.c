#include "datasets/prepare/prepare.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/input/input.h"
#include "base/memory.h"
#include "base/text.h"
#include "datasets/prepare/encoder.h"
#include "datasets/prepare/input.h"
#include "datasets/prepare/output.h"
#include "datasets/prepare/sentence_pairs.h"
#include "datasets/prepare/splitter.h"
#include "datasets/prepare/text_files.h"
#include "datasets/prepare/token_files.h"
#include "datasets/prepare/token_spool.h"

/* Returns whether the path is a prefix of Megatron-LM: PATH.bin and PATH.idx exist, PATH does not.
 * `bin` receives the first one. */
static bool find_megatron_prefix(const char *path, char bin[FILE_PATH_BYTES])
{
    char idx[FILE_PATH_BYTES];
    int used = snprintf(idx, sizeof idx, "%s.idx", path);
    snprintf(bin, FILE_PATH_BYTES, "%s.bin", path);
    return used < (int)sizeof idx && !input_is_stream(path) && !file_exists(path) &&
           file_exists(idx) && file_exists(bin);
}

/* Returns whether a path is a number and not a file, such as a weight of a blend of Megatron-LM. */
static bool is_weight(const char *path)
{
    char *end;
    strtod(path, &end);
    return *end == '\0' && end != path && !file_exists(path);
}

/* Adds to *standard_inputs how many of the paths are standard input. Does not open pipes, because
 * the writer of a pipe could end when it is closed. */
static status check_readable(char *const *paths, int count, int *standard_inputs)
{
    for (int i = 0; i < count; i++) {
        struct input in;
        char bin[FILE_PATH_BYTES];
        *standard_inputs += strcmp(paths[i], "-") == 0;
        REQUIRE(*standard_inputs <= 1, STATUS_USAGE, "standard input (-) is given twice");
        REQUIRE(!is_weight(paths[i]), STATUS_USAGE,
                "%s is not a file: prepare takes files without weights; give each source its own "
                "--output, and its weight in the list data.train of the recipe",
                paths[i]);
        if (!input_is_stream(paths[i]) && !find_megatron_prefix(paths[i], bin)) {
            TRY(input_open(paths[i], &in));
            input_close(&in);
        }
    }
    return STATUS_OK;
}

status prepare_options_check(const struct prepare_options *o)
{
    REQUIRE(o->input_count + o->validation_input_count > 0, STATUS_USAGE,
            "no input file; give --input FILE..., or --source and --target");
    REQUIRE(o->validation_fraction >= 0.0 && o->validation_fraction < 1.0, STATUS_USAGE,
            "the validation fraction is %g; it must be in [0, 1)", o->validation_fraction);
    REQUIRE(o->shard_tokens > 0, STATUS_USAGE,
            "the shard size is %" PRId64 " tokens; it must be at least 1", o->shard_tokens);
    REQUIRE(o->workers >= 0, STATUS_USAGE,
            "the number of workers is %d; it must be at least 0 (0: one per core)", o->workers);
    int standard_inputs = 0;
    TRY(check_readable(o->inputs, o->input_count, &standard_inputs)); /* before hours of work */
    TRY(check_readable(o->validation_inputs, o->validation_input_count, &standard_inputs));
    TRY(o->targets != NULL ? check_readable(o->targets, o->input_count, &standard_inputs)
                           : STATUS_OK);
    return o->validation_targets != NULL
               ? check_readable(o->validation_targets, o->validation_input_count, &standard_inputs)
               : STATUS_OK;
}

/* Replaces the suffix of a path by another one of the same length. */
static status replace_suffix(char out[FILE_PATH_BYTES], const char *path, const char *suffix)
{
    int used = snprintf(out, FILE_PATH_BYTES, "%.*s%s", (int)(strlen(path) - strlen(suffix)), path,
                        suffix);
    REQUIRE(used < FILE_PATH_BYTES, STATUS_USAGE, "path too long: %s", path);
    return STATUS_OK;
}

static bool is_input(const struct prepare_options *o, const char *path)
{
    for (int i = 0; i < o->input_count; i++) {
        if (strcmp(o->inputs[i], path) == 0) {
            return true;
        }
    }
    return false;
}

/* Copies a token file to the output. Text of earlier inputs is written first. */
static status read_token_file(struct prepare_input *in, const char *path)
{
    char bin[FILE_PATH_BYTES], idx[FILE_PATH_BYTES];
    REQUIRE(!in->splitter->keep_sentences, STATUS_DATA,
            "%s contains tokens, not sentences; sentence pairs need text or JSON Lines", path);
    TRY(encoder_drain(in->encoder));
    if (text_has_suffix(path, ".idx")) {
        TRY(replace_suffix(bin, path, ".bin"));
        return is_input(in->options, bin) ? STATUS_OK : token_files_read_megatron(in, bin, path);
    }
    TRY(replace_suffix(idx, path, ".idx"));
    return file_exists(idx) ? token_files_read_megatron(in, path, idx)
                            : token_files_read_llmc(in, path);
}

static status read_input(struct prepare_input *in, const char *path)
{
    char bin[FILE_PATH_BYTES];
    if (find_megatron_prefix(path, bin)) {
        return read_token_file(in, bin);
    }
    REQUIRE(text_has_suffix(path, ".bin") || !input_has_suffix(path, ".bin"), STATUS_UNAVAILABLE,
            "%s: token files cannot be compressed, because they are read at random positions; "
            "decompress it first",
            path);
    if (text_has_suffix(path, ".bin") || text_has_suffix(path, ".idx")) {
        return read_token_file(in, path);
    }
    return text_files_read(in, path);
}

/* Returns whether chunks may begin only with a space: the tokenizer adds a space to a text that
 * begins with a newline, cannot encode this text, or has no pattern that separates a newline. */
static bool needs_leading_space(const struct tokenizer *tokenizer)
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
    return !same || tokenizer_has_character_words(tokenizer);
}

static status read_inputs(struct prepare_input *in, const struct prepare_options *o)
{
    for (int i = 0; i < o->input_count; i++) {
        TRY(read_input(in, o->inputs[i]));
    }
    return encoder_drain(in->encoder);
}

/* Encodes all inputs into the sink. */
static status encode_inputs(const struct prepare_options *o, struct encoder_sink sink,
                            struct prepare_output *output, struct prepare_report *report)
{
    struct splitter splitter = {.tokenizer = o->tokenizer,
                                .report = report,
                                .sentence_rule = o->sentence_rule,
                                .keep_sentences = sink.marks_sentences,
                                .spaces_only = needs_leading_space(o->tokenizer)};
    struct prepare_input in = {
        .options = o, .splitter = &splitter, .output = output, .report = report};
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(splitter.buffer, ENCODER_CHUNK_BYTES, "a chunk"));
    TRY_GOTO(result, done, encoder_open(o->tokenizer, o->workers, sink, &in.encoder));
    splitter.encoder = in.encoder;
    result = read_inputs(&in, o);
done:
    encoder_close(&in.encoder);
    free(splitter.buffer);
    return result;
}

status prepare_clm(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    TRY(prepare_options_check(options));
    REQUIRE(!options->append_eod || tokenizer_eos(options->tokenizer) >= 0, STATUS_USAGE,
            "--append-eod: the tokenizer has no end-of-text token; train one with --special-tokens "
            "'<|endoftext|>'");
    double start = clock_seconds();
    struct prepare_output *output = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, prepare_output_open(options, EXAMPLE_TEXT, &output));
    struct encoder_sink sink = {output, prepare_output_write_tokens, prepare_output_end_document,
                                false};
    TRY_GOTO(result, done, encode_inputs(options, sink, output, out));
    TRY_GOTO(result, done, prepare_output_finish(output, out));
    out->seconds = clock_seconds() - start;
done:
    prepare_output_close(&output);
    return result;
}

static status check_sentence_pairs(const struct prepare_options *o)
{
    struct tokenizer_specials s = tokenizer_get_specials(o->tokenizer);
    REQUIRE(
        s.cls >= 0 && s.sep >= 0, STATUS_DATA,
        "the tokenizer has no [CLS] and [SEP], which sentence pairs need; train one with `bireme "
        "tokenizer train --type wordpiece`, or with --special-tokens roberta");
    REQUIRE(o->sequence_tokens >= 8 && o->sequence_tokens <= 65536, STATUS_USAGE,
            "the sequence length is %" PRId64 " tokens; it must be from 8 to 65,536",
            o->sequence_tokens);
    REQUIRE(o->short_fraction >= 0.0 && o->short_fraction <= 1.0, STATUS_USAGE,
            "the fraction of short sequences is %g; it must be in [0, 1]", o->short_fraction);
    REQUIRE(!o->sentence_order || !tokenizer_is_roberta(o->tokenizer), STATUS_USAGE,
            "--sentence-order needs pairs, and a RoBERTa tokenizer makes none; train a tokenizer "
            "with `bireme tokenizer train --type wordpiece`");
    return STATUS_OK;
}

status prepare_mlm(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    TRY(prepare_options_check(options));
    TRY(check_sentence_pairs(options));
    double start = clock_seconds();
    struct prepare_output *output = NULL;
    struct token_spool *spool = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, prepare_output_open(options, EXAMPLE_SENTENCE_PAIRS, &output));
    TRY_GOTO(result, done, token_spool_open(prepare_output_temporary_folder(output), &spool));
    struct encoder_sink sink = {spool, token_spool_write_tokens, token_spool_end_document, true};
    TRY_GOTO(result, done, encode_inputs(options, sink, output, out));
    TRY_GOTO(result, done, token_spool_finish(spool));
    int64_t documents = token_spool_document_count(spool);
    TRY_GOTO(result, done, sentence_pairs_write(options, spool, output));
    TRY_GOTO(result, done, prepare_output_finish(output, out));
    out->examples = out->documents;
    out->documents = documents;
    out->sentences = token_spool_sentence_count(spool);
    out->seconds = clock_seconds() - start;
done:
    token_spool_close(&spool);
    prepare_output_close(&output);
    return result;
}
