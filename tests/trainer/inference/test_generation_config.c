/* generation_config.json: every value is checked before it is used, and one warning names the
 * settings that are not supported. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "tests/check.h"
#include "trainer/inference/generation_config.h"

enum { VOCABULARY = 50, POSITIONS = 32, END = 2 };

static const struct generation_context context = {
    .vocabulary = VOCABULARY, .positions = POSITIONS, .end_token = END, .max_new_tokens = 20};

static char folder[FILE_PATH_BYTES] = "/tmp/bireme-generation-XXXXXX";

/* Completes options that are not set with this file. */
static status complete_with_file(const char *text, struct generate_options *out)
{
    char path[FILE_PATH_BYTES];
    CHECK_OK(file_join(path, folder, GENERATION_CONFIG_FILE));
    CHECK_OK(file_write(path, text, strlen(text)));
    *out = generation_config_unset();
    out->decoder_start = 7;
    return generation_config_complete(folder, &context, out);
}

static void test_errors(void)
{
    static const struct {
        const char *text;
        status expected;
        const char *message;
    } cases[] = {
        {"[]", STATUS_DATA, "json is not a JSON object"},
        {"{\"length_penalty\": NaN}", STATUS_DATA, "json:1:"},
        {"{\"num_beams\": 99999999999999999999}", STATUS_DATA, "json:1:"},
        {"{\"length_penalty\": 1e999}", STATUS_DATA, "json:1:"},
        {"{\"num_beams\": \"two\"}", STATUS_DATA, "num_beams is not an integer"},
        {"{\"num_beams\": 2.5}", STATUS_DATA, "num_beams is not an integer"},
        {"{\"num_beams\": 0}", STATUS_DATA, "num_beams is 0; it must be from 1 to 256"},
        {"{\"num_beams\": 257}", STATUS_DATA, "num_beams is 257; it must be from 1 to 256"},
        {"{\"max_length\": 1}", STATUS_DATA, "max_length is 1; it must be from 2 to 1000000000"},
        {"{\"max_length\": -9223372036854775808}", STATUS_DATA, "max_length is -92233720368547758"},
        {"{\"max_new_tokens\": 0}", STATUS_DATA, "max_new_tokens is 0; it must be from 1"},
        {"{\"max_new_tokens\": 9223372036854775807}", STATUS_DATA, "is 9223372036854775807; it"},
        {"{\"min_length\": -1}", STATUS_DATA, "min_length is -1; it must be from 0"},
        {"{\"min_new_tokens\": 1000000001}", STATUS_DATA, "it must be from 0 to 1000000000"},
        {"{\"no_repeat_ngram_size\": 1000001}", STATUS_DATA, "it must be from 0 to 1000000"},
        {"{\"repetition_penalty\": true}", STATUS_DATA, "repetition_penalty is not a number"},
        {"{\"repetition_penalty\": 0}", STATUS_DATA, "penalty is 0; it must be from 0.001 to 1000"},
        {"{\"length_penalty\": 1e300}", STATUS_DATA, "is 1e+300; it must be from -10 to 10"},
        {"{\"early_stopping\": \"never\"}", STATUS_UNAVAILABLE, "early_stopping must be true or"},
        {"{\"decoder_start_token_id\": 50}", STATUS_DATA,
         "decoder_start_token_id is 50; the token ids of the model are 0 to 49"},
        {"{\"decoder_start_token_id\": -1}", STATUS_DATA, "decoder_start_token_id is -1; the"},
        {"{\"decoder_start_token_id\": 4294967297}", STATUS_DATA, "is 4294967297; the token ids"},
        {"{\"decoder_start_token_id\": \"a\"}", STATUS_DATA, "start_token_id is not a token id"},
        {"{\"forced_bos_token_id\": 50}", STATUS_DATA, "forced_bos_token_id is 50; the token ids"},
        {"{\"forced_eos_token_id\": [70]}", STATUS_DATA, "forced_eos_token_id is 70; the token"},
        {"{\"forced_eos_token_id\": [1, 2]}", STATUS_UNAVAILABLE, "is a list of 2 token ids"},
        {"{\"forced_eos_token_id\": [null]}", STATUS_DATA, "forced_eos_token_id is not a token id"},
        {"{\"bad_words_ids\": 7}", STATUS_DATA, "is not a list of lists of token ids"},
        {"{\"bad_words_ids\": [7]}", STATUS_DATA, "is not a list of lists of token ids"},
        {"{\"bad_words_ids\": [[1, 50]]}", STATUS_DATA, "a token of bad_words_ids is 50; the"},
        {"{\"bad_words_ids\": [[-1]]}", STATUS_DATA, "a token of bad_words_ids is -1; the"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct generate_options o;
        CHECK_FAILS(complete_with_file(cases[i].text, &o), cases[i].expected, cases[i].message);
    }
}

/* An invalid value is an error, even if an option replaces it. */
static void test_replaced_error(void)
{
    struct generate_options o = generation_config_unset();
    CHECK_FAILS(complete_with_file("{\"num_beams\": -1}", &o), STATUS_DATA, "num_beams is -1");
    o.num_beams = 2;
    CHECK_FAILS(generation_config_complete(folder, &context, &o), STATUS_DATA, "num_beams is -1");
}

static void test_values(void)
{
    struct generate_options o;
    CHECK_OK(complete_with_file("{\"num_beams\": 256, \"max_length\": 100, \"min_length\": 5, "
                                "\"length_penalty\": -2, \"repetition_penalty\": 1.5, "
                                "\"decoder_start_token_id\": 49, \"forced_bos_token_id\": 0, "
                                "\"forced_eos_token_id\": [49], \"bad_words_ids\": [[49], [1, 2]], "
                                "\"no_repeat_ngram_size\": 3, \"early_stopping\": true}",
                                &o));
    CHECK(o.num_beams == 256 && o.max_new_tokens == 99 && o.early_stopping);
    CHECK(o.length_penalty == -2 && o.sampler.repetition_penalty == 1.5);
    CHECK(o.decoder_start == 49 && o.constraints.has_first && o.constraints.first_token == 0);
    CHECK(o.constraints.has_last && o.constraints.last_token == 49);
    CHECK(o.constraints.min_new_tokens == 4 && o.constraints.no_repeat_ngram_size == 3);
    CHECK(o.constraints.bad_words == 2 && o.constraints.bad_lengths[1] == 2 &&
          o.constraints.bad_tokens[2] == 2);
    CHECK(log_take_warning() == NULL);
    CHECK_OK(complete_with_file("{\"max_length\": 100, \"max_new_tokens\": 3}", &o));
    CHECK_EQUAL(o.max_new_tokens, 3);
    CHECK_OK(complete_with_file("{\"num_beams\": null, \"bad_words_ids\": null}", &o));
    CHECK(o.num_beams == 1 && o.max_new_tokens == 20 && o.decoder_start == 7);
    CHECK(o.sampler.temperature == 0 && o.sampler.repetition_penalty == 1);
    struct generation_context small = context;
    small.positions = 10;
    o.max_new_tokens = GENERATION_UNSET;
    CHECK_OK(generation_config_complete(folder, &small, &o));
    CHECK_EQUAL(o.max_new_tokens, 9); /* the default fits into the positions */
}

static void check_warning(const char *text, const char *expected)
{
    struct generate_options o;
    CHECK_OK(complete_with_file(text, &o));
    struct log_entry *warning = log_take_warning();
    CHECK((warning != NULL) == (expected != NULL));
    if (warning != NULL) {
        CHECK_TEXT(warning->name, "GENERATION");
        const char *names = strstr(warning->text, "no effect: ");
        CHECK(names != NULL);
        CHECK_TEXT(names, expected);
        free(warning);
    }
    CHECK(log_take_warning() == NULL);
}

static void test_warning(void)
{
    check_warning("{\"diversity_penalty\": 0.5, \"num_beam_groups\": 2, \"do_sample\": true}",
                  "no effect: do_sample, num_beam_groups, diversity_penalty");
    check_warning("{\"suppress_tokens\": [1], \"guidance_scale\": \"x\", \"stop_strings\": \"a\"}",
                  "no effect: suppress_tokens, guidance_scale, stop_strings");
    check_warning("{\"eos_token_id\": [1, 2]}", "no effect: eos_token_id (the end token is 2)");
    check_warning("{\"eos_token_id\": 3, \"constraints\": {\"a\": 1}}",
                  "no effect: constraints, eos_token_id (the end token is 2)");
    check_warning("{\"diversity_penalty\": 0.0, \"num_beam_groups\": 1, \"do_sample\": false, "
                  "\"suppress_tokens\": [], \"sequence_bias\": {}, \"max_time\": null, "
                  "\"guidance_scale\": 1.0, \"eos_token_id\": [2], \"temperature\": 0.7, "
                  "\"transformers_version\": \"5\", \"use_cache\": true, \"pad_token_id\": 3}",
                  NULL);
}

int main(void)
{
    log_keep_warnings();
    CHECK(mkdtemp(folder) != NULL);
    test_errors();
    test_replaced_error();
    test_values();
    test_warning();
    CHECK_OK(file_remove_tree(folder));
    return 0;
}
