/* Compares source.spm, target.spm and vocab.json with MarianTokenizer of transformers
 * (make_reference.py seq2seq): ids of sources and targets, decoded texts, a copy of the
 * files, and files that are refused. */
#include "datasets/tokenizer/text_pair.h"
#include "tests/datasets/tokenizer_reference.h"

static void check_decoded(const struct tokenizer *t, const struct token_list *ids,
                          const json_t *expected)
{
    char *text = NULL;
    CHECK_OK(tokenizer_decode(t, ids->ids, ids->count, true, &text, NULL));
    CHECK_TEXT(text, json_string_value(expected));
    free(text);
}

static void check_side(const struct tokenizer *t, const json_t *row, enum text_side side)
{
    static const char *const names[] = {"source", "target"};
    const char *text = json_string_value(json_object_get(row, "text"));
    struct token_list ids = {0};
    CHECK_OK(
        text_pair_encode_sequence(t, NULL, &(struct text){text, strlen(text)}, side, -1, &ids));
    reference_check_ids(names[side], text, &ids, json_object_get(row, names[side]));
    const json_t *decoded = json_object_get(row, "decoded");
    if (!tokenizer_has_target(t)) {
        check_decoded(t, &ids, json_array_get(decoded, (size_t)side));
    } else if (side == TEXT_TARGET) {
        check_decoded(tokenizer_target(t), &ids, json_array_get(decoded, 0));
    }
    token_list_free(&ids);
}

static void check_rows(const struct tokenizer *t, const char *name)
{
    json_t *rows = json_load_file(reference_path(name), 0, NULL);
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        check_side(t, row, TEXT_SOURCE);
        check_side(t, row, TEXT_TARGET);
    }
    CHECK(i > 25);
    json_decref(rows);
}

/* ---- files that are refused ---- */

static const char *const files[] = {"source.spm", "target.spm", "vocab.json"};

static char *copy_file(const char *from, const char *folder, const char *name)
{
    size_t bytes;
    char *data = folder_read(folder_join(from, name), &bytes), *path = folder_join(folder, name);
    folder_write(path, data, bytes);
    free(data);
    return path;
}

static void check_refused(const char *name, const char *text, status code, const char *message)
{
    static int number;
    char folder_name[32];
    struct tokenizer *t;
    snprintf(folder_name, sizeof folder_name, "refused%d", number++);
    char *folder = folder_file(folder_name);
    CHECK(mkdir(folder, 0777) == 0);
    for (int i = 0; i < 3; i++) {
        copy_file(reference_path("marian"), folder, files[i]);
    }
    folder_write(folder_join(folder, name), text, strlen(text));
    CHECK_FAILS(tokenizer_open(folder, &t), code, message);
}

static void test_refused(void)
{
    check_refused("vocab.json", "{\"</s>\": 0}", STATUS_DATA, "there is no token <unk>");
    check_refused("vocab.json", "{\"<unk>\": 0}", STATUS_DATA, "there is no token </s>");
    check_refused("vocab.json", "{}", STATUS_DATA, "has no tokens");
    check_refused("vocab.json", "{\"</s>\": 0", STATUS_DATA, "vocab.json:1:");
    check_refused("vocab.json", "[]", STATUS_DATA, "has no tokens");
    check_refused("vocab.json", "{\"</s>\": 0, \"<unk>\": 0}", STATUS_DATA, "have the id 0");
    check_refused("vocab.json", "{\"</s>\": 0, \"<unk>\": -1}", STATUS_DATA, "has the id -1: 2");
    /* one token must not make tables of millions of ids */
    check_refused("vocab.json", "{\"</s>\": 0, \"<unk>\": 16777215}", STATUS_DATA,
                  "'<unk>' has the id 16777215: 2 tokens may have ids from 0 to 65539");
    check_refused("vocab.json", "{\"</s>\": \"0\", \"<unk>\": 1}", STATUS_DATA,
                  "is not an integer");
    check_refused("source.spm", "no model", STATUS_DATA, "source.spm");
    check_refused("target.spm", "", STATUS_DATA, "target.spm");
    check_refused("tokenizer_config.json", "{\"separate_vocabs\": true}", STATUS_NO_INPUT,
                  "target_vocab.json");
    check_refused("target_tokenizer.json", "{}", STATUS_UNAVAILABLE,
                  "next to source.spm is not supported");
}

/* ---- two vocabularies ---- */

static void test_separate(void)
{
    struct tokenizer *t, *again;
    char *folder = folder_file("separate");
    CHECK_OK(tokenizer_open(reference_path("marian_separate"), &t));
    CHECK(tokenizer_has_target(t));
    CHECK(tokenizer_vocab_size(t) != tokenizer_vocab_size(tokenizer_target(t)));
    CHECK(tokenizer_max_vocab_size(t) >= tokenizer_vocab_size(tokenizer_target(t)));
    check_rows(t, "expected_marian_separate.json");
    CHECK_OK(tokenizer_save(t, folder));
    CHECK_OK(tokenizer_open(folder, &again));
    CHECK_TEXT(tokenizer_sha256(again), tokenizer_sha256(t));
    check_rows(again, "expected_marian_separate.json");
    CHECK_OK(tokenizer_destroy(&again));
    const char *targets = "{\"<unk>\": 0, \"</s>\": 1, \"a\": 2}";
    folder_write(folder_join(folder, "target_vocab.json"), targets, strlen(targets));
    CHECK_FAILS(tokenizer_open(folder, &again), STATUS_UNAVAILABLE,
                "the id 0 in vocab.json and the id 1 in target_vocab.json");
    targets = "{\"</s>\": 0, \"<unk>\": 1, \"a\": 2}";
    folder_write(folder_join(folder, "target_vocab.json"), targets, strlen(targets));
    CHECK_OK(tokenizer_open(folder, &again));
    CHECK(strcmp(tokenizer_sha256(again), tokenizer_sha256(t)) != 0);
    CHECK_OK(tokenizer_destroy(&again));
    CHECK_OK(tokenizer_destroy(&t));
}

/* Any other tokenizer with target_tokenizer.json. */
static void test_target_file(void)
{
    struct tokenizer *t, *target, *again, *more;
    struct token_list ids = {0};
    char *token = (char *)(uintptr_t) "<new>", *folder = folder_file("two");
    const struct text text = {"a list", 6};
    size_t bytes;
    CHECK_OK(tokenizer_open(reference_path("gpt2"), &t));
    CHECK_OK(tokenizer_open(reference_path("char"), &target));
    CHECK_OK(tokenizer_save(t, folder));
    char *data = folder_read(folder_join(reference_path("char"), "tokenizer.json"), &bytes);
    folder_write(folder_join(folder, "target_tokenizer.json"), data, bytes);
    free(data);
    CHECK_OK(tokenizer_open(folder, &again));
    CHECK(strcmp(tokenizer_sha256(again), tokenizer_sha256(t)) != 0);
    CHECK_TEXT(tokenizer_sha256(tokenizer_target(again)), tokenizer_sha256(target));
    CHECK(tokenizer_target(t) == t && !tokenizer_has_target(t));
    CHECK_OK(tokenizer_encode(tokenizer_target(again), text.bytes, text.count, false, &ids));
    CHECK_EQUAL(ids.count, 6);
    token_list_free(&ids);
    CHECK_FAILS(tokenizer_add_special(again, &token, 1, &more), STATUS_UNAVAILABLE,
                "tokens cannot be added to a tokenizer with two vocabularies");
    CHECK_OK(tokenizer_save(again, folder_file("copy")));
    CHECK_OK(tokenizer_destroy(&target));
    CHECK_OK(tokenizer_open(folder_file("copy"), &target));
    CHECK_TEXT(tokenizer_sha256(target), tokenizer_sha256(again));
    folder_write(folder_join(folder, "target_tokenizer.json"), "{", 1);
    CHECK_OK(tokenizer_destroy(&again));
    CHECK_FAILS(tokenizer_open(folder, &again), STATUS_DATA, "target_tokenizer.json");
    CHECK_OK(tokenizer_destroy(&target));
    CHECK_OK(tokenizer_destroy(&t));
}

int main(void)
{
    struct tokenizer *t, *again, *more;
    char *token = (char *)(uintptr_t) "<new>";
    folder_make();
    CHECK_OK(tokenizer_open(reference_path("marian"), &t));
    CHECK_EQUAL(tokenizer_get_kind(t), TOKENIZER_MARIAN);
    check_rows(t, "expected_marian.json");
    CHECK_OK(tokenizer_save(t, folder_file("saved")));
    CHECK(tokenizer_exists(folder_file("saved")));
    CHECK_OK(tokenizer_open(folder_file("saved"), &again));
    CHECK_TEXT(tokenizer_sha256(again), tokenizer_sha256(t));
    check_rows(again, "expected_marian.json");
    CHECK_FAILS(tokenizer_add_special(t, &token, 1, &more), STATUS_UNAVAILABLE,
                "tokens cannot be added to a tokenizer with source.spm and target.spm");
    CHECK_OK(tokenizer_destroy(&again));
    CHECK_OK(tokenizer_destroy(&t));
    test_refused();
    test_separate();
    test_target_file();
    return 0;
}
