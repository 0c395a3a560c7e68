/* Reads documents from JSON Lines. */
#pragma once

#include "base/status.h"
#include "datasets/prepare/input.h"

/* jsonl_documents_read - pass the field "text" of every row to the splitter as one document.
 *
 * Errors    as jsonl_read and the splitter */
status jsonl_documents_read(struct prepare_input *in, const char *path);
