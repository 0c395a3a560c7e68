/* Tests of post-processors of byte-level tokenizers: RoBERTa's in both forms, and the BOS token of
 * Llama 3. The ids equal the ids of the Python package (make_tokenizer_reference.py). Also
 * tested: training of a RoBERTa tokenizer, and its sentences and documents in shards. */
#include <jansson.h>

#include "base/memory.h"
#include "datasets/prepare/prepare.h"
#include "datasets/shard/h5file.h"
#include "datasets/shard/shard.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "tests/check.h"
#include "tests/datasets/tokenizer_reference.h"
#include "tests/datasets/train_tokenizer.h"

static void check_pairs(const char *name, const struct tokenizer *t, const json_t *pairs,
                        const json_t *reference_ids)
{
    static const int64_t limits[] = {0, 4, 5, 9, 16};
    struct token_list ids = {0};
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *a = json_array_get(json_array_get(pairs, i), 0);
        const json_t *b = json_array_get(json_array_get(pairs, i), 1);
        for (size_t m = 0; m < 5; m++) {
            int64_t first = -1;
            ids.count = 0;
            CHECK_OK(tokenizer_encode_pair(t, json_string_value(a), json_string_length(a),
                                           json_string_value(b), json_string_length(b), true,
                                           limits[m], &ids, &first));
            const json_t *expected_ids =
                m == 0 ? json_object_get(reference_ids, "pairs")
                       : json_array_get(json_object_get(reference_ids, "truncated"), m - 1);
            reference_check_ids(name, json_string_value(a), &ids, json_array_get(expected_ids, i));
            CHECK(ids.ids[first - 1] == 2 && ids.ids[first - 2] == 2);
        }
    }
    int64_t first;
    CHECK_FAILS(tokenizer_encode_pair(t, "a", 1, "b", 1, false, 3, &ids, &first), STATUS_USAGE,
                "the special tokens alone are 4");
    token_list_free(&ids);
}

static void encode_with_specials(const struct tokenizer *t, const char *text, size_t bytes,
                                 struct token_list *ids)
{
    int64_t first;
    ids->count = 0;
    if (tokenizer_bos(t) < 0) {
        CHECK_OK(tokenizer_encode_pair(t, text, bytes, NULL, 0, true, 0, ids, &first));
        CHECK_EQUAL(first, ids->count);
        return;
    }
    CHECK_OK(token_list_add(ids, tokenizer_bos(t)));
    CHECK_OK(tokenizer_encode(t, text, bytes, true, ids));
}

static void check_texts(const char *name, const struct tokenizer *t, const json_t *texts,
                        const json_t *expected_ids)
{
    struct token_list ids = {0};
    CHECK(json_array_size(texts) > 200 && json_array_size(texts) == json_array_size(expected_ids));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        encode_with_specials(t, json_string_value(text), json_string_length(text), &ids);
        reference_check_ids(name, json_string_value(text), &ids, json_array_get(expected_ids, i));
    }
    token_list_free(&ids);
}

static void test_reference(const char *name)
{
    json_error_t error;
    struct tokenizer *t = NULL, *reopened = NULL;
    json_t *expected =
        json_load_file(reference_path("expected_around.json"), JSON_ALLOW_NUL, &error);
    CHECK(expected != NULL);
    const json_t *reference_ids = json_object_get(json_object_get(expected, "tokenizers"), name);
    CHECK_OK(tokenizer_open(reference_path(name), &t));
    check_texts(name, t, json_object_get(expected, "texts"), json_object_get(reference_ids, "ids"));
    bool roberta = strcmp(name, "begun") != 0;
    if (roberta) {
        const struct tokenizer_specials s = tokenizer_get_specials(t);
        CHECK(s.cls == 0 && s.pad == 1 && s.sep == 2 && s.unknown == 3 && s.mask == 4);
        CHECK(tokenizer_bos(t) < 0 && tokenizer_eos(t) == 2);
        check_pairs(name, t, json_object_get(expected, "pairs"), reference_ids);
    } else {
        CHECK(tokenizer_bos(t) == 0 && tokenizer_eos(t) == 1);
    }
    char *folder = folder_file(name); /* saving and opening give the same tokenizer */
    CHECK_OK(tokenizer_save(t, folder));
    CHECK_OK(tokenizer_open(folder, &reopened));
    CHECK_TEXT(tokenizer_sha256(t), tokenizer_sha256(reopened));
    check_texts(name, reopened, json_object_get(expected, "texts"),
                json_object_get(reference_ids, "ids"));
    CHECK_OK(tokenizer_destroy(&reopened));
    CHECK_OK(tokenizer_destroy(&t));
    json_decref(expected);
}

static void test_training(void)
{
    struct tokenizer *plain = NULL, *t = NULL;
    struct token_list a = {0}, b = {0};
    char *corpus = folder_file("corpus.txt");
    CHECK_OK(file_write(corpus, "the oars, the oars; the banks of the oars", 41));
    char *files[] = {corpus};
    const struct corpus_source source = {.files = files, .count = 1};
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 270, files, 1, 1, &plain));
    CHECK_OK(tokenizer_train(TOKENIZER_BPE, true, 274, &source, 1, &t));
    CHECK_EQUAL(tokenizer_vocab_size(t), tokenizer_vocab_size(plain) + 4);
    CHECK(tokenizer_find(t, "<s>") == 0 && tokenizer_find(t, "<mask>") == 4);
    CHECK(tokenizer_is_special(t, 4) && !tokenizer_is_special(t, 5) && tokenizer_eos(t) == 2);
    CHECK_OK(tokenizer_encode(plain, "the oars\nthe", 12, true, &a));
    CHECK_OK(tokenizer_encode(t, "the oars\nthe", 12, true, &b));
    CHECK_EQUAL(a.count, b.count); /* the same merges, after the special tokens */
    for (int64_t i = 0; i < a.count; i++) {
        CHECK_EQUAL(a.ids[i] + 5, b.ids[i]);
    }
    b.count = 0;
    CHECK_OK(tokenizer_encode(t, "the  <mask>", 11, true, &b));
    CHECK(b.ids[b.count - 1] == 4 && !tokenizer_is_continuation(t, 4));
    b.count--;
    a.count = 0;
    CHECK_OK(tokenizer_encode(t, "the", 3, true, &a));
    CHECK(a.count == b.count); /* <mask> contains both spaces before it */
    token_list_free(&a);
    token_list_free(&b);
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_OK(tokenizer_destroy(&plain));
    CHECK_FAILS(tokenizer_train(TOKENIZER_BPE, true, 260, &source, 1, &t), STATUS_USAGE,
                "bpe needs 261");
}

/* An example contains whole sentences of one document. Each sentence occurs once. Only a sentence
 * that is longer than an example is split. */
static void test_sentences(void)
{
    enum { DOCUMENTS = 9, T = 16 };
    struct tokenizer *t = NULL;
    struct prepare_report report;
    struct token_list document_ids = {0}, example_ids = {0};
    char text[8192];
    size_t used = 0;
    CHECK_OK(tokenizer_open(reference_path("roberta"), &t));
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int s = 0; s < 4 + d; s++) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%.*s%d.%s",
                                     s == 3 ? 30 : s + 2, "rowing qzj one two qqq zxw uvw o",
                                     10 * d + s, s < 3 + d ? " " : "\n\n");
        }
    }
    folder_write(folder_file("text.txt"), text, used);
    char *inputs[] = {folder_file("text.txt")};
    struct prepare_options o = {.tokenizer = t,
                                .inputs = inputs,
                                .input_count = 1,
                                .output = folder_file("sentences"),
                                .document_unit = PREPARE_DOCUMENT_PARAGRAPH,
                                .sentence_rule = PREPARE_SENTENCE_PUNCTUATION,
                                .shard_tokens = 1 << 20,
                                .sequence_tokens = T,
                                .pair_seed = 1};
    CHECK_OK(prepare_mlm(&o, &report));
    CHECK_EQUAL(report.documents, DOCUMENTS);
    struct shard *shard = NULL;
    CHECK_OK(shard_open(folder_file("sentences/train-00000-of-00001.h5"), &shard));
    int64_t split_count = 0;
    for (int64_t i = 0; i < report.examples; i++) {
        int64_t range[2];
        int32_t ids[T];
        uint32_t first = 0, next = 7;
        CHECK_OK(shard_read_documents(shard, i, 2, range));
        int64_t count = range[1] - range[0];
        CHECK(count >= 3 && count <= T);
        CHECK_OK(shard_read(shard, range[0], count, ids));
        CHECK_OK(shard_read_column(shard, EXAMPLE_FIRST_SEGMENT, i, 1, &first));
        CHECK_OK(shard_read_column(shard, EXAMPLE_NEXT_SENTENCE, i, 1, &next));
        CHECK(ids[0] == 0 && ids[count - 1] == 2 && first == count && next == 0);
        int32_t stop = tokenizer_find(t, ".");
        split_count += count == T && ids[T - 2] != stop;
        CHECK_OK(token_list_append(&example_ids, ids + 1, count - 2));
    }
    CHECK(split_count > 0 && split_count < report.examples / 2);
    for (char *at = text, *end; (end = strstr(at, "\n\n")) != NULL; at = end + 2) {
        CHECK_OK(tokenizer_encode(t, at, (size_t)(end - at), false, &document_ids));
    }
    CHECK(document_ids.count == example_ids.count);
    CHECK(memcmp(document_ids.ids, example_ids.ids,
                 (size_t)document_ids.count * sizeof *document_ids.ids) == 0);
    token_list_free(&document_ids);
    token_list_free(&example_ids);
    CHECK_OK(shard_close(&shard));
    CHECK_OK(tokenizer_destroy(&t));
}

/* Each document begins with the BOS token of the template and ends with the end token. */
static void test_bos_documents(void)
{
    struct tokenizer *t = NULL;
    struct prepare_report report;
    CHECK_OK(tokenizer_open(reference_path("begun"), &t));
    folder_write(folder_file("begun.txt"), "one\n\ntwo oars\n\nthree", 20);
    char *inputs[] = {folder_file("begun.txt")};
    struct prepare_options o = {.tokenizer = t,
                                .inputs = inputs,
                                .input_count = 1,
                                .output = folder_file("begun"),
                                .document_unit = PREPARE_DOCUMENT_PARAGRAPH,
                                .shard_tokens = 1 << 20};
    CHECK_OK(prepare_clm(&o, &report));
    CHECK_EQUAL(report.documents, 3);
    struct shard *shard = NULL;
    CHECK_OK(shard_open(folder_file("begun/train-00000-of-00001.h5"), &shard));
    for (int64_t i = 0; i < 3; i++) {
        int64_t range[2];
        int32_t ids[64];
        CHECK_OK(shard_read_documents(shard, i, 2, range));
        int64_t count = range[1] - range[0];
        CHECK(count > 2 && count <= 64);
        CHECK_OK(shard_read(shard, range[0], count, ids));
        CHECK(ids[0] == tokenizer_bos(t) && ids[1] != ids[0] && ids[count - 1] == 1);
    }
    CHECK_OK(shard_close(&shard));
    CHECK_OK(tokenizer_destroy(&t));
}

/* A template without special tokens, as transformers 5 writes it, equals no post-processor. */
static void test_bare_template(void)
{
    static const struct {
        const char *single, *pair;
        bool supported;
    } cases[] = {
        {"[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]",
         "[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}"
         "]",
         true},
        {"[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]",
         "[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":0}}"
         "]",
         true},
        {"[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
         "]",
         "[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}"
         "]",
         false},
    };
    char *corpus = folder_file("bare.txt"), *folder = folder_file("bare");
    struct tokenizer *plain = NULL;
    struct token_list a = {0}, b = {0};
    CHECK_OK(file_write(corpus, "the oars, the oars; the banks of the oars", 41));
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 270, &corpus, 1, 1, &plain));
    CHECK_OK(tokenizer_save(plain, folder));
    CHECK_OK(tokenizer_encode(plain, "the oars", 8, true, &a));
    for (int i = 0; i < COUNT(cases); i++) {
        struct tokenizer *t = NULL;
        char path[FILE_PATH_BYTES];
        CHECK_OK(file_join(path, folder, "tokenizer.json"));
        json_t *file = json_load_file(path, 0, NULL), *post = json_object();
        CHECK(file != NULL && json_is_object(json_object_get(file, "post_processor")));
        json_object_set_new(post, "type", json_string("TemplateProcessing"));
        json_object_set_new(post, "single", json_loads(cases[i].single, 0, NULL));
        json_object_set_new(post, "pair", json_loads(cases[i].pair, 0, NULL));
        json_object_set_new(post, "special_tokens", json_object());
        json_object_set_new(file, "post_processor", post);
        char *text = json_dumps(file, JSON_COMPACT);
        if (cases[i].supported) {
            CHECK_OK(tokenizer_from_text(text, strlen(text), path, &t));
            CHECK(tokenizer_bos(t) < 0);
            b.count = 0;
            CHECK_OK(tokenizer_encode(t, "the oars", 8, true, &b));
            CHECK_EQUAL(a.count, b.count);
            CHECK(memcmp(a.ids, b.ids, (size_t)a.count * sizeof *a.ids) == 0);
            CHECK_OK(tokenizer_destroy(&t));
        } else {
            CHECK_FAILS(tokenizer_from_text(text, strlen(text), path, &t), STATUS_DATA,
                        "post_processor's template");
        }
        free(text);
        json_decref(file);
    }
    token_list_free(&a);
    token_list_free(&b);
    CHECK_OK(tokenizer_destroy(&plain));
}

/* A RoBERTa tokenizer with a token "[CLS]", which is an ordinary token there. */
static void test_roberta_with_cls(void)
{
    static const char text[] =
        "{\"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, \"<mask>\": 3, \"[CLS]\": 4, \"[SEP]\": 5,"
        " \"a\": 6}";
    char *folder = folder_file("with_cls"), *saved = folder_file("with_cls_saved");
    char path[FILE_PATH_BYTES];
    struct tokenizer *t = NULL, *again = NULL;
    struct token_list ids = {0};
    int64_t first;
    CHECK_OK(file_make_folders(folder));
    CHECK_OK(file_join(path, folder, "vocab.json"));
    CHECK_OK(file_write(path, text, sizeof text - 1));
    CHECK_OK(file_join(path, folder, "merges.txt"));
    CHECK_OK(file_write(path, "#version: 0.2\n", 14));
    CHECK_OK(tokenizer_open(folder, &t));
    CHECK_OK(tokenizer_encode_pair(t, "a", 1, NULL, 0, true, 0, &ids, &first));
    CHECK(ids.count == 3 && ids.ids[0] == 0 && ids.ids[1] == 6 && ids.ids[2] == 2);
    CHECK_OK(tokenizer_save(t, saved));
    CHECK_OK(tokenizer_open(saved, &again));
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&again));
    CHECK_OK(tokenizer_destroy(&t));
}

/* An unsupported post-processor is refused, and the message names the unsupported part. */
static void test_refusals(void)
{
    static const struct {
        const char *name, *from, *to, *text;
    } cases[] = {
        {"roberta", "\"sep\":[\"</s>\",2]", "\"sep\":[\"</s>\",3]", "post_processor.sep is not"},
        {"roberta", "\"cls\":[\"<s>\",0]", "\"cls\":[\"<pad>\",1]", "post_processor.cls is not"},
        {"roberta", "\"single_word\":false", "\"single_word\":true", "single_word"},
        {"roberta", "RobertaProcessing", "BertProcessing", "'BertProcessing' is not supported"},
        {"roberta_early", "{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}]",
         "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}]", "post_processor's template"},
        {"begun", "\"ids\":[0]", "\"ids\":[1]", "post_processor's template"},
        {"begun", "\"processors\":[", "\"processors\":[{},{},{},", "has 5 members"},
        {"begun", "\"type\":\"TemplateProcessing\"", "\"type\":\"Unknown\"", "'Unknown'"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char path[FILE_PATH_BYTES], *text = NULL;
        size_t bytes = 0;
        struct tokenizer *t = NULL;
        CHECK_OK(file_join(path, reference_path(cases[i].name), "tokenizer.json"));
        CHECK_OK(file_read(path, 1 << 20, &text, &bytes));
        const char *at = strstr(text, cases[i].from);
        CHECK(at != NULL);
        size_t before = (size_t)(at - text), from = strlen(cases[i].from), to = strlen(cases[i].to);
        char *changed = malloc(bytes + to + 1);
        CHECK(changed != NULL);
        memcpy(changed, text, before);
        memcpy(changed + before, cases[i].to, to);
        memcpy(changed + before + to, at + from, bytes - before - from);
        CHECK_FAILS(tokenizer_from_text(changed, bytes + to - from, path, &t), STATUS_DATA,
                    cases[i].text);
        free(changed);
        free(text);
    }
}

int main(void)
{
    folder_make();
    h5file_init();
    test_reference("roberta");
    test_reference("roberta_early");
    test_reference("begun");
    test_training();
    test_bare_template();
    test_roberta_with_cls();
    test_sentences();
    test_bos_documents();
    test_refusals();
    return 0;
}
