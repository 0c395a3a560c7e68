/* Folders of the task classes of transformers: the models of tests/reference/heads*.h5 with the
 * config.json that transformers writes for them. The outputs of the head are the same as in
 * transformers, also after export and import. The names of the labels are kept. */
#include "base/memory.h"
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/huggingface/config.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/sentence_embedding.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"

static const double tolerance = 1e-5;

enum { NAMES_BYTES = 4096, TENSORS_MAX = 40, ROWS_MAX = 64, OUTPUTS_MAX = 512 };

struct task_case {
    const char *name;
    const char *objective; /* for the import; NULL: the one of the class */
    const char *expected;  /* objective of the imported model */
    hid_t group;
};

static int32_t *read_integers(const struct task_case *t, const char *name, int64_t *count)
{
    return reference_dataset(t->group, name, H5T_NATIVE_INT32, sizeof(int32_t), count);
}

/* ---- a model folder from the reference file ---- */

static void write_config(const struct task_case *t, const json_t *configs, const char *folder)
{
    char path[FILE_PATH_BYTES];
    join_path(path, folder, "config.json");
    CHECK(json_dump_file(json_object_get(configs, t->name), path, 0) == 0);
}

static const struct model_parameter *find_parameter(const struct model_parameter *parameters,
                                                    int count, const char *name)
{
    int i = 0;
    while (i < count && strcmp(parameters[i].name, name) != 0) {
        i++;
    }
    CHECK(i < count);
    return &parameters[i];
}

/* Writes the weights. In the reference file they are contiguous, in the order of the names. */
static void write_weights(const struct task_case *t, const char *folder)
{
    static struct recipe recipe;
    struct huggingface_config config_file;
    struct model_parameter *parameters;
    struct safetensors_shape shapes[TENSORS_MAX];
    struct safetensors_writer *writer = NULL;
    char names[NAMES_BYTES] = "", path[FILE_PATH_BYTES], *rest = names;
    int64_t elements, all;
    int count, used = 0;
    CHECK_OK(huggingface_config_read(folder, t->objective, &recipe, &config_file));
    labels_free(&config_file.labels);
    struct model_config config = derive_model_config(&recipe, recipe.model.vocab_size);
    CHECK_OK(model_layout(&config, 1, 0, &parameters, &count, &elements));
    hid_t a = H5Aopen(t->group, "names", H5P_DEFAULT), type = H5Aget_type(a);
    CHECK(H5Tget_size(type) < sizeof names && H5Aread(a, type, names) >= 0);
    H5Tclose(type);
    H5Aclose(a);
    for (char *name; used < TENSORS_MAX && (name = strsep(&rest, "\n")) != NULL && *name != '\0';) {
        const struct model_parameter *p = find_parameter(parameters, count, name);
        shapes[used] = (struct safetensors_shape){.name = name, .dimensions = p->dimensions};
        huggingface_tensor_shape(p, shapes[used++].shape);
    }
    CHECK_EQUAL(used, count);
    float *values = reference_dataset(t->group, "values", H5T_NATIVE_FLOAT, 4, &all), *at = values;
    join_path(path, folder, "model.safetensors");
    CHECK_OK(safetensors_create(path, SAFETENSORS_F32, shapes, used, &writer));
    for (int i = 0; i < used; i++) {
        int64_t n = shapes[i].shape[0] * shapes[i].shape[1];
        CHECK_OK(safetensors_write(writer, at, n));
        at += n;
    }
    CHECK_OK(safetensors_finish(&writer));
    free(values);
    free(parameters);
}

static void make_folder(const struct task_case *t, const json_t *configs,
                        char folder[FILE_PATH_BYTES])
{
    join_path(folder, root, "model");
    CHECK_OK(file_remove_tree(folder));
    CHECK_OK(file_make_folders(folder));
    write_config(t, configs, folder);
    write_weights(t, folder);
}

/* ---- outputs of the head ---- */

static void compare_outputs(const struct task_case *t, const float *actual, int64_t count)
{
    int64_t all;
    float *expected = reference_dataset(t->group, "outputs", H5T_NATIVE_FLOAT, 4, &all);
    CHECK_EQUAL(all, count);
    CHECK(reference_error(actual, expected, count) <= tolerance);
    free(expected);
}

static void run_head(const struct task_case *t, struct session *s, struct model_input *input,
                     int64_t texts)
{
    static float outputs[OUTPUTS_MAX];
    struct tensor hidden;
    int64_t labels = model_get_config(s->model)->labels;
    bool vectors = s->recipe.objective == OBJECTIVE_EMBED;
    if (vectors) {
        input->output_rows = NULL;
        input->outputs = 0;
    }
    CHECK(labels * (vectors ? texts : input->outputs) <= OUTPUTS_MAX);
    CHECK_OK(model_forward(s->model, input, &hidden));
    if (!vectors) {
        struct model_label_head head = model_get_label_head(s->model, input, NULL);
        CHECK_OK(classifier_logits(s->kernels,
                                   tensor_view(outputs, DTYPE_F32, input->outputs, labels), hidden,
                                   head.weight, head.bias));
        compare_outputs(t, outputs, input->outputs * labels);
        return;
    }
    for (int64_t i = 0; i < texts; i++) {
        int32_t first = input->cu_rows[i];
        CHECK_OK(sentence_embedding_pool(tensor_rows(hidden, first, input->cu_rows[i + 1] - first),
                                         outputs + i * labels));
    }
    compare_outputs(t, outputs, texts * labels);
}

static void check_outputs(const struct task_case *t, const char *checkpoint)
{
    struct comm *self = NULL;
    struct session s = {0};
    int32_t positions[ROWS_MAX];
    int64_t rows, texts, outputs;
    int32_t *ids = read_integers(t, "ids", &rows), *segments = read_integers(t, "segments", &rows);
    int32_t *cu_rows = read_integers(t, "cu_rows", &texts),
            *output_rows = read_integers(t, "rows", &outputs);
    CHECK(rows <= ROWS_MAX);
    for (int64_t i = 0; i + 1 < texts; i++) {
        for (int32_t row = cu_rows[i]; row < cu_rows[i + 1]; row++) {
            positions[row] = row - cu_rows[i];
        }
    }
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, NULL, 0, rows));
    CHECK_TEXT(recipe_objective_name(s.recipe.objective), t->expected);
    bool has_names = s.recipe.model.num_labels > 0;
    CHECK_EQUAL(s.labels.count, has_names ? 3 : 0);
    CHECK(!has_names || strcmp(s.labels.names[1], "it \"is\"") == 0);
    struct model_input input = {.rows = rows,
                                .tokens = ids,
                                .positions = positions,
                                .segments = texts - 1,
                                .cu_rows = cu_rows,
                                .longest = 10,
                                .token_type_ids = segments,
                                .output_rows = output_rows,
                                .outputs = outputs};
    run_head(t, &s, &input, texts - 1);
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
    free(ids);
    free(segments);
    free(cu_rows);
    free(output_rows);
}

/* ---- import and export ---- */

/* The keys from which from_pretrained selects class and head have the values of transformers. */
static void compare_configs(const char *a, const char *b, bool labels)
{
    static const char *const keys[] = {"architectures", "model_type", "id2label", "label2id"};
    char path[FILE_PATH_BYTES];
    join_path(path, a, "config.json");
    json_t *expected = json_load_file(path, 0, NULL);
    join_path(path, b, "config.json");
    json_t *actual = json_load_file(path, 0, NULL);
    CHECK(expected != NULL && actual != NULL);
    for (int i = 0; i < (labels ? 4 : 2); i++) {
        const json_t *value = json_object_get(expected, keys[i]);
        CHECK(value == NULL || json_equal(value, json_object_get(actual, keys[i])));
    }
    json_decref(expected);
    json_decref(actual);
}

static bool has_same_tensors(const char *a, const char *b)
{
    char command[3 * FILE_PATH_BYTES];
    snprintf(command, sizeof command,
             "cmp -s '%.2000s/model.safetensors' '%.2000s/model.safetensors'", a, b);
    return system(command) == 0;
}

static void test_case(const struct task_case *t, const json_t *configs)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    char out[FILE_PATH_BYTES], second[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    printf("%s\n", t->name);
    join_path(out, root, "out");
    join_path(second, root, "second");
    CHECK_OK(file_remove_tree(out));
    CHECK_OK(file_remove_tree(second));
    make_folder(t, configs, folder);
    CHECK_OK(import_for(t->objective, folder, "a", a, &recipe));
    check_outputs(t, a);
    CHECK_OK(huggingface_export(a, out, SAFETENSORS_F32, false, &summary));
    compare_configs(folder, out, strcmp(t->expected, "embed") != 0);
    CHECK_OK(import_to(out, "b", b, &recipe)); /* the export stores the objective */
    CHECK(has_same_weights(a, b));
    check_outputs(t, b);
    CHECK_OK(huggingface_export(b, second, SAFETENSORS_F32, false, &summary));
    CHECK(has_same_tensors(out, second));
}

/* ---- classes and settings ---- */

static void test_settings(hid_t file, const json_t *configs)
{
    static const struct {
        const char *key, *value;
        status code;
        const char *text;
    } cases[] = {
        {"id2label", "[]", STATUS_DATA, "id2label is not an object"},
        {"id2label", "{\"0\": \"a\", \"2\": \"b\", \"3\": \"c\"}", STATUS_DATA,
         "has no name for 1"},
        {"id2label", "{\"0\": \"a\", \"1\": \"\", \"2\": \"c\"}", STATUS_DATA, "has no name for 1"},
        {"id2label", "{\"0\": \"a\", \"1\": \"b\", \"2\": \"a\"}", STATUS_DATA, "name 'a' twice"},
        {"id2label", "{}", STATUS_DATA, "0 labels"},
        {"id2label", NULL, STATUS_DATA,
         "classifier.weight has 2 dimensions, [3, 8], but config.json"},
        {"problem_type", "\"multi_label_classification\"", STATUS_UNAVAILABLE, "multi_label"},
        {"problem_type", "\"regression\"", STATUS_UNAVAILABLE, "regress has one output"},
        {"architectures", "[\"BertModel\", \"BertForSequenceClassification\"]", STATUS_UNAVAILABLE,
         "alone the classes of tasks"},
        {"architectures", "[\"BertForMultipleChoice\"]", STATUS_DATA,
         "classifier.weight has 2 dim"},
        {"architectures", "[\"BertModel\"]", STATUS_DATA, "holds classifier.weight"},
        {"bireme_objective", "\"reward\"", STATUS_USAGE, "and not 'reward'"},
    };
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    struct task_case t = {.name = "bert_texts"};
    t.group = H5Gopen2(file, t.name, H5P_DEFAULT);
    for (int i = 0; i < COUNT(cases); i++) {
        make_folder(&t, configs, folder);
        set_config(folder, cases[i].key, cases[i].value);
        check_refused(folder, cases[i].code, cases[i].text);
    }
    make_folder(&t, configs, folder);
    CHECK_FAILS(import_for("answer", folder, "refused", output, &recipe), STATUS_USAGE,
                "the objective of a BertForSequenceClassification is classify and not 'answer'");
    CHECK_OK(import_for("classify", folder, "a", output, &recipe));
    H5Gclose(t.group);

    /* With one output and no problem_type, the objective is regression unless another one is
     * given. */
    t.name = "gpt2_numbers";
    t.group = H5Gopen2(file, t.name, H5P_DEFAULT);
    make_folder(&t, configs, folder);
    set_config(folder, "problem_type", NULL);
    CHECK_OK(import_to(folder, "a", output, &recipe));
    CHECK(recipe.objective == OBJECTIVE_REGRESS);
    CHECK_OK(import_for("reward", folder, "a", output, &recipe));
    CHECK(recipe.objective == OBJECTIVE_REWARD);
    H5Gclose(t.group);
}

/* LlamaForQuestionAnswering has another name prefix than the other classes of Llama. */
static void test_prefix(hid_t file, const json_t *configs)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    struct task_case t = {.name = "llama_texts"};
    struct huggingface_summary summary;
    struct safetensors *weights = NULL;
    static const struct renaming no_score = {"score.weight", NULL};
    t.group = H5Gopen2(file, t.name, H5P_DEFAULT);
    make_folder(&t, configs, folder);
    H5Gclose(t.group);
    rewrite_tensors(folder, &no_score, 1, &(struct new_tensor){"qa_outputs.weight", 2, {2, 8}},
                    NULL);
    rewrite_tensors(folder, NULL, 0, &(struct new_tensor){"qa_outputs.bias", 1, {2, 1}}, NULL);
    set_config(folder, "architectures", "[\"LlamaForQuestionAnswering\"]");
    CHECK_OK(import_to(folder, "a", a, &recipe));
    join_path(b, root, "out");
    CHECK_OK(file_remove_tree(b));
    CHECK_OK(huggingface_export(a, b, SAFETENSORS_F32, false, &summary));
    join_path(path, b, "model.safetensors");
    CHECK_OK(safetensors_open(path, &weights));
    CHECK(safetensors_find(weights, "transformer.norm.weight") != NULL);
    CHECK(safetensors_find(weights, "qa_outputs.weight") != NULL);
    safetensors_close(&weights);
    CHECK_OK(import_to(b, "b", folder, &recipe));
    CHECK(has_same_weights(a, folder));
}

static void test_cases(const char *name, const struct task_case *cases, int count,
                       const json_t *configs)
{
    char path[FILE_PATH_BYTES];
    join_path(path, reference, name);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(file >= 0);
    for (int i = 0; i < count; i++) {
        struct task_case t = cases[i];
        t.group = H5Gopen2(file, t.name, H5P_DEFAULT);
        CHECK(t.group >= 0);
        test_case(&t, configs);
        H5Gclose(t.group);
    }
    H5Fclose(file);
}

/* A head of texts that averages the rows of a sequence is refused; one of tokens has no pooling. */
static void test_pooling(const json_t *configs)
{
    static struct recipe recipe;
    struct huggingface_config config;
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    join_path(folder, root, "pooling");
    CHECK_OK(file_make_folders(folder));
    join_path(path, folder, "config.json");
    for (int texts = 0; texts < 2; texts++) {
        json_t *copy = json_deep_copy(
            json_object_get(configs, texts ? "modernbert_texts" : "modernbert_tokens"));
        json_object_set_new(copy, "classifier_pooling", json_string("mean"));
        CHECK(json_dump_file(copy, path, 0) == 0);
        json_decref(copy);
        if (texts) {
            CHECK_FAILS(huggingface_config_read(folder, NULL, &recipe, &config), STATUS_UNAVAILABLE,
                        "classifier_pooling mean is not supported; cls is");
        } else {
            CHECK_OK(huggingface_config_read(folder, NULL, &recipe, &config));
        }
        labels_free(&config.labels);
    }
}

int main(void)
{
    static const struct task_case cases[] = {
        {.name = "bert_texts", .expected = "classify"},
        {.name = "bert_numbers", .expected = "regress"},
        {.name = "bert_tokens", .expected = "classify_tokens"},
        {.name = "bert_spans", .expected = "answer"},
        {.name = "bert_choices", .expected = "choose"},
        {.name = "bert_vectors", .objective = "embed", .expected = "embed"},
        {.name = "gpt2_texts", .expected = "classify"},
        {.name = "gpt2_numbers", .expected = "regress"},
        {.name = "gpt2_tokens", .expected = "classify_tokens"},
        {.name = "gpt2_spans", .expected = "answer"},
        {.name = "gpt2_choices", .objective = "choose", .expected = "choose"},
        {.name = "gpt2_vectors", .objective = "embed", .expected = "embed"},
        {.name = "roberta_texts", .expected = "classify"},
        {.name = "roberta_choices", .expected = "choose"},
        {.name = "llama_texts", .expected = "classify"},
        {.name = "distilbert_texts", .expected = "classify"},
        {.name = "distilbert_tokens", .expected = "classify_tokens"},
        {.name = "distilbert_spans", .expected = "answer"},
        {.name = "distilbert_choices", .expected = "choose"},
        {.name = "distilbert_vectors", .objective = "embed", .expected = "embed"},
        {.name = "megatron-bert_texts", .expected = "classify"},
        {.name = "megatron-bert_tokens", .expected = "classify_tokens"},
        {.name = "megatron-bert_spans", .expected = "answer"},
        {.name = "megatron-bert_choices", .expected = "choose"},
        {.name = "megatron-bert_vectors", .objective = "embed", .expected = "embed"},
    };
    static const struct task_case albert[] = {
        {.name = "albert_texts", .expected = "classify"},
        {.name = "albert_tokens", .expected = "classify_tokens"},
        {.name = "albert_spans", .expected = "answer"},
        {.name = "albert_choices", .expected = "choose"},
        {.name = "albert_vectors", .objective = "embed", .expected = "embed"},
    };
    static const struct task_case modernbert[] = {
        {.name = "modernbert_texts", .expected = "classify"},
        {.name = "modernbert_tokens", .expected = "classify_tokens"},
        {.name = "modernbert_spans", .expected = "answer"},
        {.name = "modernbert_choices", .expected = "choose"},
    };
    char path[FILE_PATH_BYTES];
    h5file_init();
    huggingface_folder_start();
    join_path(path, reference, "../heads_config.json");
    json_t *configs = json_load_file(path, 0, NULL);
    CHECK(configs != NULL);
    test_cases("../heads.h5", cases, COUNT(cases), configs);
    test_cases("../heads_albert.h5", albert, COUNT(albert), configs);
    test_cases("../heads_modernbert.h5", modernbert, COUNT(modernbert), configs);
    join_path(path, reference, "../heads.h5");
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(file >= 0);
    test_settings(file, configs);
    test_prefix(file, configs);
    test_pooling(configs);
    json_decref(configs);
    H5Fclose(file);
    CHECK_OK(file_remove_tree(root));
    return 0;
}
