/* Fuzz target: the Jinja templates of published model folders. The parts of the input are
 * chat_template.jinja, which can be missing, and tokenizer_config.json. */
#include <stdlib.h>
#include <unistd.h>

#include "datasets/chat/chat.h"
#include "tests/fuzz/small_tokenizer.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 200};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    const struct tokenizer *tokenizer = small_tokenizer(TOKENIZER_BPE);
    struct fuzz_part file = fuzz_next_part(&data, &bytes);
    struct fuzz_part config = fuzz_next_part(&data, &bytes);
    const char *path = fuzz_write_file("chat_template.jinja", file.data, file.bytes);
    char *text = NULL;
    fuzz_write_file("tokenizer_config.json", config.data, config.bytes);
    if (file.bytes == 0) {
        unlink(path);
    }
    TRY(chat_read_jinja(fuzz_folder(), &text));
    if (text != NULL) {
        (void)chat_recognize_jinja(text, tokenizer);
    }
    free(text);
    return STATUS_OK;
}
