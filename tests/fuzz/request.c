/* Fuzz target: requests of the server. The first byte selects the kind of request. */
#include "tests/fuzz/fuzz.h"
#include "trainer/inference/server/request_impl.h"

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 400};

/* Reads everything that the server reads. */
static void use_request(const struct request *q)
{
    const struct sampler_settings *s = &q->options.sampler;
    fuzz_require(s->temperature >= 0 && s->top_p >= 0 && s->top_p <= 1 && s->top_k >= 0 &&
                     s->repetition_penalty > 0,
                 "the settings of the sampler are in their ranges");
    fuzz_require(q->n >= 1 && q->n <= REQUEST_CHOICES_MAX && q->max_tokens >= -1 &&
                     q->top_logprobs >= -1 && q->top_logprobs <= REQUEST_TOP_MAX,
                 "the numbers are in their ranges");
    for (int64_t i = 0; i < q->prompt_count; i++) {
        const struct request_prompt *p = &q->prompts[i];
        fuzz_require(p->text != NULL || p->ids.count > 0, "a prompt has text or ids");
        fuzz_require(p->text == NULL || p->text[p->bytes] == '\0', "a text ends with NUL");
    }
    for (int64_t i = 0; i < q->message_count; i++) {
        fuzz_require(q->messages[i].role < CHAT_ROLES && q->messages[i].text != NULL,
                     "a message has a role and a text");
    }
    fuzz_require(q->kind == REQUEST_CHAT ? q->message_count > 0 : q->prompt_count > 0,
                 "a request has an input");
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct request q;
    const char *parameter = NULL;
    if (bytes == 0) {
        RAISE(STATUS_DATA, "the input is empty");
    }
    status result = request_parse((enum request_kind)(data[0] % REQUEST_KINDS),
                                  (const char *)data + 1, bytes - 1, &q, &parameter);
    if (result == STATUS_OK) {
        use_request(&q);
    }
    request_free(&q);
    return result;
}
