/* Exports checkpoints to GGUF files, which llama.cpp and programs based on it load. */
#pragma once

#include "trainer/formats/gguf/gguf.h"
#include "trainer/formats/huggingface/huggingface.h"

/* gguf_export - convert a checkpoint of any parallel layout to a GGUF file with its tokenizer and
 * chat template. The checkpoint is verified first, and adapters are merged.
 *
 * Matrices of blocks and the token table have the given type. Norms, biases and position tables are
 * f32. With GGUF_Q4_0 the token table and the output matrix are q8_0. A matrix with rows that are
 * not a multiple of 32 is f16 instead of q8_0 or q4_0.
 *
 * Memory    one tensor in f32, and once more in its type
 * Errors    as export_source_open; STATUS_UNAVAILABLE for a model or tokenizer that
 *           llama.cpp does not have; STATUS_CREATE if output exists; STATUS_WRITE */
status gguf_export(const char *checkpoint, const char *output, enum gguf_type type,
                   struct huggingface_summary *summary);
