#include "trainer/evaluation/tasks/task_set.h"

#include <string.h>

#include "base/text.h"

bool task_set_is_file(const char *path)
{
    return text_has_suffix(path, ".yaml") || text_has_suffix(path, ".yml");
}

/* Returns the number of fields of a task: each metric has an error, and there are two counts. */
static int count_fields(const struct task *t)
{
    const struct task_config *c = task_get_config(t);
    return 2 * c->metric_count * c->filter_count + 2;
}

static status check_names(const struct task_set *set)
{
    int fields = 0;
    for (int i = 0; i < set->count; i++) {
        const struct task_config *c = task_get_config(set->tasks[i]);
        fields += count_fields(set->tasks[i]);
        if (strlen(c->name) > 40 || strpbrk(c->name, "./ \n\t") != NULL) {
            return task_config_fail(c, NULL, "task",
                                    "the name must have at most 40 characters, without dots, "
                                    "slashes and spaces");
        }
        for (int other = 0; other < i; other++) {
            if (strcmp(task_get_config(set->tasks[other])->name, c->name) == 0) {
                return task_config_fail(c, NULL, "task", "%s has the same name",
                                        task_get_config(set->tasks[other])->path);
            }
        }
    }
    REQUIRE(fields <= TASK_SET_FIELDS, STATUS_RECIPE,
            "the tasks have %d metrics, errors and counts; at most %d are possible", fields,
            TASK_SET_FIELDS);
    return STATUS_OK;
}

status task_set_open(char *const *paths, int count, int64_t shots, int64_t limit,
                     struct task_set *out)
{
    *out = (struct task_set){0};
    REQUIRE(count <= TASK_SET_MAX, STATUS_USAGE, "%d tasks; at most %d are accepted", count,
            TASK_SET_MAX);
    for (int i = 0; i < count; i++) {
        TRY(task_open(paths[i], shots, limit, &out->tasks[out->count]));
        out->count++;
    }
    return check_names(out);
}

static void add_field(struct task_field *fields, int *count, const char *task, const char *name,
                      double value, bool is_count)
{
    struct task_field *f = &fields[(*count)++];
    snprintf(f->name, sizeof f->name, "%.40s/%s", task, name);
    f->value = value;
    f->is_count = is_count;
}

/* The name of the error of exact_match,FILTER is exact_match_stderr,FILTER. */
static void add_error(struct task_field *fields, int *count, const char *task,
                      const struct task_result *r)
{
    char name[TASK_RESULT_NAME_BYTES + 8];
    int metric = (int)strcspn(r->name, ",");
    snprintf(name, sizeof name, "%.*s_stderr%s", metric, r->name, r->name + metric);
    add_field(fields, count, task, name, r->standard_error, false);
}

status task_set_run(const struct task_set *set, const struct task_model *m, FILE *samples,
                    struct task_field *fields, int *count)
{
    *count = 0;
    for (int i = 0; i < set->count; i++) {
        struct task_report report;
        const char *name = task_get_config(set->tasks[i])->name;
        TRY(task_run(m, set->tasks[i], samples, &report));
        if (report.stopped) {
            *count = 0;
            return STATUS_OK;
        }
        for (int r = 0; r < report.count; r++) {
            add_field(fields, count, name, report.results[r].name, report.results[r].value, false);
            add_error(fields, count, name, &report.results[r]);
        }
        add_field(fields, count, name, "documents", (double)report.documents, true);
        add_field(fields, count, name, "truncated", (double)report.truncated, true);
    }
    return STATUS_OK;
}

bool task_set_has_metric(const struct task_set *set, const char *name)
{
    size_t task_bytes = strcspn(name, "/");
    for (int i = 0; i < set->count && name[task_bytes] == '/'; i++) {
        const struct task_config *c = task_get_config(set->tasks[i]);
        if (strlen(c->name) != task_bytes || memcmp(c->name, name, task_bytes) != 0) {
            continue;
        }
        for (int k = 0; k < c->metric_count * c->filter_count; k++) {
            char known[TASK_RESULT_NAME_BYTES];
            task_config_result_name(c, k / c->metric_count, k % c->metric_count, known);
            if (strcmp(known, name + task_bytes + 1) == 0) {
                return true;
            }
        }
    }
    return false;
}

void task_set_close(struct task_set *set)
{
    for (int i = 0; i < set->count; i++) {
        task_close(&set->tasks[i]);
    }
    set->count = 0;
}
