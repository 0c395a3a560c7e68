/* bireme.h - a model that Bireme trained, in a program of one's own: text to tokens and back, text from a prompt as it
 * comes, log-probabilities, vectors of texts.
 *
 *     bm_model *model = NULL;
 *     char *text = NULL;
 *     size_t bytes = 0;
 *     if (bm_model_open("runs/mine", NULL, &model) != BM_OK ||
 *         bm_generate_text(model, "The", 3, NULL, NULL, NULL, &text, &bytes) != BM_OK) {
 *         fprintf(stderr, "%s\n", bm_error());
 *     }
 *     bm_free(text);
 *     bm_model_close(&model);
 *
 *     cc program.c $(pkg-config --cflags --libs bireme)
 *
 * What fails returns the code that `bireme` would end with, and bm_error() says why. The library prints nothing and does
 * not end the process. Text is UTF-8 (tokenizers of bytes take and give any bytes) and need not end with a NUL.
 *
 * Memory    what a function hands out is the caller's, for bm_free; on failure there is nothing to free
 * Order     a model is used by one thread at a time; threads may use different models at once. The same call gives the
 *           same result, to the bit, on one machine with the same number of threads
 */
#ifndef BIREME_H
#define BIREME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BM_API __attribute__((visibility("default")))
#else
#define BM_API
#endif

typedef enum bm_status {
    BM_OK = 0,
    BM_USAGE = 64,       /* a wrong argument */
    BM_DATA = 65,        /* bad input: a text, a tokenizer; or a model that cannot do it */
    BM_NO_INPUT = 66,    /* the checkpoint does not exist */
    BM_UNAVAILABLE = 69, /* not in this build or not on this machine */
    BM_INTERNAL = 70,    /* memory ran out, or a bug */
    BM_PERMISSION = 77,  /* a file may not be read */
    BM_RECIPE = 78,      /* a wrong setting */
    BM_NOT_FINITE = 79,  /* the weights are damaged */
    BM_CHECKPOINT = 80   /* checkpoints exist and none is usable */
} bm_status;

/* bm_version - of the library that is linked: "0.1.0". */
BM_API const char *bm_version(void);

/* bm_error - why this thread's last call failed, in one sentence; "" where it did not. */
BM_API const char *bm_error(void);

/* bm_free - NULL is fine. */
BM_API void bm_free(void *memory);

/* ---- a model ---- */

typedef struct bm_model bm_model;

/* bm_model_open - a run folder, its checkpoints/, one of these, or final/, as `bireme generate --checkpoint` takes it.
 *
 * Shapes    settings: "section.key=value" of the recipe that differ here ("train.precision=fp32",
 *           "parallel.threads=1"), NULL behind the last; NULL: none
 * Errors    BM_NO_INPUT, BM_PERMISSION, BM_CHECKPOINT, BM_DATA, BM_RECIPE, BM_UNAVAILABLE; *out is NULL then */
BM_API bm_status bm_model_open(const char *checkpoint, const char *const *settings, bm_model **out);

/* bm_model_close - and *model = NULL; NULL is fine. */
BM_API void bm_model_close(bm_model **model);

/* Ids are below the vocabulary; a text has at most so many positions; a vector has width elements; end_token is what ends
 * a text, -1: the tokenizer has none. */
typedef struct bm_model_facts {
    int64_t parameters, vocabulary, positions, width;
    int32_t end_token;
} bm_model_facts;

BM_API bm_model_facts bm_model_facts_of(const bm_model *model);

/* ---- tokens ---- */

/* bm_encode - the ids of a text, behind the token that the tokenizer puts before each text where it has one.
 *
 * Units     special: not 0: names of special tokens in the text mean these tokens
 * Errors    BM_DATA: no tokenizer, or a character that a tokenizer of characters does not know */
BM_API bm_status bm_encode(const bm_model *model, const char *text, size_t bytes, int special,
                           int32_t **ids, int64_t *count);

/* bm_decode - the text of ids, a NUL behind it; special tokens are left out.
 *
 * Errors    BM_DATA: no tokenizer, or an id outside of the vocabulary */
BM_API bm_status bm_decode(const bm_model *model, const int32_t *ids, int64_t count, char **text,
                           size_t *bytes);

/* ---- text from a causal model ---- */

typedef struct bm_generate_options {
    int64_t max_new_tokens;    /* 100 */
    double temperature;        /* 1; 0: always the most probable token */
    int64_t top_k;             /* 0: all tokens */
    double top_p;              /* 1: all tokens */
    double repetition_penalty; /* 1: none */
    int64_t num_beams;         /* 1: none. Beams do not sample; their text comes in one piece */
    double length_penalty;     /* 1; of beams */
    uint64_t seed;             /* 0; of the draws */
    const char *const *stops;  /* a text ends before any of these, NULL behind the last; NULL */
} bm_generate_options;

/* bm_generate_defaults - the values in the comments above, those of `bireme generate`. */
BM_API bm_generate_options bm_generate_defaults(void);

/* New bytes of a text as they come, whole characters; not 0: end the text here. */
typedef int bm_stream(void *user, const char *text, size_t bytes);

/* bm_generate - what follows these ids, without them; options NULL: the defaults. No ids: a text from its beginning.
 *
 * Memory    text and bytes may be NULL, where the stream is all that is wanted
 * Order     stream (or NULL) is called by this thread, before the function returns
 * Errors    BM_USAGE: an option out of range, or no room behind the ids in the model's positions; BM_DATA: not a causal
 *           model, no tokenizer, or an id outside of the vocabulary; BM_NOT_FINITE */
BM_API bm_status bm_generate(bm_model *model, const int32_t *ids, int64_t count,
                             const bm_generate_options *options, bm_stream *stream, void *user,
                             char **text, size_t *bytes);

/* bm_generate_text - likewise behind a text, which is encoded with its special tokens. */
BM_API bm_status bm_generate_text(bm_model *model, const char *prompt, size_t prompt_bytes,
                                  const bm_generate_options *options, bm_stream *stream, void *user,
                                  char **text, size_t *bytes);

/* bm_log_probabilities - out[i] = ln p(ids[i + 1] | ids[0], ..., ids[i]).
 *
 * Shapes    ids [count], out [count - 1]; count is at least 2 and at most one more than the positions
 * Errors    BM_USAGE: count; BM_DATA: not a causal model, or an id outside of the vocabulary; BM_NOT_FINITE */
BM_API bm_status bm_log_probabilities(bm_model *model, const int32_t *ids, int64_t count,
                                      double *out);

/* ---- vectors ---- */

/* bm_embed - a text's vector of unit length, the mean of its tokens' hidden states, so that the product of two is their
 * cosine, as `bireme embed` has it. Any model will do; one trained on pairs tells meanings best.
 *
 * Shapes    out [width]
 * Errors    BM_DATA: no tokenizer, a text without a token, or with more than the model has positions; BM_UNAVAILABLE: the
 *           model is on a GPU; BM_NOT_FINITE */
BM_API bm_status bm_embed(bm_model *model, const char *text, size_t bytes, float *out);

#ifdef __cplusplus
}
#endif

#endif
