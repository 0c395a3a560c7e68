/* The common parts of writing (manifest.c) and reading (manifest_read.c) a manifest. */
#pragma once

#include "trainer/formats/checkpoint/manifest.h"

#define MANIFEST_FORMAT "bireme-checkpoint"
/* The text ends with this tail, in which %s is the digest of all bytes before the tail. */
#define MANIFEST_TAIL ",\n \"sha256\": \"%s\"\n}\n"
enum { MANIFEST_TAIL_BYTES = sizeof MANIFEST_TAIL - 1 - 2 + HASH_TEXT_BYTES - 1 };
enum { MANIFEST_FILE_SLASHES = 1 };

/* manifest_report_fault - format a fault into reason[MANIFEST_REASON_BYTES]; return false. */
bool manifest_report_fault(char *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* manifest_report_pending - move the pending error to reason, after `what`; return false. */
bool manifest_report_pending(const char *what, char *reason);
