/* Tasks of every output type on a small model: outputs, scores and metrics are the same as in
 * lm-evaluation-harness with transformers (scripts/peers/check_lm_eval.py), question by question,
 * on any number of ranks.
 * ctest: timeout 120
 * ctest: ranks 3
 * ctest: run 2_tensor ranks=2 2 */
#include <unistd.h>

#include "comm/comm.h"
#include "tests/check.h"
#include "trainer/evaluation/tasks/task_set.h"
#include "trainer/formats/huggingface/huggingface.h"
#include "trainer/formats/weights/open.h"

static char reference[FILE_PATH_BYTES]; /* tests/reference/tasks */
static const double tolerance = 2e-4;

static void check_number(const char *where, const json_t *expected, double value)
{
    double e = json_number_value(expected);
    if (!(fabs(value - e) <= tolerance * fmax(1, fabs(e)))) {
        fprintf(stderr, "%s: %.9g instead of %.9g\n", where, value, e);
        exit(1);
    }
}

/* Compares the outputs or scores of a document. */
static void check_sample(const char *where, json_t *expected, const json_t *sample)
{
    const char *name;
    json_t *value;
    json_object_foreach(expected, name, value)
    {
        const json_t *actual = json_object_get(sample, name);
        CHECK(actual != NULL);
        for (size_t i = 0; i < json_array_size(value); i++) {
            check_number(where, json_array_get(value, i),
                         json_number_value(json_array_get(actual, i)));
        }
        if (json_is_number(value)) {
            check_number(where, value, json_number_value(actual));
        } else if (json_is_string(value)) {
            CHECK_TEXT(json_string_value(actual), json_string_value(value));
        }
    }
}

static void check_samples(const json_t *test_case, FILE *samples)
{
    char line[1 << 16], where[256];
    const json_t *documents = json_object_get(test_case, "documents");
    rewind(samples);
    for (size_t i = 0; i < json_array_size(documents); i++) {
        CHECK(fgets(line, sizeof line, samples) != NULL);
        json_t *sample = json_loads(line, 0, NULL);
        snprintf(where, sizeof where, "%s, document %zu",
                 json_string_value(json_object_get(test_case, "file")), i);
        check_sample(where, json_array_get(documents, i), sample);
        json_decref(sample);
    }
    CHECK(fgets(line, sizeof line, samples) == NULL);
}

static void check_results(const json_t *test_case, const struct task_field *fields, int count)
{
    const char *metric;
    json_t *value;
    json_object_foreach(json_object_get(test_case, "results"), metric, value)
    {
        char name[TASK_FIELD_BYTES];
        int at = 0;
        snprintf(name, sizeof name, "%s/%s", json_string_value(json_object_get(test_case, "task")),
                 metric);
        while (at < count && strcmp(fields[at].name, name) != 0) {
            at++;
        }
        CHECK(at < count);
        if (strcmp(metric, "perplexity_stderr") != 0) { /* there a bootstrap */
            check_number(name, value, fields[at].value);
        }
    }
}

static struct task_model make_task_model(const struct session *s)
{
    int64_t positions = model_get_config(s->model)->positions;
    return (struct task_model){.kernels = s->kernels,
                               .model = s->model,
                               .tokenizer = s->tokenizer,
                               .mesh = &s->mesh,
                               .rows = positions,
                               .max_tokens = positions};
}

static void run_case(const struct session *s, const json_t *test_case)
{
    char path[FILE_PATH_BYTES];
    char *paths[] = {path};
    struct task_set set;
    struct task_field fields[TASK_SET_FIELDS];
    int count;
    const struct task_model model = make_task_model(s);
    int64_t shots = json_integer_value(json_object_get(test_case, "shots"));
    bool is_alone = comm_size(s->mesh.world) == 1;
    FILE *samples = is_alone ? tmpfile() : NULL;
    CHECK_OK(file_join(path, reference, json_string_value(json_object_get(test_case, "file"))));
    CHECK_OK(task_set_open(paths, 1, shots, 0, &set));
    CHECK_OK(task_set_run(&set, &model, samples, fields, &count));
    check_results(test_case, fields, count);
    if (is_alone) {
        check_samples(test_case, samples);
        fclose(samples);
    }
    CHECK_EQUAL(task_set_has_metric(&set, fields[0].name), 1);
    CHECK_EQUAL(task_set_has_metric(&set, "other/acc"), 0);
    task_set_close(&set);
}

static const char sampling_task[] =
    "task: sampling\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\n"
    "test_split: test\noutput_type: generate_until\ndoc_to_text: q\ndoc_to_target: a\n"
    "generation_kwargs: {until: [\"zz\"], max_gen_toks: 6, do_sample: true, temperature: 1.0}\n";

/* Writes a task that samples the outputs of 20 equal documents. */
static void write_sampling_task(const char *folder, char path[FILE_PATH_BYTES])
{
    char text[4096], rows[FILE_PATH_BYTES];
    size_t used = 0;
    CHECK_OK(file_join(rows, folder, "rows.jsonl"));
    CHECK_OK(file_join(path, folder, "sampling.yaml"));
    for (int i = 0; i < 20; i++) {
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "{\"q\": \"the\", \"a\": \"x\"}\n");
    }
    CHECK_OK(file_write(rows, text, used));
    CHECK_OK(file_write(path, sampling_task, strlen(sampling_task)));
}

/* Reads the lines of all samples, in any order of the documents. */
static json_t *run_samples(const struct session *s, const struct mesh *mesh, const char *path)
{
    char *paths[] = {(char *)path};
    char line[4096], id[32];
    struct task_set set;
    struct task_field fields[TASK_SET_FIELDS];
    int count;
    struct task_model model = make_task_model(s);
    model.mesh = mesh;
    model.seed = 3;
    FILE *samples = tmpfile();
    json_t *all = json_object();
    CHECK_OK(task_set_open(paths, 1, -1, 0, &set));
    CHECK_OK(task_set_run(&set, &model, samples, fields, &count));
    rewind(samples);
    while (fgets(line, sizeof line, samples) != NULL) {
        json_t *sample = json_loads(line, 0, NULL);
        snprintf(id, sizeof id, "%lld",
                 (long long)json_integer_value(json_object_get(sample, "doc_id")));
        CHECK(json_object_set_new(all, id, json_incref(json_object_get(sample, "resps"))) == 0);
        json_decref(sample);
    }
    fclose(samples);
    task_set_close(&set);
    return all;
}

/* The random numbers of a document do not depend on the number of ranks. */
static void test_sampling(const struct session *s)
{
    char folder[] = "/tmp/bireme-sampling-XXXXXX", path[FILE_PATH_BYTES];
    struct mesh alone = {0};
    const char *id;
    json_t *output;
    CHECK(mkdtemp(folder) != NULL);
    write_sampling_task(folder, path);
    CHECK_OK(comm_self_create(&alone.world));
    alone.tensor = alone.data = alone.world;
    json_t *own = run_samples(s, &s->mesh, path), *all = run_samples(s, &alone, path);
    CHECK_EQUAL(json_object_size(all), 20);
    CHECK(json_object_size(own) >= 20 / (size_t)comm_size(s->mesh.data));
    json_object_foreach(own, id, output)
    {
        CHECK_TEXT(json_string_value(output), json_string_value(json_object_get(all, id)));
    }
    CHECK(!json_equal(json_object_get(all, "0"), json_object_get(all, "1")));
    json_decref(own);
    json_decref(all);
    CHECK_OK(comm_destroy(&alone.world));
    CHECK_OK(file_remove_tree(folder));
}

/* A stop ends a task between two batches; the task has no results. */
struct stops {
    int polls, limit;
};

static status count_poll(void *user, bool *stop)
{
    struct stops *stops = user;
    *stop = ++stops->polls == stops->limit;
    return STATUS_OK;
}

static void test_stop(const struct session *s)
{
    char folder[] = "/tmp/bireme-stop-XXXXXX", path[FILE_PATH_BYTES];
    char *paths[] = {path};
    struct task_set set;
    struct task_field fields[TASK_SET_FIELDS];
    int batches = (20 + 8 * comm_size(s->mesh.data) - 1) / (8 * comm_size(s->mesh.data));
    CHECK(mkdtemp(folder) != NULL);
    write_sampling_task(folder, path);
    CHECK_OK(task_set_open(paths, 1, -1, 0, &set));
    for (int limit = 1; limit <= batches + 1; limit++) {
        struct stops stops = {.limit = limit};
        const struct stop_poll poll = {.run = count_poll, .user = &stops};
        struct task_model model = make_task_model(s);
        model.poll = &poll;
        int count = -1;
        CHECK_OK(task_set_run(&set, &model, NULL, fields, &count));
        CHECK_EQUAL(stops.polls, limit <= batches ? limit : batches);
        CHECK_EQUAL(count > 0, limit > batches);
    }
    task_set_close(&set);
    CHECK_OK(file_remove_tree(folder));
}

int main(int argc, char **argv)
{
    static struct recipe recipe;
    struct comm *world = NULL;
    struct session s = {0};
    struct huggingface_summary summary;
    char folder[] = "/tmp/bireme-tasks-XXXXXX", checkpoint[FILE_PATH_BYTES];
    char tensor[64];
    char *overrides[] = {tensor};
    char path[FILE_PATH_BYTES], model[FILE_PATH_BYTES];
    CHECK_OK(file_join(reference, getenv("BIREME_SOURCE_DIR"), "tests/reference/tasks"));
    CHECK_OK(file_join(path, reference, "expected.json"));
    CHECK_OK(file_join(model, reference, "model"));
    json_t *expected = json_load_file(path, 0, NULL);
    json_t *cases = json_object_get(expected, "cases");
    CHECK(json_array_size(cases) == 9);
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    snprintf(tensor, sizeof tensor, "parallel.tensor=%s", argc > 1 ? argv[1] : "1");
    CHECK(comm_rank(world) != 0 || mkdtemp(folder) != NULL);
    CHECK_OK(comm_broadcast(world, folder, sizeof folder, 0));
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", folder);
    CHECK_OK(comm_agree(
        world, comm_rank(world) != 0
                   ? STATUS_OK
                   : huggingface_import(model, NULL, checkpoint, NULL, 0, &recipe, &summary)));
    CHECK_OK(weights_open_checkpoint(&s, world, checkpoint, overrides, 1, 0));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        run_case(&s, json_array_get(cases, i));
    }
    test_stop(&s);
    if (argc == 1) { /* the model is not divided */
        test_sampling(&s);
    }
    CHECK_OK(session_stop(&s));
    CHECK(comm_rank(world) != 0 || file_remove_tree(folder) == STATUS_OK);
    CHECK_OK(comm_destroy(&world));
    json_decref(expected);
    return 0;
}
