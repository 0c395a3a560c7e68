#include "trainer/cli/json_output.h"

#include <stdio.h>
#include <stdlib.h>

status report_print(json_t *report)
{
    char *text = report != NULL ? json_dumps(report, JSON_COMPACT) : NULL;
    json_decref(report);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for a line of JSON");
    puts(text);
    free(text);
    return STATUS_OK;
}

const char *report_count(int64_t value, char out[32])
{
    char plain[32];
    int length = snprintf(plain, sizeof plain, "%lld", (long long)value);
    int used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && plain[i - 1] != '-') {
            out[used++] = ',';
        }
        out[used++] = plain[i];
    }
    out[used] = '\0';
    return out;
}
