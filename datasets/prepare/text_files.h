/* Reads documents from plain text files and from rows. */
#pragma once

#include "base/status.h"
#include "datasets/prepare/input.h"

/* text_files_read - pass the documents of a text file, or the field "text" of every row, to
 * the splitter.
 *
 * With a byte-level tokenizer, the bytes of a file that is not UTF-8 are passed on unchanged, and a
 * warning is logged.
 *
 * Memory    independent of the file size and of the line length; for rows the largest row
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA if the file is not text, or not UTF-8
 *           and the tokenizer not byte-level; STATUS_USAGE for columns or a delimiter of plain
 *           text; as the splitter */
status text_files_read(struct prepare_input *in, const char *path);
