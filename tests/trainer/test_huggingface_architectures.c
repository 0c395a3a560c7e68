/* Folders of BERT, RoBERTa and Llama as transformers saves them (scripts/make_reference.py pretrained): hidden states,
 * logits and labels of padded batches in double precision, the same bits when they are exported and imported again, and
 * what a class lacks, calls by another name or has too much. */
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "tests/trainer/huggingface_folder.h"
#include "trainer/setup/session.h"
#include "trainer/weights/open.h"

/* Twice the error of a naive f32 version, the largest of forty orders of its sums: 5.1e-6 for the
 * encoders' hidden states and bert's logits, 2.5e-5 for roberta's logits (the norm of its head
 * divides by small deviations). */
static const double tolerance = 1e-5, tolerance_roberta_logits = 5e-5;

enum { ROWS_MAX = 64, VALUES_MAX = 4096 };

/* ---- the same numbers ---- */

struct batch_of {
    int32_t *ids, *lengths;
    int32_t cu_rows[ROWS_MAX], positions[ROWS_MAX], segments[ROWS_MAX], rows[ROWS_MAX];
    int64_t count, texts, longest;
    hid_t file;
    const char *name;
};

static void *read_values(const struct batch_of *b, const char *dataset, hid_t type, size_t size,
                         int64_t *count)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", b->name, dataset);
    return reference_dataset(b->file, path, type, size, count);
}

static void read_batch(struct batch_of *b)
{
    b->ids = read_values(b, "ids", H5T_NATIVE_INT32, 4, &b->count);
    b->lengths = read_values(b, "lengths", H5T_NATIVE_INT32, 4, &b->texts);
    CHECK(b->count <= ROWS_MAX);
    int32_t row = 0;
    for (int64_t e = 0; e < b->texts; e++) {
        for (int32_t i = 0; i < b->lengths[e]; i++, row++) {
            b->positions[row] = i;
            b->segments[row] = i >= 2;
            b->rows[row] = row;
        }
        b->cu_rows[e + 1] = row;
        b->longest = b->lengths[e] > b->longest ? b->lengths[e] : b->longest;
    }
    CHECK_EQUAL(row, b->count);
}

static void compare(const struct batch_of *b, const char *dataset, struct tensor got)
{
    int64_t count;
    double *expected = read_values(b, dataset, H5T_NATIVE_DOUBLE, 8, &count);
    const float *values = got.data;
    bool amplified = strcmp(b->name, "roberta") == 0 && strcmp(dataset, "logits") == 0;
    double allowed = amplified ? tolerance_roberta_logits : tolerance;
    CHECK_EQUAL(count, got.rows * got.columns);
    for (int64_t row = 0; row < got.rows; row++) {
        for (int64_t c = 0; c < got.columns; c++) {
            double wanted = expected[row * got.columns + c];
            CHECK_NEAR(values[row * got.stride + c], wanted, allowed * fmax(1, fabs(wanted)));
        }
    }
    free(expected);
}

static void check_logits(struct session *s, const struct batch_of *b, struct model_input *input)
{
    static float logits[VALUES_MAX];
    int64_t vocabulary = model_get_config(s->model)->vocabulary;
    struct tensor hidden, to = tensor_view(logits, DTYPE_F32, b->count, vocabulary);
    if (s->recipe.objective == OBJECTIVE_MLM) {
        input->output_rows = b->rows;
        input->outputs = b->count;
    }
    CHECK(b->count * vocabulary <= VALUES_MAX);
    CHECK_OK(model_forward(s->model, input, &hidden));
    CHECK_OK(classifier_logits(s->kernels, to, hidden, model_lm_head(s->model),
                               model_lm_head_bias(s->model)));
    compare(b, "logits", to);
    if (model_get_config(s->model)->next_sentence) {
        struct model_label_head labels = model_get_label_head(s->model, input, NULL);
        to = tensor_view(logits, DTYPE_F32, b->texts, 2);
        CHECK_OK(classifier_logits(s->kernels, to, labels.hidden, labels.weight, labels.bias));
        compare(b, "labels", to);
    }
}

static void check_numbers(const char *name, const char *checkpoint, bool heads)
{
    char path[FILE_PATH_BYTES];
    struct comm *self = NULL;
    struct session s = {0};
    struct tensor hidden;
    join(path, reference, "folders.h5");
    struct batch_of b = {.name = name, .file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT)};
    CHECK(b.file >= 0);
    read_batch(&b);
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, NULL, 0, b.count));
    struct model_input input = {.rows = b.count,
                                .tokens = b.ids,
                                .positions = b.positions,
                                .segments = b.texts,
                                .cu_rows = b.cu_rows,
                                .longest = b.longest,
                                .segment_ids = b.segments};
    CHECK_OK(model_forward(s.model, &input, &hidden));
    compare(&b, "hidden", hidden);
    if (heads) {
        check_logits(&s, &b, &input);
    }
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
    free(b.ids);
    free(b.lengths);
    H5Fclose(b.file);
}

static void test_numbers(const char *name, bool heads)
{
    static struct recipe recipe, again;
    char folder[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES], out[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    join(folder, reference, name);
    join(out, root, "out");
    CHECK_OK(import_to(folder, "a", a, &recipe));
    check_numbers(name, a, heads);
    CHECK_OK(file_remove_tree(out));
    CHECK_OK(huggingface_export(a, out, SAFETENSORS_F32, false, &summary));
    CHECK_OK(import_to(out, "b", b, &again));
    CHECK(same_weights(a, b));
    CHECK_EQUAL(again.model.next_sentence, recipe.model.next_sentence);
    check_numbers(name, b, heads); /* the settings came back too */
}

/* ---- config.json ---- */

static void test_config(void)
{
    static const struct {
        const char *model, *key, *value;
        status code;
        const char *text; /* NULL: it is taken */
    } cases[] = {
        {"bert", "architectures", "[\"BertForNextSentencePrediction\"]", STATUS_UNAVAILABLE,
         "BertForNextSentencePrediction is not supported; BertForPreTraining"},
        {"bert", "architectures", "[\"BertForTokenClassification\"]", STATUS_DATA,
         "classifier.weight is missing"},
        {"bert", "architectures", "[\"RobertaModel\"]", STATUS_UNAVAILABLE, "RobertaModel"},
        {"bert", "architectures", "[\"BertForMaskedLM\"]", STATUS_OK, NULL},
        {"bert", "architectures", NULL, STATUS_OK, NULL},
        {"bert", "is_decoder", "true", STATUS_UNAVAILABLE, "is_decoder: true"},
        {"bert", "hidden_act", "\"relu\"", STATUS_UNAVAILABLE, "hidden_act relu"},
        {"bert", "position_embedding_type", "\"relative_key\"", STATUS_UNAVAILABLE, "relative_key"},
        {"bert", "type_vocab_size", "4", STATUS_DATA, "type_vocab_size"},
        {"bert", "type_vocab_size", "1", STATUS_DATA, "token_type_embeddings.weight has 2 dim"},
        {"bert", "num_attention_heads", "3", STATUS_DATA, "not a multiple"},
        {"bert_bare", "architectures", "[\"BertForMaskedLM\"]", STATUS_DATA,
         "cls.predictions.transform.dense.weight is missing"},
        {"bert_untied", "tie_word_embeddings", "true", STATUS_DATA, "set tie_word_embeddings"},
        {"roberta", "pad_token_id", "0", STATUS_UNAVAILABLE, "positions that begin with row 1"},
        {"roberta", "architectures", "[\"RobertaModel\"]", STATUS_OK, NULL},
        {"llama", "rope_parameters", "{\"rope_type\": \"yarn\"}", STATUS_UNAVAILABLE,
         "the rope_type yarn"},
        {"llama", "rope_parameters", "[]", STATUS_DATA, "rope_parameters is not an object"},
        {"llama", "rope_parameters", "{\"rope_type\": \"linear\"}", STATUS_DATA,
         "linear has no factor"},
        {"llama3", "rope_parameters",
         "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 4}",
         STATUS_DATA, "model.rope_low_freq_factor: 4.0 is not less than"},
        {"llama", "head_dim", "4", STATUS_UNAVAILABLE, "head_dim 4"},
        {"llama", "hidden_act", "\"gelu\"", STATUS_UNAVAILABLE, "silu is"},
        {"llama", "mlp_bias", "true", STATUS_UNAVAILABLE, "mlp_bias: true"},
        {"llama", "num_key_value_heads", "3", STATUS_DATA, "does not divide"},
        {"llama", "num_key_value_heads", "4", STATUS_DATA, "self_attn.k_proj.weight has 2 dim"},
        {"llama", "tie_word_embeddings", "true", STATUS_DATA, "set tie_word_embeddings"},
        {"llama_tied", "tie_word_embeddings", "false", STATUS_DATA, "lm_head.weight is missing"},
    };
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        copy_model(cases[i].model, folder);
        set_config(folder, cases[i].key, cases[i].value);
        if (cases[i].text == NULL) {
            CHECK_OK(import_to(folder, "taken", output, &recipe));
        } else {
            refused(folder, cases[i].code, cases[i].text);
        }
    }
    /* As versions before 5 say it. */
    copy_model("llama", folder);
    set_config(folder, "rope_parameters", NULL);
    set_config(folder, "rope_theta", "500.0");
    CHECK_OK(import_to(folder, "older", output, &recipe));
    check_numbers("llama", output, true);
}

/* ---- tensors of other names ---- */

static void test_names(void)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES], again[FILE_PATH_BYTES];

    /* bert-base-uncased spells the norms so, and has the pooler though it calls itself BertForMaskedLM. */
    static const struct renaming early[] = {
        {"bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"},
        {"bert.embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.beta"},
        {"cls.predictions.bias", "cls.predictions.decoder.bias"},
        {"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
    };
    copy_model("bert", folder);
    set_config(folder, "architectures", "[\"BertForMaskedLM\"]");
    rewrite(folder, early, 4, &(struct extra){"bert.embeddings.position_ids", 1, {8, 1}}, NULL);
    CHECK_OK(import_to(folder, "early", output, &recipe));
    CHECK(recipe.model.next_sentence);
    check_numbers("bert", output, true);

    copy_model("bert", folder); /* BertForMaskedLM as it saves itself */
    static const struct renaming without[] = {{"bert.pooler.dense.weight", NULL},
                                              {"bert.pooler.dense.bias", NULL},
                                              {"cls.seq_relationship.weight", NULL},
                                              {"cls.seq_relationship.bias", NULL}};
    rewrite(folder, without, 4, NULL, NULL);
    refused(folder, STATUS_DATA, "bert.pooler.dense.weight is missing");
    set_config(folder, "architectures", "[\"BertForMaskedLM\"]");
    CHECK_OK(import_to(folder, "plain", output, &recipe));
    CHECK(!recipe.model.next_sentence);

    copy_model("roberta", folder);
    rewrite(folder, NULL, 0, &(struct extra){"roberta.pooler.dense.bias", 1, {8, 1}}, NULL);
    CHECK_OK(import_to(folder, "a", output, &recipe));
    check_numbers("roberta", output, true);
    copy_model("roberta", folder);
    rewrite(folder, NULL, 0, &(struct extra){"classifier.dense.bias", 1, {8, 1}}, NULL);
    refused(folder, STATUS_DATA,
            "holds classifier.dense.bias, which the roberta model of config.json");

    /* A head that is not there begins with the same random values each time, and other weights are the file's. */
    join(folder, reference, "bert_bare");
    CHECK_OK(import_to(folder, "a", output, &recipe));
    CHECK_OK(import_to(folder, "b", again, &recipe));
    CHECK(same_weights(output, again));
    check_numbers("bert_bare", output, false);
}

/* A vocab.txt goes along, and comes back with what AutoTokenizer asks for. */
static void test_tokenizer(void)
{
    static struct recipe recipe;
    static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n";
    char folder[FILE_PATH_BYTES], checkpoint[FILE_PATH_BYTES], out[FILE_PATH_BYTES];
    char path[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    copy_model("bert", folder);
    join(path, folder, "vocab.txt");
    CHECK_OK(file_write(path, vocab, sizeof vocab - 1));
    CHECK_OK(import_to(folder, "a", checkpoint, &recipe));
    join(out, root, "out");
    CHECK_OK(file_remove_tree(out));
    CHECK_OK(huggingface_export(checkpoint, out, SAFETENSORS_F32, false, &summary));
    CHECK(summary.tokenizer);
    join(path, out, "tokenizer.json");
    CHECK(file_exists(path));
    join(path, out, "tokenizer_config.json");
    json_t *config = json_load_file(path, 0, NULL);
    CHECK(config != NULL);
    CHECK(strcmp(json_string_value(json_object_get(config, "mask_token")), "[MASK]") == 0);
    const json_t *names = json_object_get(config, "model_input_names");
    CHECK(strcmp(json_string_value(json_array_get(names, 1)), "token_type_ids") == 0);
    json_decref(config);
    join(path, out, "config.json");
    config = json_load_file(path, 0, NULL);
    CHECK(config != NULL && json_integer_value(json_object_get(config, "pad_token_id")) == 0);
    json_decref(config);
}

int main(void)
{
    huggingface_folder_start();
    h5file_init();
    test_numbers("bert", true);
    test_numbers("bert_untied", true);
    test_numbers("bert_bare", false);
    test_numbers("roberta", true);
    test_numbers("llama", true);
    test_numbers("llama_tied", true);
    test_numbers("llama3", true);
    test_numbers("llama_linear", true);
    test_config();
    test_names();
    test_tokenizer();
    CHECK_OK(file_remove_tree(root));
    printf("folders of encoders and Llamas: same numbers, same bits\n");
    return 0;
}
