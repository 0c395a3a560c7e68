/* Compares the tokenizer of ByT5 with ByT5Tokenizer of transformers (make_reference.py
 * seq2seq): ids and decoded texts for several forms of tokenizer_config.json, a copy as
 * tokenizer.json, and files that are refused. */
#include "datasets/tokenizer/text_pair.h"
#include "tests/datasets/tokenizer_reference.h"

static struct tokenizer *open_config(const char *name, const char *config)
{
    struct tokenizer *t;
    char *folder = folder_file(name);
    CHECK(mkdir(folder, 0777) == 0);
    folder_write(folder_join(folder, "tokenizer_config.json"), config, strlen(config));
    CHECK(tokenizer_exists(folder));
    CHECK_OK(tokenizer_open(folder, &t));
    return t;
}

static void check_decoded(const struct tokenizer *t, const struct token_list *ids,
                          const json_t *row, const char *name, bool skip_special)
{
    char *text = NULL;
    CHECK_OK(tokenizer_decode(t, ids->ids, ids->count, skip_special, &text, NULL));
    CHECK_TEXT(text, json_string_value(json_object_get(row, name)));
    free(text);
}

static void check_row(const char *name, const struct tokenizer *t, const json_t *row)
{
    const char *text = json_string_value(json_object_get(row, "text"));
    const json_t *source = json_object_get(row, "source"); /* with its end token */
    struct token_list ids = {0};
    CHECK_OK(tokenizer_encode(t, text, strlen(text), true, &ids));
    reference_check_ids(name, text, &ids, json_object_get(row, "ids"));
    check_decoded(t, &ids, row, "decoded", true);
    check_decoded(t, &ids, row, "all", false);
    if (source != NULL) {
        ids.count = 0;
        CHECK_OK(text_pair_encode_sequence(t, NULL, &(struct text){text, strlen(text)}, TEXT_SOURCE,
                                           -1, &ids));
        reference_check_ids(name, text, &ids, source);
    }
    token_list_free(&ids);
}

static void check_rows(const char *name, const struct tokenizer *t, const json_t *rows)
{
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        check_row(name, t, row);
    }
    CHECK(i > 25);
}

/* A tokenizer that is stored as tokenizer.json is equal. */
static void check_saved(const char *name, const struct tokenizer *t, const json_t *rows)
{
    struct tokenizer *again;
    char folder[64];
    snprintf(folder, sizeof folder, "saved_%s", name);
    CHECK_OK(tokenizer_save(t, folder_file(folder)));
    CHECK_OK(tokenizer_open(folder_file(folder), &again));
    CHECK_TEXT(tokenizer_sha256(again), tokenizer_sha256(t));
    check_rows(name, again, rows);
    CHECK_OK(tokenizer_destroy(&again));
}

static void test_reference(void)
{
    json_t *root = json_load_file(reference_path("expected_byt5.json"), 0, NULL);
    const char *name;
    json_t *tokenizer;
    CHECK(json_object_size(root) >= 3);
    json_object_foreach(root, name, tokenizer)
    {
        const json_t *config = json_object_get(tokenizer, "config");
        struct tokenizer *t = open_config(name, json_string_value(config));
        const json_t *rows = json_object_get(tokenizer, "rows");
        CHECK_EQUAL(tokenizer_vocab_size(t),
                    json_integer_value(json_object_get(tokenizer, "vocabulary")));
        CHECK_EQUAL(tokenizer_eos(t), 1);
        CHECK_EQUAL(tokenizer_get_specials(t).pad, 0);
        check_rows(name, t, rows);
        check_saved(name, t, rows);
        CHECK_OK(tokenizer_destroy(&t));
    }
    json_decref(root);
}

static void check_refused(const char *members, const char *message)
{
    static int number;
    char name[32], config[1024];
    struct tokenizer *t;
    snprintf(name, sizeof name, "refused%d", number++);
    snprintf(config, sizeof config, "{\"tokenizer_class\": \"ByT5Tokenizer\", %s}", members);
    char *folder = folder_file(name);
    CHECK(mkdir(folder, 0777) == 0);
    folder_write(folder_join(folder, "tokenizer_config.json"), config, strlen(config));
    CHECK_FAILS(tokenizer_open(folder, &t), STATUS_DATA, message);
}

static void test_refused(void)
{
    check_refused("\"extra_ids\": -1", "it has -1 additional tokens; 0 to 1000 are supported");
    check_refused("\"extra_ids\": 1e9", "it has 1e+09 additional tokens");
    check_refused("\"eos_token\": 3", "the token with the id 1 is not a string");
    check_refused("\"additional_special_tokens\": [\"a\", {}]", "the id 260 is not a string");
    check_refused("\"added_tokens_decoder\": {\"x\": \"y\"}", "'x' of added_tokens_decoder");
    check_refused("\"added_tokens_decoder\": {\"300000\": \"y\"}", "300000");
    check_refused("\"eos_token\": \"<pad>\"", "<pad>");
    check_refused("\"eos_token\": \"\"", "is not a string of 1 to");
    check_refused("\"pad_token\": {\"content\": \"<p>\", \"single_word\": true}", "single_word");
}

int main(void)
{
    folder_make();
    test_reference();
    test_refused();
    return 0;
}
