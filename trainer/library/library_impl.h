/* Internal declarations of the library. Only files of this folder include this header.
 *
 * An external function begins with library_begin_call and ends with library_end_call, which keep
 * the error and the warnings of the call for bm_error and bm_warning. */
#pragma once

#include <stdatomic.h>
#include <unistd.h>

#include "datasets/chat/chat.h"
#include "trainer/inference/generate.h"
#include "trainer/inference/prediction/text_batch.h"
#include "trainer/library/bireme.h"

struct bm_model {
    char path[FILE_PATH_BYTES];
    struct comm *world;
    struct session session;
    bool has_source;                /* the model is an encoder-decoder */
    struct text_batch batch;        /* the input of a prediction; unused with has_source */
    struct chat_template *template; /* opened by the first call of bm_chat */
    bm_end end;                     /* of the last generated text */
    pid_t process;                  /* that opened the model */
    _Atomic(uintptr_t) user; /* address of thread_mark of the thread that uses the model; 0: none */
    int depth;               /* nested calls of that thread, from its stream callback */
};

/* library_divert_messages - keep the messages of this thread for bm_error and bm_warning. */
void library_divert_messages(void);

/* library_begin_call - clear the messages of the last call and divert the messages of this call. */
void library_begin_call(void);

/* library_end_call - keep the error of the call, and end the diversion. */
bm_status library_end_call(status result);

/* library_begin_use - reserve the model for this thread, until library_end_use.
 *
 * Errors    STATUS_USAGE: no model, another thread uses it, or another process has opened it */
status library_begin_use(bm_model *m);

/* library_end_use - end the reservation of library_begin_use. */
void library_end_use(bm_model *m);

/* library_require_text - check the pointer and the length of a text.
 *
 * Errors    STATUS_USAGE */
status library_require_text(const char *text, size_t bytes);

/* library_require_tokenizer - check that there is a model and that it has a tokenizer.
 *
 * Errors    STATUS_USAGE, STATUS_DATA */
status library_require_tokenizer(const bm_model *m);

/* library_require_host - check that the model is not on a GPU.
 *
 * Errors    STATUS_UNAVAILABLE with the remedy */
status library_require_host(const bm_model *m);

/* library_require_single_stack - check that the model is not an encoder-decoder. `what` names the
 * result that such a model does not have.
 *
 * Errors    STATUS_UNAVAILABLE */
status library_require_single_stack(const bm_model *m, const char *what);

/* library_complete_source_options - set the options of an encoder-decoder that are not set yet.
 * Their values come from its generation_config.json, or else are the defaults of `bireme
 * translate`.
 *
 * Errors    as generation_config_complete */
status library_complete_source_options(const bm_model *m, int64_t max_new_tokens,
                                       struct generate_options *options);

/* library_require_ids - check that there is a model and that its vocabulary, of sources in an
 * encoder-decoder, contains all ids.
 *
 * Errors    STATUS_USAGE, STATUS_DATA */
status library_require_ids(const bm_model *m, const int32_t *ids, int64_t count);

/* library_encode - encode a text with the tokenizer's beginning token.
 *
 * Memory    appends to *ids
 * Errors    as library_require_tokenizer, library_require_text and tokenizer_encode */
status library_encode(const bm_model *m, const char *text, size_t bytes, bool special,
                      struct token_list *ids);
