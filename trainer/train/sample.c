#include "trainer/train/sample.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "trainer/inference/generate.h"
#include "trainer/setup/derive.h"

status sample_encode(const struct recipe *r, const struct tokenizer *tokenizer,
                     struct token_list *ids)
{
    TRY(generate_encode_prompt(tokenizer, r->generate.prompt, ids));
    if (ids->count >= r->data.sequence_length) {
        return recipe_raise(r, STATUS_RECIPE, "generate.prompt",
                            "%" PRId64 " tokens leave no room for a new token in "
                            "data.sequence_length (%" PRId64 "); shorten it",
                            ids->count, r->data.sequence_length);
    }
    return STATUS_OK;
}

int64_t sample_bytes(const struct recipe *r, const struct model_config *config, enum dtype dtype)
{
    bool samples = r->generate.prompt[0] != '\0';
    return samples ? generate_bytes(config, dtype, (int)r->parallel.tensor, r->data.sequence_length)
                   : 0;
}

/* The sample stays within data.sequence_length, for which the memory of the kernels is planned. */
static status generate_text(struct session *s, const struct token_list *prompt, char **out)
{
    const struct recipe *r = &s->recipe;
    int64_t room = r->data.sequence_length - prompt->count, rows = derive_rows(r);
    struct generate_options options = {
        .sampler = {.temperature = r->generate.temperature,
                    .top_p = 1,
                    .repetition_penalty = 1,
                    .seed = (uint64_t)r->seed},
        .max_new_tokens = r->generate.max_new_tokens < room ? r->generate.max_new_tokens : room,
        .num_beams = 1,
        .num_samples = 1,
        .length_penalty = 1,
        .use_cache = true,
        .chunk_tokens = rows < 256 ? rows : 256,
        .tensor_group = s->mesh.tensor,
    };
    struct generate_output output = {0};
    size_t bytes = 0;
    status result =
        generate_run(s->kernels, s->model, s->tokenizer, prompt, 1, &options, NULL, NULL, &output);
    if (result == STATUS_OK) {
        result = generate_decode(s->tokenizer, &options, &output, out, &bytes);
    }
    for (size_t i = 0; result == STATUS_OK && i < bytes; i++) {
        (*out)[i] = (*out)[i] == '\0' ? '?' : (*out)[i]; /* a NUL does not end the text */
    }
    token_list_free(&output.tokens);
    return result;
}

static status generate_from_recipe(struct session *s, char **out)
{
    struct token_list prompt = {0};
    status result =
        comm_abort_on_error(s->mesh.tensor, sample_encode(&s->recipe, s->tokenizer, &prompt));
    if (result == STATUS_OK) {
        result = generate_text(s, &prompt, out);
    }
    token_list_free(&prompt);
    return result;
}

status sample_run(struct job *job, status *written)
{
    char *text = NULL;
    double start = clock_seconds();
    TRY(sharded_optimizer_wait_all(job->optimizer));
    TRY(comm_agree(job->world, generate_from_recipe(&job->session, &text)));
    const struct metric fields[] = {
        metric_text("prompt", job->session.recipe.generate.prompt),
        metric_text("text", text),
        metric_number("seconds", clock_seconds() - start),
    };
    *written = job->metrics == NULL ? STATUS_OK
                                    : metrics_write(job->metrics, "sample", job->state.step, fields,
                                                    sizeof fields / sizeof fields[0]);
    free(text);
    return STATUS_OK;
}
