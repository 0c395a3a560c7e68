/* Reader of SQuAD's own JSON (versions 1.1 and 2.0): {"data": [{"paragraphs": [{"context": ...,
 * "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}. Other fields
 * are ignored.
 *
 * Each question becomes a row, as in the data set of the Hugging Face Hub: "id", "question",
 * "context" and "answers" with the lists "text" and "answer_start". The file is read in blocks, one
 * paragraph at a time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/rows/file_reader.h"
#include "datasets/rows/jsonl.h"

/* squad_detect - set *out to whether the data begins as such a file: the first list of an object is
 * "data", and it contains objects. The bytes stay unread.
 *
 * Errors    as input_read */
status squad_detect(struct input *in, bool *out);

/* squad_read_open - call `use` for every question of an open file, in order; the caller closes it.
 *
 * A question is bad if it lacks a field or if `use` rejects it; a paragraph is bad if it is not
 * valid JSON (see jsonl_read). row->line is the line on which the paragraph begins.
 *
 * Units     adds the file's size in bytes to *bytes
 * Memory    the largest paragraph (at most 64 MiB) and its parsed form
 * Errors    as jsonl_read; STATUS_DATA: the text around the paragraphs is not valid JSON */
status squad_read_open(struct file_reader *r, struct jsonl_bad_rows *bad, int64_t *bytes,
                       status (*use)(void *user, struct jsonl_row *row), void *user);
