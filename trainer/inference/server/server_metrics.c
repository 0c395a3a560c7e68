#include "trainer/inference/server/server_metrics.h"

#include <stdio.h>
#include <stdlib.h>

static void write_metric(FILE *file, const char *name, const char *type, const char *help,
                         double value)
{
    fprintf(file, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, value);
}

static void write_responses(FILE *file, struct server_metrics *m)
{
    fprintf(file, "# HELP bireme_http_responses_total Responses by HTTP status.\n"
                  "# TYPE bireme_http_responses_total counter\n");
    for (int code = 0; code < SERVER_METRICS_CODES; code++) {
        long long count = atomic_load(&m->responses[code]);
        if (count > 0) {
            fprintf(file, "bireme_http_responses_total{code=\"%d\"} %lld\n", code, count);
        }
    }
}

/* Writes a sum of seconds and the number of its terms. */
static void write_seconds(FILE *file, const char *name, const char *help, long long microseconds,
                          long long count)
{
    fprintf(file, "# HELP %s %s\n# TYPE %s summary\n%s_sum %.6f\n%s_count %lld\n", name, help, name,
            name, 1e-6 * (double)microseconds, name, count);
}

status server_metrics_format(struct server_metrics *m, char **out, size_t *bytes)
{
    FILE *file = open_memstream(out, bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for the metrics");
    write_responses(file, m);
    write_metric(file, "bireme_prompt_tokens_total", "counter", "Tokens of the prompts.",
                 (double)atomic_load(&m->prompt_tokens));
    write_metric(file, "bireme_generation_tokens_total", "counter", "Generated tokens.",
                 (double)atomic_load(&m->generation_tokens));
    write_metric(file, "bireme_passes_total", "counter",
                 "Forward passes that extend the running sequences.",
                 (double)atomic_load(&m->passes));
    write_metric(file, "bireme_requests_cancelled_total", "counter",
                 "Requests that ended because the client closed the connection.",
                 (double)atomic_load(&m->cancelled));
    write_metric(file, "bireme_requests_open", "gauge", "Requests that wait or run.",
                 (double)atomic_load(&m->open));
    write_metric(file, "bireme_sequences_running", "gauge", "Sequences that are generated.",
                 (double)atomic_load(&m->running));
    write_metric(file, "bireme_sequences_waiting", "gauge", "Sequences that wait for a free slot.",
                 (double)atomic_load(&m->waiting));
    write_seconds(file, "bireme_time_to_first_token_seconds",
                  "Time from a request to its first token.",
                  atomic_load(&m->first_token_microseconds), atomic_load(&m->first_tokens));
    write_seconds(file, "bireme_request_seconds", "Time from a request to the end of its answer.",
                  atomic_load(&m->request_microseconds), atomic_load(&m->finished));
    bool has_failed = ferror(file) != 0;
    has_failed = fclose(file) != 0 || has_failed;
    if (has_failed) {
        free(*out);
        RAISE(STATUS_INTERNAL, "out of memory for the metrics");
    }
    return STATUS_OK;
}
