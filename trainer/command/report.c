#include "trainer/command/report.h"

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
