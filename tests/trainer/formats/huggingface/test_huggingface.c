/* Model folders of Hugging Face's transformers (make_reference.py pretrained). Imported
 * models compute the same numbers as transformers. Exported models have the same bits when they are
 * imported again. Errors of damaged files and unsupported models name file, position and reason. */
#include <fcntl.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "tests/datasets/train_tokenizer.h"
#include "tests/linear_time.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/log_likelihood.h"
#include "trainer/setup/session.h"

static struct recipe recipe;

/* ---- comparison with transformers ---- */

static void check_log_probabilities(struct session *s, const int32_t *ids, int64_t count,
                                    const double *expected)
{
    int64_t vocabulary = model_get_config(s->model)->vocabulary;
    for (int64_t length = 1; length < count; length++) {
        for (int64_t v = 0; v < vocabulary; v++) {
            int32_t text[64];
            memcpy(text, ids, (size_t)length * sizeof *text);
            text[length] = (int32_t)v;
            struct log_likelihood_item item = {text, length + 1, 1};
            struct log_likelihood_result result = {0};
            CHECK_OK(log_likelihood_run(s->kernels, s->model, count, &item, 1, &result));
            CHECK_NEAR(result.log_probability, expected[(length - 1) * vocabulary + v], 1e-5);
        }
    }
}

static void check_numbers(const char *name, const char *checkpoint)
{
    char path[FILE_PATH_BYTES], dataset[64];
    struct comm *self = NULL;
    struct session s = {0};
    int64_t count, value_count;
    join_path(path, reference, "expected.h5");
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(file >= 0);
    snprintf(dataset, sizeof dataset, "%s/ids", name);
    int32_t *ids = reference_dataset(file, dataset, H5T_NATIVE_INT32, 4, &count);
    snprintf(dataset, sizeof dataset, "%s/log_probabilities", name);
    double *expected = reference_dataset(file, dataset, H5T_NATIVE_DOUBLE, 8, &value_count);
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, NULL, 0, 0));
    CHECK_EQUAL(value_count, count * model_get_config(s.model)->vocabulary);
    CHECK(count <= 64);
    check_log_probabilities(&s, ids, count, expected);
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
    free(ids);
    free(expected);
    H5Fclose(file);
}

static void test_numbers(const char *name)
{
    char folder[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES], out[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    join_path(folder, reference, name);
    join_path(out, root, "out");
    CHECK_OK(import_to(folder, "a", a, &recipe));
    check_numbers(name, a);

    CHECK_OK(file_remove_tree(out));
    CHECK_OK(huggingface_export(a, out, SAFETENSORS_F32, false, &summary));
    CHECK_FAILS(huggingface_export(a, out, SAFETENSORS_F32, false, &summary), STATUS_CREATE,
                "exists");
    CHECK_OK(import_to(out, "b", b, &recipe));
    CHECK(has_same_weights(a, b));
    check_numbers(name, b); /* the settings are equal too */

    CHECK_OK(file_remove_tree(out));
    CHECK_OK(checkpoint_reshard(a, out, 3));
    CHECK_OK(file_remove_tree(b));
    CHECK_OK(huggingface_export(out, b, SAFETENSORS_BF16, false, &summary));
    CHECK_OK(import_to(b, "c", folder, &recipe));
    bool is_bf16 = strcmp(name, "bare") == 0; /* all weights of this model are bf16 values */
    CHECK(has_same_weights(a, folder) == is_bf16);
}

/* ---- unsupported and damaged folders ---- */

static void test_config(void)
{
    static const struct {
        const char *key, *value;
        status code;
        const char *text;
    } cases[] = {
        {"model_type", "\"mamba\"", STATUS_UNAVAILABLE, "config.json: model_type mamba"},
        {"model_type", NULL, STATUS_DATA, "model_type is missing"},
        {"model_type", "3", STATUS_DATA, "model_type is not a string"},
        {"architectures", "[\"GPT2DoubleHeadsModel\"]", STATUS_UNAVAILABLE, "GPT2DoubleHeadsModel"},
        {"architectures", "[\"GPT2ForSequenceClassification\"]", STATUS_DATA,
         "score.weight is missing"},
        {"architectures", "[\"GPT2ForSequenceClassification\", \"GPT2LMHeadModel\"]",
         STATUS_UNAVAILABLE, "alone the classes of tasks"},
        {"activation_function", "\"mish\"", STATUS_UNAVAILABLE, "activation_function mish"},
        {"activation_function", "null", STATUS_OK, NULL},
        {"scale_attn_weights", "false", STATUS_UNAVAILABLE, "scale_attn_weights: false"},
        {"scale_attn_by_inverse_layer_idx", "true", STATUS_UNAVAILABLE, "inverse_layer_idx: true"},
        {"add_cross_attention", "true", STATUS_UNAVAILABLE, "add_cross_attention"},
        {"add_cross_attention", "1", STATUS_DATA, "neither true nor false"},
        {"quantization_config", "{}", STATUS_UNAVAILABLE, "quantization_config"},
        {"n_layer", "\"2\"", STATUS_DATA, "n_layer is not an integer"},
        {"n_layer", "0", STATUS_DATA, "must be above 0"},
        {"n_layer", "-1", STATUS_DATA, "must be above 0"},
        {"n_layer", "3", STATUS_DATA, "transformer.h.2.ln_1.weight is missing"},
        {"n_layer", "1", STATUS_DATA, "holds transformer.h.1."},
        {"n_layer", "1000000000000", STATUS_DATA, "num_layers"},
        {"n_head", "3", STATUS_DATA, "not a multiple"},
        {"n_inner", "0", STATUS_DATA, "must be above 0"},
        {"n_inner", "16", STATUS_DATA,
         "mlp.c_fc.weight has 2 dimensions, [8, 32], but config.json"},
        {"vocab_size", "20", STATUS_DATA, "transformer.wte.weight has 2 dimensions, [19, 8]"},
        {"n_positions", "9223372036854775807", STATUS_DATA, "max_position_embeddings"},
        {"layer_norm_epsilon", "0", STATUS_DATA, "layer_norm_epsilon"},
        {"resid_pdrop", "1.5", STATUS_DATA, "dropout"},
        {"tie_word_embeddings", "false", STATUS_DATA, "lm_head.weight is missing"},
        {"a key of a later version", "[1]", STATUS_OK, NULL},
    };
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    for (int i = 0; i < COUNT(cases); i++) {
        copy_model("whole", folder);
        set_config(folder, cases[i].key, cases[i].value);
        if (cases[i].code == STATUS_OK) {
            CHECK_OK(import_to(folder, "accepted", output, &recipe));
        } else {
            check_refused(folder, cases[i].code, cases[i].text);
        }
    }
}

static void remove_file(const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES];
    join_path(path, folder, name);
    CHECK(unlink(path) == 0);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[FILE_PATH_BYTES];
    join_path(path, folder, name);
    CHECK_OK(file_write(path, text, strlen(text)));
}

static void test_folders(void)
{
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    check_refused("/nowhere/gpt2", STATUS_NO_INPUT, "there is no folder /nowhere/gpt2");
    copy_model("whole", folder);
    CHECK_FAILS(huggingface_import(folder, NULL, root, NULL, 0, &recipe, &summary), STATUS_CREATE,
                "exists");
    write_file(folder, "config.json", "{\"model_type\": \"gpt2\",\n}");
    check_refused(folder, STATUS_DATA, "config.json:2:");
    write_file(folder, "config.json", "[]");
    check_refused(folder, STATUS_DATA, "not a JSON object");
    remove_file(folder, "config.json");
    check_refused(folder, STATUS_NO_INPUT, "config.json");
    copy_model("whole", folder);
    remove_file(folder, "model.safetensors");
    check_refused(folder, STATUS_NO_INPUT, "holds neither");
    write_file(folder, "pytorch_model.bin", "");
    check_refused(folder, STATUS_NO_INPUT, "save_pretrained");

    copy_model("sharded", folder);
    remove_file(folder, "model-00002-of-00002.safetensors");
    check_refused(folder, STATUS_NO_INPUT, "model-00002-of-00002.safetensors");
    const char *index = "model.safetensors.index.json";
    write_file(folder, index, "{\"weight_map\": {\"a\": \"../b\"}}");
    check_refused(folder, STATUS_DATA, "cannot be in this folder");
    write_file(folder, index, "{\"weight_map\": {\"a\": 3}}");
    check_refused(folder, STATUS_DATA, "cannot be in this folder");
    char name[400], text[512];
    memset(name, 'x', sizeof name);
    name[300] = '\0'; /* longer than a name of a file system */
    snprintf(text, sizeof text, "{\"weight_map\": {\"a\": \"%s\"}}", name);
    const char *const unsafe[] = {"{\"weight_map\": {\"a\": \"b\\u001b[2J\"}}",
                                  "{\"weight_map\": {\"a\": \".b\"}}",
                                  "{\"weight_map\": {\"a\": \"b/c\"}}", text};
    for (int i = 0; i < COUNT(unsafe); i++) {
        write_file(folder, index, unsafe[i]);
        check_refused(folder, STATUS_DATA, "cannot be in this folder");
    }
    write_file(folder, index, "{\"metadata\": 3, \"weight_map\": 4}");
    check_refused(folder, STATUS_DATA, "weight_map is missing or empty");
    write_file(folder, index, "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}");
    check_refused(folder, STATUS_DATA, "a is not in");
    write_file(folder, index, "{\"weight_map\": {}}");
    check_refused(folder, STATUS_DATA, "weight_map is missing or empty");
    write_file(folder, index, "{");
    check_refused(folder, STATUS_DATA, "index.json, line 1");

    /* Import and export copy the tokenizer; one with more ids than the model has is refused. */
    struct tokenizer *t = NULL;
    char *files[] = {output};
    copy_model("whole", folder);
    join_path(output, root, "text");
    CHECK_OK(file_write(output, "abcdefghijklmnopqrs", 19));
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, files, 1, 1, &t));
    CHECK_OK(tokenizer_save(t, folder));
    CHECK_OK(tokenizer_destroy(&t));
    char checkpoint[FILE_PATH_BYTES], exported[FILE_PATH_BYTES];
    CHECK_OK(import_to(folder, "a", checkpoint, &recipe));
    join_path(exported, root, "exported");
    CHECK_OK(file_remove_tree(exported));
    CHECK_OK(huggingface_export(checkpoint, exported, SAFETENSORS_F32, false, &summary));
    CHECK(summary.tokenizer);
    CHECK_OK(tokenizer_open(exported, &t));
    CHECK_EQUAL(tokenizer_vocab_size(t), 19);
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_OK(file_write(output, "abcdefghijklmnopqrst", 20));
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, files, 1, 1, &t));
    CHECK_OK(tokenizer_save(t, folder));
    CHECK_OK(tokenizer_destroy(&t));
    check_refused(folder, STATUS_DATA, "has 20 ids");
    write_file(folder, "tokenizer.json", "{}");
    check_refused(folder, STATUS_DATA, "tokenizer.json");
}

/* ---- forged files ---- */

/* Writes a safetensors file with this header, header length and number of data bytes. */
static const char *write_forged(char path[FILE_PATH_BYTES], uint64_t length, const char *header,
                                size_t data_bytes)
{
    static const char zeros[64];
    join_path(path, root, "forged.safetensors");
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    size_t bytes = strlen(header);
    CHECK(file >= 0 && data_bytes <= sizeof zeros);
    CHECK(write(file, &length, sizeof length) == sizeof length);
    CHECK(write(file, header, bytes) == (ssize_t)bytes);
    CHECK(write(file, zeros, data_bytes) == (ssize_t)data_bytes);
    CHECK(close(file) == 0);
    return path;
}

static void test_headers(void)
{
#define TENSOR(dtype, shape, offsets)                                                              \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *text; /* NULL: the header is valid */
    } cases[] = {
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") "}  ", 8, NULL},
        {"{\"a\":" TENSOR("F32", "[]", "[0,4]") ",\"b\":" TENSOR("BOOL", "[0,7]", "[4,4]") "}", 4,
         NULL},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") "}", 9, "the last 1 bytes belong to no tensor"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") "}", 7, "are not within the 7 bytes"},
        {"{\"a\":" TENSOR("F32", "[2]", "[4,12]") "}", 12, "4 bytes before a belong to no tensor"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") ",\"b\":" TENSOR("F32", "[2]", "[4,12]") "}", 12,
         "the bytes of a and b overlap"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") ",\"b\":" TENSOR("F32", "[2]", "[0,8]") "}", 8,
         "overlap"},
        {"{\"a\":" TENSOR("F32", "[2]", "[8,0]") "}", 8, "are not within"},
        {"{\"a\":" TENSOR("F32", "[2]", "[-8,0]") "}", 8, "are not within"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,9223372036854775807]") "}", 8, "are not within"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,99999999999999999999]") "}", 8, "the header, line 1"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0]") "}", 8, "data_offsets are not two integers"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8.0]") "}", 8, "data_offsets are not two integers"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8,8]") "}", 8, "data_offsets are not two integers"},
        {"{\"a\":" TENSOR("F32", "[3]", "[0,8]") "}", 8, "span 8 bytes"},
        {"{\"a\":" TENSOR("F16", "[2]", "[0,8]") "}", 8, "need 4"},
        {"{\"a\":" TENSOR("F32", "[-2]", "[0,8]") "}", 8, "not an integer of 0 or more"},
        {"{\"a\":" TENSOR("F32", "[\"2\"]", "[0,8]") "}", 8, "not an integer of 0 or more"},
        {"{\"a\":" TENSOR("F32", "[4294967296,4294967296]", "[0,8]") "}", 8, "more than 2^56"},
        {"{\"a\":" TENSOR("F64", "[72057594037927937]", "[0,8]") "}", 8, "more than 2^56"},
        {"{\"a\":" TENSOR("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "9 dimensions"},
        {"{\"a\":" TENSOR("F32", "2", "[0,8]") "}", 8, "shape is missing or not a list"},
        {"{\"a\":" TENSOR("F31", "[2]", "[0,8]") "}", 8, "dtype F31 is not known"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "shape is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets"},
        {"{\"a\":3}", 0, "description of a is not an object"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") ",\"a\":" TENSOR("F32", "[2]", "[0,8]") "}", 8,
         "duplicate"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: a is not a string"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
        {"{\"\\u0061\":" TENSOR("F32", "[2]", "[0,8]") ",\"a\":" TENSOR("F32", "[2]", "[0,8]") "}",
         8, "duplicate"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") ",}", 8, "column 55: '\"' expected"},
        {"{\"a\":" TENSOR("F32", "[0]", "[0,0]") "\"b\":" TENSOR("F32", "[0]", "[0,0]") "}", 0,
         "',' expected"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") "} x", 8, "the end is expected"},
        {"{\"a\" 3}", 0, "':' expected"},
        {"{\"a\x01\":3}", 0, "control character"},
        {"{\"a\\u0000\":" TENSOR("F32", "[2]", "[0,8]") "}", 8, "the header, line 1"},
        {"{\"\xff\":" TENSOR("F32", "[2]", "[0,8]") "}", 8, "the header, line 1"},
        {"{\"__metadata__\":{\"a\":\"\\u00e9 \\\\ \\n\"},\n \"b\":" TENSOR("F32", "[2]",
                                                                           "[0,8]") "}",
         8, NULL},
        {"{\"__metadata__\":{\"a\":\"\\x\"}}", 0, "invalid escape"},
        {"{\"__metadata__\":{\"a\":\"\\u00g0\"}}", 0, "invalid escape"},
        {"{\"__metadata__\":{\"a\":\"\xc3\"}}", 0, "invalid UTF-8"},
        {"{\"__metadata__\":{\"a\":\"b\\", 0, "the text does not end"},
        {"{\"__metadata__\":{\"a\":\"b\"}", 0, "the text ends too early"},
        {"[]", 0, "not a JSON object"},
        {"{", 0, "the header, line 1"},
        {"", 0, "the header, line 1"},
    };
#undef TENSOR
    char path[FILE_PATH_BYTES];
    for (int i = 0; i < COUNT(cases); i++) {
        struct safetensors *file = NULL;
        write_forged(path, strlen(cases[i].header), cases[i].header, cases[i].data_bytes);
        if (cases[i].text == NULL) {
            CHECK_OK(safetensors_open(path, &file));
            safetensors_close(&file);
        } else {
            CHECK_FAILS(safetensors_open(path, &file), STATUS_DATA, cases[i].text);
        }
    }
    struct safetensors *file = NULL;
    static const uint64_t lengths[] = {3, 100000001, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    for (int i = 0; i < COUNT(lengths); i++) {
        CHECK_FAILS(safetensors_open(write_forged(path, lengths[i], "{}", 0), &file), STATUS_DATA,
                    "a header of");
    }
    CHECK(truncate(path, 7) == 0);
    CHECK_FAILS(safetensors_open(path, &file), STATUS_DATA, "7 bytes are not a safetensors file");
    CHECK_FAILS(safetensors_open(root, &file), STATUS_DATA, "not a regular file");
}

/* Subnormal, normal, largest and infinite values of both 16-bit types. */
static void test_16_bit_types(void)
{
    static const struct {
        const char *dtype;
        uint16_t bits[6];
        float values[6];
    } cases[] = {
        {"F16",
         {0x0001, 0x83ff, 0x0400, 0x3c00, 0xfbff, 0xfc00},
         {0x1p-24f, -0x1.ff8p-15f, 0x1p-14f, 1, -65504, -INFINITY}},
        {"BF16",
         {0x0001, 0x8080, 0x3f80, 0x4049, 0xff7f, 0x7f80},
         {0x1p-133f, -0x1p-126f, 1, 3.140625f, -0x1.fep127f, INFINITY}},
    };
    for (int i = 0; i < 2; i++) {
        char path[FILE_PATH_BYTES], header[128];
        struct safetensors *file = NULL;
        float values[6];
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[6],\"data_offsets\":[0,12]}}",
                 cases[i].dtype);
        write_forged(path, strlen(header), header, 0);
        int data = open(path, O_WRONLY | O_APPEND);
        CHECK(data >= 0 && write(data, cases[i].bits, 12) == 12 && close(data) == 0);
        CHECK_OK(safetensors_open(path, &file));
        CHECK_OK(safetensors_read(file, safetensors_find(file, "a"), 0, 6, values));
        CHECK(memcmp(values, cases[i].values, sizeof values) == 0);
        safetensors_close(&file);
    }
}

/* ---- missing, additional and invalid tensors ---- */

static void test_tensors(void)
{
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    float values[19 * 8] = {0};
    struct safetensors *file = NULL;
    copy_model("whole", folder);
    rewrite_tensors(folder, &(struct renaming){"transformer.h.1.mlp.c_proj.bias", NULL}, 1, NULL,
                    NULL);
    check_refused(folder, STATUS_DATA, "transformer.h.1.mlp.c_proj.bias is missing");

    copy_model("whole", folder);
    rewrite_tensors(folder, NULL, 0, &(struct new_tensor){"score.weight", 2, {2, 8}}, values);
    check_refused(folder, STATUS_DATA, "holds score.weight");

    copy_model("whole", folder);
    rewrite_tensors(folder, NULL, 0, &(struct new_tensor){"ln_f.bias", 1, {8}}, values);
    check_refused(folder, STATUS_DATA, "ln_f.bias is a duplicate");

    copy_model("whole", folder); /* files of older versions also store buffers */
    rewrite_tensors(folder, NULL, 0, &(struct new_tensor){"transformer.h.0.attn.bias", 2, {12, 12}},
                    values);
    rewrite_tensors(folder, NULL, 0, &(struct new_tensor){"h.1.attn.masked_bias", 1, {1}}, values);
    CHECK_OK(import_to(folder, "masks", output, &recipe));
    check_numbers("whole", output);

    const struct renaming no_bias = {"transformer.ln_f.bias", NULL};
    rewrite_tensors(folder, &no_bias, 1, &(struct new_tensor){no_bias.from, 2, {1, 8}}, values);
    check_refused(folder, STATUS_DATA, "transformer.ln_f.bias has 2 dimensions, [1, 8]");

    copy_model("whole", folder);
    values[5] = NAN;
    rewrite_tensors(folder, &no_bias, 1, &(struct new_tensor){no_bias.from, 1, {8}}, values);
    check_refused(folder, STATUS_DATA, "element 5 of transformer.ln_f.bias is nan");

    /* The output matrix of a tied model may repeat the embedding or replace it. Other values are
     * refused. */
    copy_model("whole", folder);
    join_path(path, folder, "model.safetensors");
    CHECK_OK(safetensors_open(path, &file));
    const struct renaming no_embedding = {"transformer.wte.weight", NULL};
    const struct safetensors_tensor *embedding = safetensors_find(file, no_embedding.from);
    CHECK_OK(safetensors_read(file, embedding, 0, 19 * 8, values));
    safetensors_close(&file);
    const struct new_tensor head = {"lm_head.weight", 2, {19, 8}};
    rewrite_tensors(folder, NULL, 0, &head, values);
    CHECK_OK(import_to(folder, "tied", output, &recipe));
    rewrite_tensors(folder, &no_embedding, 1, NULL, NULL);
    CHECK_OK(import_to(folder, "tied", output, &recipe));
    check_numbers("whole", output);
    copy_model("whole", folder);
    values[19 * 8 - 1] += 1;
    rewrite_tensors(folder, NULL, 0, &head, values);
    check_refused(folder, STATUS_DATA, "set tie_word_embeddings");
}

/* With a few changed bytes in its header, a file is either read or refused. */
static void test_random_damage(void)
{
    char from[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    int refusals = 0, rounds = 3000;
    static float buffer[4096];
    join_path(from, reference, "whole/model.safetensors");
    join_path(path, root, "damaged.safetensors");
    CHECK_OK(file_read(from, 1 << 20, &text, &bytes));
    uint64_t header = 0, key = random_key(7, RANDOM_INITIAL_WEIGHTS, 0, 0), draw = 0;
    memcpy(&header, text, sizeof header);
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(out >= 0 && header < bytes);
    for (int round = 0; round < rounds; round++) {
        char *copy = malloc(bytes);
        CHECK(copy != NULL);
        memcpy(copy, text, bytes);
        for (uint64_t n = 1 + random_u64(key, draw++) % 3; n > 0; n--) {
            static const char frequent[] = "0123456789-[]{}\",:.eF";
            uint64_t at = random_u64(key, draw++) % (8 + header), value = random_u64(key, draw++);
            copy[at] = value % 4 == 0 ? (char)(value >> 8)
                                      : frequent[(value >> 8) % (sizeof frequent - 1)];
        }
        size_t length = round % 5 == 0 ? random_u64(key, draw++) % bytes : bytes;
        CHECK(ftruncate(out, 0) == 0 && pwrite(out, copy, length, 0) == (ssize_t)length);
        free(copy);
        struct safetensors *file = NULL;
        status result = safetensors_open(path, &file);
        CHECK(result == STATUS_OK || result == STATUS_DATA);
        refusals += result != STATUS_OK;
        status_clear();
        int count = 0;
        const struct safetensors_tensor *t =
            result == STATUS_OK ? safetensors_tensors(file, &count) : NULL;
        for (int i = 0; i < count; i++) {
            int64_t n = number_min(t[i].elements, 4096);
            result = safetensors_read(file, &t[i], t[i].elements - n, n, buffer);
            CHECK(result == STATUS_OK || t[i].dtype == SAFETENSORS_OTHER);
            status_clear();
        }
        safetensors_close(&file);
    }
    CHECK(refusals > rounds / 2 && refusals < rounds);
    CHECK(close(out) == 0);
    free(text);
}

/* ---- many tensors ---- */

/* Returns the processor time in which import refuses a folder. Its index lists `count` empty
 * tensors that the model does not have. This is the time of the index and of safetensors_find. */
static double time_index(int count)
{
    static const char file[] = "model-00001-of-00002.safetensors";
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES], forged[FILE_PATH_BYTES];
    char *header = NULL, *map = NULL;
    size_t header_bytes = 0, map_bytes = 0;
    FILE *headers = open_memstream(&header, &header_bytes);
    FILE *names = open_memstream(&map, &map_bytes);
    CHECK(headers != NULL && names != NULL);
    fprintf(headers, "{\"__metadata__\":{}");
    fprintf(names, "{\"weight_map\":{\"t.0\":\"%s\"", file);
    for (int i = 0; i < count; i++) {
        fprintf(headers, ",\"t.%d\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", i);
        if (i > 0) {
            fprintf(names, ",\"t.%d\":\"%s\"", i, file);
        }
    }
    fprintf(headers, "}");
    fprintf(names, "}}");
    CHECK(fclose(headers) == 0 && fclose(names) == 0);
    copy_model("sharded", folder);
    write_file(folder, "model.safetensors.index.json", map);
    join_path(path, folder, file);
    CHECK(rename(write_forged(forged, strlen(header), header, 0), path) == 0);
    clock_t begin = clock();
    check_refused(folder, STATUS_DATA, "wte.weight is missing");
    free(header);
    free(map);
    return linear_time_since(begin);
}

/* ---- added tokens ---- */

/* The rows of the file keep their bits. The new rows have the mean of the others, and differ. */
static void check_grown(const char *before, const char *after, const char *name)
{
    int64_t rows, columns, grown_rows, grown_columns;
    float *a = read_tensor(before, name, &rows, &columns);
    float *b = read_tensor(after, name, &grown_rows, &grown_columns);
    CHECK(rows == 19 && grown_rows == 21 && columns == grown_columns);
    CHECK(memcmp(a, b, (size_t)(rows * columns) * sizeof *a) == 0);
    for (int64_t c = 0; c < columns; c++) {
        double mean = 0, deviation = 0;
        for (int64_t r = 0; r < rows; r++) {
            mean += (double)a[r * columns + c] / (double)rows;
        }
        for (int64_t r = 0; r < rows; r++) {
            deviation += pow((double)a[r * columns + c] - mean, 2) / (double)rows;
        }
        for (int64_t r = rows; r < grown_rows; r++) { /* the noise has 3.2e-5 deviations */
            CHECK_NEAR((double)b[r * columns + c], mean, 2e-4 * sqrt(deviation) + 1e-7);
        }
    }
    CHECK(columns == 1 ||
          memcmp(b + rows * columns, b + (rows + 1) * columns, (size_t)columns * sizeof *b) != 0);
    free(a);
    free(b);
}

/* Special tokens are added to a model of 19 ids. */
static void test_added_tokens(const char *name, const char *const *tensors)
{
    static char start[] = "<|im_start|>", end[] = "<|im_end|>";
    char *tokens[] = {start, end};
    char folder[FILE_PATH_BYTES], text[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    char plain[FILE_PATH_BYTES], grown[FILE_PATH_BYTES], *input = text;
    struct huggingface_summary summary;
    struct tokenizer *t = NULL;
    copy_model(name, folder);
    join_path(text, root, "letters");
    write_file(root, "letters", "abcdefghijklmnopqrs");
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, &input, 1, 1, &t));
    CHECK_OK(tokenizer_save(t, folder));
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_OK(import_to(folder, "a", a, &recipe));
    join_path(b, root, "b");
    CHECK_OK(file_remove_tree(b));
    CHECK_OK(huggingface_import(folder, NULL, b, tokens, 2, &recipe, &summary));
    CHECK_EQUAL(recipe.model.vocab_size, 21);
    join_path(text, b, "tokenizer");
    CHECK_OK(tokenizer_open(text, &t));
    CHECK(tokenizer_find(t, start) == 19 && tokenizer_find(t, end) == 20);
    CHECK(tokenizer_is_special(t, 19) && tokenizer_is_special(t, 20));
    CHECK_OK(tokenizer_destroy(&t));
    join_path(plain, root, "plain");
    join_path(grown, root, "grown");
    CHECK_OK(file_remove_tree(plain));
    CHECK_OK(file_remove_tree(grown));
    CHECK_OK(huggingface_export(a, plain, SAFETENSORS_F32, false, &summary));
    CHECK_OK(huggingface_export(b, grown, SAFETENSORS_F32, false, &summary));
    for (; *tensors != NULL; tensors++) {
        check_grown(plain, grown, *tensors);
    }
    /* The tokens exist now: nothing grows, and the result is the same model. */
    CHECK_OK(file_remove_tree(a));
    CHECK_OK(huggingface_import(grown, NULL, a, tokens, 2, &recipe, &summary));
    CHECK(recipe.model.vocab_size == 21 && has_same_weights(a, b));
    tokens[1] = start + strlen(start); /* an empty token */
    CHECK_OK(file_remove_tree(a));
    CHECK_FAILS(huggingface_import(folder, NULL, a, tokens, 2, &recipe, &summary), STATUS_USAGE,
                "an added token is empty");
    CHECK(!file_exists(a));
    join_path(folder, reference, name);
    CHECK_FAILS(huggingface_import(folder, NULL, a, tokens, 1, &recipe, &summary), STATUS_NO_INPUT,
                "contains no tokenizer");
}

int main(void)
{
    huggingface_folder_start();
    h5file_init();
    test_headers();
    test_16_bit_types();
    test_random_damage();
    test_numbers("whole");
    test_numbers("sharded");
    test_numbers("bare");
    test_config();
    test_folders();
    test_tensors();
    check_linear_time("index", time_index, 25000);
    test_added_tokens("whole", (const char *const[]){"transformer.wte.weight", NULL});
    test_added_tokens("llama",
                      (const char *const[]){"model.embed_tokens.weight", "lm_head.weight", NULL});
    test_added_tokens("bert", (const char *const[]){"bert.embeddings.word_embeddings.weight",
                                                    "cls.predictions.bias", NULL});
    CHECK_OK(file_remove_tree(root));
    printf("model folders: numbers and bits are equal, damaged files are refused\n");
    return 0;
}
