#include "trainer/cli/output/json_output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"

status json_output_print(json_t *report)
{
    char *text = report != NULL ? json_dumps(report, JSON_COMPACT) : NULL;
    json_decref(report);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for a line of JSON");
    puts(text);
    free(text);
    return STATUS_OK;
}

const char *json_output_format_count(int64_t value, char out[32])
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value);
    int written = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-') {
            out[written++] = ',';
        }
        out[written++] = digits[i];
    }
    out[written] = '\0';
    return out;
}

const char *json_output_scale_count(int64_t value, char out[32])
{
    return llabs(value) < 1000000 ? json_output_format_count(value, out)
                                  : text_scale_count((double)value, out);
}
