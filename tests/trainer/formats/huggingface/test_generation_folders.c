/* Compares generation with imported T5, BART, mBART and Marian models with generate() of
 * transformers (make_reference.py seq2seq): generation_config.json sets all options, and the ids of
 * greedy decoding and of all hypotheses of beam search are equal. */
#include "comm/comm.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/generation_config.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"

enum { SOURCES_MAX = 8, OUTPUTS_MAX = 64, ROWS = 16 };

static void read_ids(const json_t *list, struct token_list *out)
{
    CHECK_OK(token_list_reserve(out, (int64_t)json_array_size(list)));
    for (size_t i = 0; i < json_array_size(list); i++) {
        out->ids[out->count++] = (int32_t)json_integer_value(json_array_get(list, i));
    }
}

/* expected: the ids, and the end token if the output has ended */
static void check_output(const struct generate_output *output, const json_t *expected, int32_t end)
{
    int64_t count = (int64_t)json_array_size(expected);
    const json_t *last = json_array_get(expected, (size_t)count - 1);
    bool ended = json_integer_value(last) == end;
    CHECK(count > 0);
    CHECK_EQUAL(output->ended, ended);
    CHECK_EQUAL(output->tokens.count, count - ended);
    for (int64_t i = 0; i < count - ended; i++) {
        CHECK_EQUAL(output->tokens.ids[i], json_integer_value(json_array_get(expected, (size_t)i)));
    }
}

/* Reads the options of a case from generation_config.json in the root folder. */
static void read_options(const struct session *s, const json_t *settings, const int32_t *end,
                         struct generate_options *out)
{
    char path[FILE_PATH_BYTES];
    const struct model_config *c = model_get_config(s->model);
    const struct generation_context context = {.vocabulary = c->vocabulary,
                                               .positions = c->positions,
                                               .end_token = *end,
                                               .max_new_tokens = 1};
    join_path(path, root, GENERATION_CONFIG_FILE);
    CHECK(json_dump_file(settings, path, 0) == 0);
    *out = generation_config_unset();
    CHECK_OK(generation_config_complete(root, &context, out));
    out->num_samples = out->num_beams;
    out->end_token = end;
}

static void check_case(const struct session *s, const struct token_list *sources, int64_t count,
                       int32_t end, const json_t *test)
{
    struct generate_options o;
    const json_t *ids = json_object_get(test, "ids");
    read_options(s, json_object_get(test, "config"), &end, &o);
    CHECK(count * o.num_samples <= OUTPUTS_MAX && (int64_t)json_array_size(ids) == count);
    for (int64_t batch = 1; batch <= count; batch += count - 1) {
        struct generate_output outputs[OUTPUTS_MAX] = {0};
        o.use_cache = batch == 1;
        CHECK_OK(
            generate_run_sorted(s->kernels, s->model, NULL, sources, count, batch, &o, outputs));
        for (int64_t i = 0; i < count * o.num_samples; i++) {
            const json_t *rows = json_array_get(ids, (size_t)(i / o.num_samples));
            CHECK_EQUAL((int64_t)json_array_size(rows), o.num_samples);
            check_output(&outputs[i], json_array_get(rows, (size_t)(i % o.num_samples)), end);
            token_list_free(&outputs[i].tokens);
        }
    }
}

static void test_model(const char *name, const json_t *model)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], checkpoint[FILE_PATH_BYTES], file[64];
    struct token_list sources[SOURCES_MAX] = {0};
    struct comm *self = NULL;
    struct session s = {0};
    const json_t *rows = json_object_get(model, "sources"),
                 *cases = json_object_get(model, "cases");
    size_t count = json_array_size(rows);
    snprintf(file, sizeof file, "generate_%s", name);
    join_path(folder, reference, file);
    CHECK_OK(import_to(folder, "a", checkpoint, &recipe));
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, NULL, 0, ROWS));
    CHECK(count > 1 && count <= SOURCES_MAX && json_array_size(cases) > 0);
    for (size_t i = 0; i < count; i++) {
        read_ids(json_array_get(rows, i), &sources[i]);
    }
    for (size_t i = 0; i < json_array_size(cases); i++) {
        check_case(&s, sources, (int64_t)count,
                   (int32_t)json_integer_value(json_object_get(model, "end")),
                   json_array_get(cases, i));
    }
    for (size_t i = 0; i < count; i++) {
        token_list_free(&sources[i]);
    }
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
}

int main(void)
{
    const char *name;
    json_t *model;
    char path[FILE_PATH_BYTES];
    huggingface_folder_start();
    join_path(path, reference, "generation.json");
    json_t *models = json_load_file(path, 0, NULL);
    CHECK(json_object_size(models) == 5);
    json_object_foreach(models, name, model)
    {
        test_model(name, model);
    }
    json_decref(models);
    CHECK_OK(file_remove_tree(root));
    return 0;
}
