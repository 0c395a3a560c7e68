/* Compares language tokens with MBartTokenizer and MBart50Tokenizer of transformers
 * (make_reference.py seq2seq): the ids of sources and targets, prepared pairs, and errors.
 */
#include "base/memory.h"
#include "base/number.h"
#include "datasets/prepare/prepare.h"
#include "datasets/shard/shard.h"
#include "datasets/tokenizer/text_pair.h"
#include "tests/datasets/tokenizer_reference.h"

static const char *get_text(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

static void check_side(const char *name, const struct tokenizer *t, const json_t *row,
                       const char *side, const char *language_key)
{
    const char *text = get_text(row, "text");
    struct token_list ids = {0};
    int32_t language;
    CHECK_OK(tokenizer_find_language(t, get_text(row, language_key), "--source-lang", &language));
    CHECK_OK(text_pair_encode_sequence(t, NULL, &(struct text){text, strlen(text)}, TEXT_TARGET,
                                       language, &ids));
    reference_check_ids(name, text, &ids, json_object_get(row, side));
    token_list_free(&ids);
}

/* The language of the post-processor is en_XX, and the end of a long text is truncated. */
static void check_default(const struct tokenizer *t, const json_t *row)
{
    enum { MOST = 4 };
    const char *text = get_text(row, "text");
    const json_t *expected = json_object_get(row, "source");
    struct token_list ids = {0};
    int64_t first;
    CHECK_TEXT(get_text(row, "source_lang"), "en_XX");
    CHECK_OK(tokenizer_encode_pair(t, text, strlen(text), NULL, 0, false, 0, &ids, &first));
    reference_check_ids("default", text, &ids, expected);
    ids.count = 0;
    CHECK_OK(tokenizer_encode_pair(t, text, strlen(text), NULL, 0, false, MOST, &ids, &first));
    int64_t count = (int64_t)json_array_size(expected), most = number_min(count, MOST);
    int tail = tokenizer_language_place(t) == TOKENIZER_LANGUAGE_FIRST ? 1 : 2;
    CHECK_EQUAL(ids.count, most);
    for (int64_t i = 0; i < most; i++) {
        int64_t from = i < most - tail ? i : count - most + i;
        CHECK_EQUAL(ids.ids[i], json_integer_value(json_array_get(expected, (size_t)from)));
    }
    CHECK_FAILS(tokenizer_encode_pair(t, text, 1, text, 1, false, 0, &ids, &first),
                STATUS_UNAVAILABLE, "does not encode pairs");
    token_list_free(&ids);
}

static void check_codes(const struct tokenizer *t)
{
    static const char *const codes[] = {"en", "<mask>", "</s>", "the"};
    int32_t id;
    for (int i = 0; i < COUNT(codes); i++) {
        CHECK_FAILS(tokenizer_find_language(t, codes[i], "--target-lang", &id), STATUS_USAGE,
                    "has no token of this language; the codes are its special tokens, such as "
                    "en_XX");
    }
}

static void check_example(struct shard *s, const json_t *row)
{
    const json_t *source = json_object_get(row, "source"), *target = json_object_get(row, "target");
    int64_t range[2], sources = (int64_t)json_array_size(source);
    int32_t ids[256];
    uint32_t first;
    CHECK_OK(shard_read_documents(s, 0, 2, range));
    CHECK_OK(shard_read_column(s, EXAMPLE_SOURCE, 0, 1, &first));
    CHECK(range[1] <= 256);
    CHECK_OK(shard_read(s, range[0], range[1], ids));
    CHECK_EQUAL(first, sources);
    struct token_list parts[] = {{ids, first, first}, {ids + first, range[1] - first, 0}};
    reference_check_ids("prepared", get_text(row, "text"), &parts[0], source);
    reference_check_ids("prepared", get_text(row, "text"), &parts[1], target);
}

/* Tests rows of "translation" with codes of two letters, and with the codes of the tokenizer. */
static void check_prepare(const struct tokenizer *t, const json_t *row)
{
    static const char *const keys[][2] = {{"en", "es"}, {"en_XX", "es_XX"}};
    struct prepare_report report;
    char *path = folder_file("rows.jsonl");
    struct prepare_options o = {.tokenizer = t,
                                .inputs = &path,
                                .input_count = 1,
                                .output = folder_file("prepared"),
                                .shard_tokens = 1 << 20,
                                .sequence_tokens = 64};
    for (int i = 0; i < 2; i++) {
        const char *text = get_text(row, "text");
        json_t *line =
            json_pack("{s:{s:s, s:s}}", "translation", keys[i][0], text, keys[i][1], text);
        CHECK(json_dump_file(line, path, JSON_COMPACT) == 0);
        json_decref(line);
        o.source_language = o.target_language = NULL;
        CHECK_FAILS(prepare_seq2seq(&o, &report), STATUS_USAGE,
                    "use --source-lang and --target-lang");
        o.source_language = "en";
        o.target_language = "es";
        CHECK_FAILS(prepare_seq2seq(&o, &report), STATUS_USAGE, "--source-lang en: the tokenizer");
        o.source_language = "en_XX";
        o.target_language = "es_XX";
        CHECK_OK(prepare_seq2seq(&o, &report));
        struct shard *s;
        CHECK_OK(shard_open(folder_file("prepared/train-00000-of-00001.h5"), &s));
        check_example(s, row);
        CHECK_OK(shard_close(&s));
    }
}

static void check_tokenizer(const char *name, const json_t *rows)
{
    struct tokenizer *t, *again;
    const json_t *row;
    size_t i;
    CHECK_OK(tokenizer_open(reference_path(name), &t));
    CHECK_EQUAL(tokenizer_language_place(t),
                strcmp(name, "mbart") == 0 ? TOKENIZER_LANGUAGE_LAST : TOKENIZER_LANGUAGE_FIRST);
    json_array_foreach(rows, i, row)
    {
        check_side(name, t, row, "source", "source_lang");
        check_side(name, t, row, "target", "target_lang");
    }
    CHECK(i > 20);
    check_default(t, json_array_get(rows, 0));
    check_codes(t);
    check_prepare(t, json_array_get(rows, 0));
    CHECK_OK(tokenizer_save(t, folder_file("saved")));
    CHECK_OK(tokenizer_open(folder_file("saved"), &again));
    CHECK_EQUAL(tokenizer_language_place(again), tokenizer_language_place(t));
    CHECK_TEXT(tokenizer_sha256(again), tokenizer_sha256(t));
    CHECK_OK(tokenizer_destroy(&again));
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_without_languages(void)
{
    struct tokenizer *t;
    int32_t id;
    CHECK_OK(tokenizer_open(reference_path("roberta"), &t));
    CHECK_EQUAL(tokenizer_language_place(t), TOKENIZER_LANGUAGE_NONE);
    CHECK_FAILS(tokenizer_find_language(t, "en_XX", "--source-lang", &id), STATUS_USAGE,
                "has no language tokens");
    CHECK_OK(tokenizer_destroy(&t));
}

int main(void)
{
    const char *name;
    json_t *rows, *expected = json_load_file(reference_path("expected_languages.json"), 0, NULL);
    folder_make();
    CHECK(json_object_size(expected) == 2);
    json_object_foreach(expected, name, rows)
    {
        check_tokenizer(name, rows);
    }
    json_decref(expected);
    test_without_languages();
    return 0;
}
