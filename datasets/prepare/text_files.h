/* Reads documents from plain text files and from JSON Lines. */
#pragma once

#include "base/status.h"
#include "datasets/prepare/input.h"

/* text_files_read - pass the documents of a text file to the splitter.
 *
 * Memory    independent of the file size and of the line length
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA if the file is not text; as the
 *           splitter */
status text_files_read(struct prepare_input *in, const char *path);

/* text_files_read_jsonl - pass the field "text" of every row of JSON Lines to the splitter as one
 * document.
 *
 * Errors    as jsonl_read and the splitter */
status text_files_read_jsonl(struct prepare_input *in, const char *path);
