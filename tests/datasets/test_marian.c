/* Compares source.spm, target.spm and vocab.json with MarianTokenizer of transformers
 * (scripts/make_reference.py seq2seq): ids of sources and targets, decoded texts, a copy of the
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
    check_decoded(t, &ids, json_array_get(json_object_get(row, "decoded"), (size_t)side));
    token_list_free(&ids);
}

static void check_rows(const struct tokenizer *t)
{
    json_t *rows = json_load_file(reference_path("expected_marian.json"), 0, NULL);
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
    check_refused("vocab.json", "{\"</s>\": 0, \"<unk>\": -1}", STATUS_DATA,
                  "is not an integer from");
    check_refused("vocab.json", "{\"</s>\": \"0\", \"<unk>\": 1}", STATUS_DATA,
                  "is not an integer");
    check_refused("source.spm", "no model", STATUS_DATA, "source.spm");
    check_refused("target.spm", "", STATUS_DATA, "target.spm");
    check_refused("tokenizer_config.json", "{\"separate_vocabs\": true}", STATUS_UNAVAILABLE,
                  "separate_vocabs: true is not supported");
}

int main(void)
{
    struct tokenizer *t, *again, *more;
    char *token = (char *)(uintptr_t) "<new>";
    folder_make();
    CHECK_OK(tokenizer_open(reference_path("marian"), &t));
    CHECK_EQUAL(tokenizer_get_kind(t), TOKENIZER_MARIAN);
    check_rows(t);
    CHECK_OK(tokenizer_save(t, folder_file("saved")));
    CHECK(tokenizer_exists(folder_file("saved")));
    CHECK_OK(tokenizer_open(folder_file("saved"), &again));
    CHECK_TEXT(tokenizer_sha256(again), tokenizer_sha256(t));
    check_rows(again);
    CHECK_FAILS(tokenizer_add_special(t, &token, 1, &more), STATUS_UNAVAILABLE,
                "gets no further tokens");
    CHECK_OK(tokenizer_destroy(&again));
    CHECK_OK(tokenizer_destroy(&t));
    test_refused();
    return 0;
}
