/* Imports GGUF files of llama.cpp. */
#pragma once

#include "trainer/formats/huggingface/huggingface.h"

/* gguf_is_file - return whether the path is a regular file that begins with "GGUF". */
bool gguf_is_file(const char *path);

/* gguf_import - convert a GGUF file to a checkpoint of weights only, as huggingface_import does for
 * model folders. q8_0 and q4_0 are converted to f32.
 *
 * Writes a model folder with a temporary name next to output, imports it and removes it.
 *
 * Memory    the largest tensor in f32, twice
 * Errors    as gguf_open; STATUS_UNAVAILABLE for a model, tokenizer or tensor type that is
 *           not supported; errors of huggingface_import */
status gguf_import(const char *path, const char *objective, const char *output, char *const *tokens,
                   int token_count, struct recipe *recipe, struct huggingface_summary *summary);
