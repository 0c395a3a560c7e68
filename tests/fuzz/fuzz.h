/* The common part of the fuzz targets (CONTRIBUTING.md, "Fuzzing").
 *
 * A target is one C file with fuzz_limits and fuzz_read. For each input, fuzz.c calls fuzz_read and
 * stops the program if a rule is broken:
 *
 * - An invalid input is an error with a message, never STATUS_INTERNAL.
 * - A message contains no control character.
 * - The allocated memory stays below fuzz_limits.
 *
 * With FUZZ_PRINT=1 in the environment it prints the result of each input. libFuzzer and the
 * sanitizers report crashes, leaks, undefined behavior and slow inputs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The largest amount of memory that fuzz_read may hold: bytes + factor * size of the input. */
struct fuzz_limits {
    size_t bytes, factor;
};

extern const struct fuzz_limits fuzz_limits;

/* fuzz_read - read one input with the parser under test and release everything.
 *
 * Returns   the status of the parser, pending as usual */
status fuzz_read(const uint8_t *data, size_t bytes);

/* fuzz_folder - return the path of an empty folder for the files of this process. */
const char *fuzz_folder(void);

/* fuzz_write_file - write a file of this name in fuzz_folder.
 *
 * Memory    the path is valid until the eighth further call */
const char *fuzz_write_file(const char *name, const void *data, size_t bytes);

/* A part of an input that stands for several files. The parts are separated by "\n@@@@\n". */
struct fuzz_part {
    const uint8_t *data;
    size_t bytes;
};

/* fuzz_next_part - remove the first part of an input and the separator after it. */
struct fuzz_part fuzz_next_part(const uint8_t **data, size_t *bytes);

/* fuzz_require - end the program with a report, unless the condition holds. */
void fuzz_require(bool condition, const char *rule);
