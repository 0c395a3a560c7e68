/* Fuzz target: chat templates. A template that is accepted encodes a conversation and is converted
 * to Jinja. */
#include <stdlib.h>

#include "datasets/chat/chat.h"
#include "tests/fuzz/small_tokenizer.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 200};

static status use_template(const struct chat_template *t, const struct tokenizer *tokenizer)
{
    struct chat_message messages[] = {{CHAT_SYSTEM, "be short", 8, NULL, 0},
                                      {CHAT_USER, "a question", 10, "with input", 10},
                                      {CHAT_ASSISTANT, "an answer <s>", 13, NULL, 0},
                                      {CHAT_USER, "", 0, NULL, 0}};
    struct chat_frame frame = {.add_generation_prompt = true};
    struct chat_text text = {0};
    char *jinja = NULL;
    size_t bytes = 0;
    status result = chat_encode(t, tokenizer, messages, 4, frame, &text);
    fuzz_require(result != STATUS_OK || text.ids.count == text.loss_mask.count,
                 "every token has a mask");
    if (result == STATUS_OK) {
        result = chat_jinja(t, tokenizer, &jinja, &bytes);
    }
    chat_text_free(&text);
    free(jinja);
    return result;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    const struct tokenizer *tokenizer = small_tokenizer(TOKENIZER_BPE);
    struct chat_template *t = NULL;
    fuzz_write_file(CHAT_FILE, data, bytes);
    TRY(chat_open(fuzz_folder(), tokenizer, &t));
    status result = use_template(t, tokenizer);
    chat_close(&t);
    return result;
}
