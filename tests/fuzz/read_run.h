/* Reads a run folder of one input: metrics.jsonl, a separator and recipe.yaml. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "trainer/logging/report/report.h"

/* read_run - read the history of the run folder.
 *
 * Memory    the caller calls history_free, also after an error */
static inline status read_run(const uint8_t *data, size_t bytes, struct history *out)
{
    struct fuzz_part metrics = fuzz_next_part(&data, &bytes);
    struct fuzz_part recipe = fuzz_next_part(&data, &bytes);
    fuzz_write_file("metrics.jsonl", metrics.data, metrics.bytes);
    const char *path = fuzz_write_file("recipe.yaml", recipe.data, recipe.bytes);
    if (recipe.bytes == 0) {
        unlink(path);
    }
    return history_read(fuzz_folder(), out);
}

/* write_run - read the run folder, write its text with a function, and check it with another one.
 *
 * write_text: its `bytes` are the bytes of the input. check_text: also runs after an error. */
static inline status write_run(const uint8_t *data, size_t bytes,
                               status (*write_text)(const struct history *run, size_t bytes,
                                                    FILE *file),
                               void (*check_text)(const char *text, size_t bytes))
{
    struct history *run = calloc(1, sizeof *run);
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    fuzz_require(run != NULL && file != NULL, "the test has memory");
    status result = read_run(data, bytes, run);
    if (result == STATUS_OK) {
        result = write_text(run, bytes, file);
    }
    fclose(file);
    check_text(text, length);
    history_free(run);
    free(run);
    free(text);
    return result;
}

/* require_no_controls - require that a text has no control characters except newlines. */
static inline void require_no_controls(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        unsigned char next = i + 1 < bytes ? (unsigned char)text[i + 1] : 0;
        bool control =
            (c < 0x20 && c != '\n') || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0);
        fuzz_require(!control, "the output contains no control characters");
    }
}
