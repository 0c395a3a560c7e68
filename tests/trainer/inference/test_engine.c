/* Continuous batching: a sequence has the same tokens, log-probabilities and text alone and next to
 * others that arrive, end and are cancelled at other times. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "tests/trainer/inference/small_model.h"
#include "trainer/inference/engine.h"
#include "trainer/inference/log_likelihood.h"

enum { POSITIONS = 32, SEQUENCES = 40, TOKENS_MAX = 64, CHUNK = 5 };

/* The output of a sequence. */
struct record {
    struct small_model *f;
    struct generate_options options;
    struct token_list prompt;
    int32_t ids[TOKENS_MAX];
    double log_probabilities[TOKENS_MAX];
    int count, prompt_count;
    double prompt_log_probabilities[TOKENS_MAX];
    char text[4 * TOKENS_MAX];
    size_t bytes;
    enum engine_end end;
};

static void open_model(struct small_model *m)
{
    struct model_config config = {
        .architecture = "gpt2",
        .layers = 2,
        .width = 48,
        .heads = 3,
        .inner = 80,
        .positions = POSITIONS,
        .vocabulary = SMALL_MODEL_VOCABULARY,
        .activation = ACTIVATION_GELU_TANH,
        .norm_epsilon = 1e-5f,
        .initializer_range = 0.2f,
        .tied = true,
    };
    small_model_create(&config, 64, m);
    CHECK_OK(model_init_weights(m->model, 3, 1));
    CHECK_OK(model_sync_bf16(m->model));
}

static status receive_token(void *user, const struct engine_token *token)
{
    struct record *r = user;
    CHECK(token->top_count == 3);
    CHECK(token->top_log_probabilities[0] >= token->top_log_probabilities[1]);
    CHECK(token->top_log_probabilities[0] >= token->log_probability);
    if (token->is_prompt) {
        CHECK_EQUAL(token->id, r->prompt.ids[r->prompt_count + 1]);
        r->prompt_log_probabilities[r->prompt_count++] = token->log_probability;
        return STATUS_OK;
    }
    CHECK(r->count < TOKENS_MAX);
    r->ids[r->count] = token->id;
    r->log_probabilities[r->count++] = token->log_probability;
    return STATUS_OK;
}

static void receive_text(void *user, const char *text, size_t bytes)
{
    struct record *r = user;
    CHECK(r->bytes + bytes <= sizeof r->text);
    memcpy(r->text + r->bytes, text, bytes);
    r->bytes += bytes;
}

/* Sequence `index`: a prompt of 1 to 31 tokens and settings of one of several kinds. */
static void make_record(struct record *r, struct small_model *f, int index)
{
    uint64_t key = random_key(11, RANDOM_TEST, (uint64_t)index, 0);
    int64_t length = 1 + (int64_t)random_below(key, 0, POSITIONS - 1);
    *r = (struct record){.f = f};
    CHECK_OK(token_list_reserve(&r->prompt, length));
    for (int64_t i = 0; i < length; i++) {
        r->prompt.ids[r->prompt.count++] = (int32_t)random_below(key, 1 + (uint64_t)i, 256);
    }
    r->options = (struct generate_options){
        .sampler = {.temperature = index % 4 == 0 ? 0 : 1.5,
                    .top_k = index % 5 == 1 ? 7 : 0,
                    .top_p = index % 3 == 2 ? 0.8 : 1,
                    .repetition_penalty = index % 7 == 3 ? 1.3 : 1,
                    .seed = (uint64_t)(index / 2)},
        .max_new_tokens = 1 + (int64_t)random_below(key, 99, 40),
        .num_beams = 1,
        .num_samples = 1,
        .stops = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "kl", "mn", "\t", "0", "1",
                  "2"},
        .stop_count = index % 6 == 5 ? GENERATE_STOPS_MAX : 0,
        .slide = index % 2 == 0,
        .use_cache = true,
        .chunk_tokens = CHUNK,
    };
}

static void add_record(struct engine *e, struct record *r, int index, int64_t *slot)
{
    const struct engine_request request = {
        .prompt = &r->prompt,
        .options = &r->options,
        .sample = (uint64_t)index,
        .has_log_probabilities = true,
        .has_prompt_log_probabilities = index % 3 == 0,
        .top_count = 3,
        .receive_token = receive_token,
        .stream = receive_text,
        .user = r,
    };
    CHECK_OK(engine_add(e, &request, slot));
}

static struct engine *make_engine(struct small_model *f, int64_t slots)
{
    const struct engine_limits limits = {.slots = slots,
                                         .max_tokens = POSITIONS,
                                         .chunk_tokens = CHUNK,
                                         .use_cache = true,
                                         .has_prompt_log_probabilities = true};
    struct engine *e = NULL;
    CHECK_OK(engine_create(f->kernels, f->model, f->tokenizer, &limits, &e));
    return e;
}

static void run_alone(struct small_model *f, struct record *r, int index)
{
    struct engine *e = make_engine(f, 1);
    int64_t slot = -1, none = 0;
    struct record other = *r;
    add_record(e, r, index, &slot);
    add_record(e, &other, index, &none);
    CHECK(slot == 0 && none == -1); /* no free slot */
    while (engine_is_running(e)) {
        CHECK_OK(engine_read_prompts(e, 1));
        CHECK_OK(engine_advance(e));
    }
    r->end = engine_get_end(e, slot);
    engine_destroy(&e);
}

/* The new tokens, end and text are the same as in generate_run. */
static void compare_with_generate(struct small_model *f, const struct record *r, int index)
{
    struct generate_options options = r->options;
    struct generate_output output = {0};
    char *text = NULL;
    size_t bytes = 0;
    options.first_sequence = index;
    CHECK_OK(generate_run(f->kernels, f->model, f->tokenizer, &r->prompt, 1, &options, NULL, NULL,
                          &output));
    CHECK_EQUAL(output.tokens.count, r->count - (r->end == ENGINE_END_TOKEN));
    CHECK(memcmp(output.tokens.ids, r->ids, (size_t)output.tokens.count * sizeof *r->ids) == 0);
    CHECK(output.ended == (r->end != ENGINE_LENGTH));
    CHECK_OK(generate_decode(f->tokenizer, &options, &output, &text, &bytes));
    CHECK(output.stopped == (r->end == ENGINE_STOP));
    CHECK(bytes == r->bytes && memcmp(text, r->text, bytes) == 0);
    free(text);
    token_list_free(&output.tokens);
}

/* The log-probabilities of the prompt equal the results of log_likelihood_run, up to rounding. */
static void compare_prompt(struct small_model *f, const struct record *r)
{
    double expected[TOKENS_MAX];
    const struct log_likelihood_item item = {r->prompt.ids, r->prompt.count, r->prompt.count - 1,
                                             expected};
    struct log_likelihood_result result;
    if (r->prompt.count < 2) {
        return;
    }
    CHECK_OK(log_likelihood_run(f->kernels, f->model, 64, &item, 1, &result));
    for (int64_t i = 0; i + 1 < r->prompt.count; i++) {
        CHECK_NEAR(r->prompt_log_probabilities[i], expected[i], 1e-4);
    }
}

static void compare_records(const struct record *a, const struct record *b)
{
    CHECK_EQUAL(a->count, b->count);
    CHECK_EQUAL(a->end, b->end);
    CHECK_EQUAL(a->prompt_count, b->prompt_count);
    CHECK(memcmp(a->ids, b->ids, sizeof a->ids) == 0);
    CHECK(memcmp(a->log_probabilities, b->log_probabilities, sizeof a->log_probabilities) == 0);
    CHECK(memcmp(a->prompt_log_probabilities, b->prompt_log_probabilities,
                 sizeof a->prompt_log_probabilities) == 0);
    CHECK(a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0);
}

/* Runs all sequences in `slots` slots. Every fifth one runs twice: it is cancelled, then added
 * again. */
static void run_together(struct small_model *f, const struct record *alone, int64_t slots)
{
    static struct record together[SEQUENCES];
    struct engine *e = make_engine(f, slots);
    int owner[64], next = 0, ended = 0;
    bool is_cancelled[SEQUENCES] = {false};
    memset(owner, -1, sizeof owner);
    CHECK(slots <= 64);
    for (int pass = 0; ended < SEQUENCES; pass++) {
        int64_t slot = 0;
        for (int arrivals = 0; arrivals < 3 && next < SEQUENCES && slot >= 0; arrivals++) {
            make_record(&together[next], f, next);
            add_record(e, &together[next], next, &slot);
            if (slot >= 0) {
                owner[slot] = next++;
            } else {
                token_list_free(&together[next].prompt);
            }
        }
        CHECK_OK(engine_read_prompts(e, 1));
        CHECK_OK(engine_advance(e));
        for (int64_t i = 0; i < slots; i++) {
            int index = owner[i];
            if (index >= 0 && index % 5 == 4 && pass % 7 == 6 && !is_cancelled[index]) {
                is_cancelled[index] = true;
                engine_remove(e, i);
                token_list_free(&together[index].prompt);
                make_record(&together[index], f, index);
                add_record(e, &together[index], index, &slot);
                owner[i] = -1;
                owner[slot] = index;
            } else if (index >= 0 && engine_get_end(e, i) != ENGINE_RUNS) {
                together[index].end = engine_get_end(e, i);
                engine_remove(e, i);
                owner[i] = -1;
                ended++;
            }
        }
        CHECK(pass < 10000);
    }
    engine_destroy(&e);
    for (int i = 0; i < SEQUENCES; i++) {
        compare_records(&together[i], &alone[i]);
        token_list_free(&together[i].prompt);
    }
}

static void test_errors(struct small_model *f, struct record *r)
{
    struct engine *e = make_engine(f, 1);
    int64_t slot = 0;
    struct record full = *r;
    int32_t ids[POSITIONS] = {0};
    full.prompt = (struct token_list){ids, POSITIONS, POSITIONS};
    full.options.max_new_tokens = 1;
    const struct engine_request request = {.prompt = &full.prompt, .options = &full.options};
    CHECK_FAILS(engine_add(e, &request, &slot), STATUS_USAGE, "leaves no room");
    status_clear();
    full.options.max_new_tokens = 0; /* only the prompt is read */
    CHECK_OK(engine_add(e, &request, &slot));
    while (engine_is_running(e)) {
        CHECK_OK(engine_read_prompts(e, 1));
    }
    CHECK_EQUAL(engine_get_end(e, slot), ENGINE_LENGTH);
    engine_destroy(&e);
}

int main(void)
{
    struct small_model f = {0};
    static struct record alone[SEQUENCES];
    int ends[4] = {0};
    open_model(&f);
    for (int i = 0; i < SEQUENCES; i++) {
        make_record(&alone[i], &f, i);
        run_alone(&f, &alone[i], i);
        compare_with_generate(&f, &alone[i], i);
        if (i % 3 == 0) {
            compare_prompt(&f, &alone[i]);
        }
        ends[alone[i].end]++;
    }
    CHECK(ends[ENGINE_STOP] > 0 && ends[ENGINE_LENGTH] > 0); /* the cases occur */
    run_together(&f, alone, 3);
    run_together(&f, alone, 20); /* more than KERNELS_FEW_ROWS */
    test_errors(&f, &alone[0]);
    for (int i = 0; i < SEQUENCES; i++) {
        token_list_free(&alone[i].prompt);
    }
    small_model_destroy(&f);
    return 0;
}
