/* Fuzz target: task files and their documents. The parts of the input are task.yaml, data.jsonl and
 * shots.jsonl. */
#include <jansson.h>

#include "tests/fuzz/fuzz.h"
#include "trainer/evaluation/tasks/task.h"

const struct fuzz_limits fuzz_limits = {.bytes = 48 << 20, .factor = 400};

/* Targets are strings, with multiple_choice indices of choices. */
static void check_targets(const struct task *t, const struct task_request *q)
{
    bool has_indices = task_get_config(t)->output == TASK_MULTIPLE_CHOICE;
    fuzz_require(json_array_size(q->targets) > 0, "a document has a target");
    for (size_t i = 0; i < json_array_size(q->targets); i++) {
        const json_t *target = json_array_get(q->targets, i);
        fuzz_require(has_indices ? json_is_integer(target) : json_is_string(target),
                     "a target has the type of its task");
    }
}

static status use_task(const struct task *t)
{
    for (int64_t i = 0; i < task_document_count(t); i++) {
        struct task_request q;
        status result = task_get_request(t, i, &q);
        if (result == STATUS_OK) {
            check_targets(t, &q);
            fuzz_require(q.context != NULL ||
                             task_get_config(t)->output == TASK_LOGLIKELIHOOD_ROLLING,
                         "a document has a context");
        }
        task_request_free(&q);
        TRY(result);
    }
    return STATUS_OK;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct fuzz_part file = fuzz_next_part(&data, &bytes);
    struct fuzz_part documents = fuzz_next_part(&data, &bytes);
    struct task *t = NULL;
    const char *path = fuzz_write_file("task.yaml", file.data, file.bytes);
    fuzz_write_file("data.jsonl", documents.data, documents.bytes);
    fuzz_write_file("shots.jsonl", data, bytes);
    TRY(task_open(path, -1, 0, &t));
    status result = use_task(t);
    task_close(&t);
    return result;
}
