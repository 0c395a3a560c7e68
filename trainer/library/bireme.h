/* bireme.h - C interface to a model trained by Bireme: tokenization, streaming text generation,
 * chat, translation, logits, log-probabilities, sentence embeddings, labels, masked words and
 * answers.
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
 * A function that fails returns the exit code of the `bireme` program for this error, and
 * bm_error() returns the reason. A required argument that is NULL is such an error (BM_USAGE). The
 * library prints nothing and does not end the process. Text is UTF-8 and need not end with a NUL
 * byte. Byte-level tokenizers accept and return any bytes.
 *
 * Memory    the caller frees every output with bm_free(); after a failure there is nothing to free
 * Order     one thread at a time may use a model; a concurrent call from another thread returns
 *           BM_USAGE. Any thread may call bm_encode and bm_decode. Threads may use different
 *           models concurrently. A model with several threads cannot be used after fork().
 * Numerics  equal calls return bit-identical results on one machine with one number of threads
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
    BM_DATA = 65,        /* invalid text or tokenizer, or a model that does not support the call */
    BM_NO_INPUT = 66,    /* the checkpoint does not exist */
    BM_UNAVAILABLE = 69, /* not available in this build or on this machine */
    BM_INTERNAL = 70,    /* out of memory, or a bug */
    BM_PERMISSION = 77,  /* no permission to read a file */
    BM_RECIPE = 78,      /* an invalid recipe setting */
    BM_NOT_FINITE = 79,  /* the weights contain NaN or infinity */
    BM_CHECKPOINT = 80   /* checkpoints exist, but none is usable */
} bm_status;

/* bm_version - return the version of the linked library, for example "0.1.0". */
BM_API const char *bm_version(void);

/* bm_error - return the reason why this thread's last call failed; "" if it succeeded.
 *
 * Memory    valid until this thread's next call */
BM_API const char *bm_error(void);

/* bm_warning - return the warnings of this thread's last call, one per line, such as
 * "... [W-LENGTH]"; "" if there was none. docs/reference/warnings.md lists them.
 *
 * Memory    valid until this thread's next call */
BM_API const char *bm_warning(void);

/* bm_free - free memory that a function of this library returned; NULL is allowed. */
BM_API void bm_free(void *memory);

/* ---- a model ---- */

typedef struct bm_model bm_model;

/* bm_model_open - load a model from a checkpoint.
 *
 * `checkpoint` is a run folder, its checkpoints/ folder, one checkpoint or final/, as for
 * `bireme generate --checkpoint`. `settings` is NULL or a list of overrides of the recipe that ends
 * with NULL, such as "train.precision=fp32" or "parallel.threads=1".
 *
 * Memory    the caller closes *out with bm_model_close(); *out is NULL after a failure
 * Errors    BM_NO_INPUT, BM_PERMISSION, BM_CHECKPOINT, BM_DATA, BM_RECIPE, BM_UNAVAILABLE */
BM_API bm_status bm_model_open(const char *checkpoint, const char *const *settings, bm_model **out);

/* bm_model_close - free a model and set *model to NULL; model and *model may be NULL. */
BM_API void bm_model_close(bm_model **model);

/* With two vocabularies, `vocabulary` and `end_token` belong to the vocabulary of the targets. */
typedef struct bm_model_facts {
    int64_t parameters; /* number of weights */
    int64_t vocabulary; /* generated ids are in [0, vocabulary) */
    int64_t positions;  /* maximum length of a sequence in tokens */
    int64_t width;      /* elements of a sentence embedding */
    int32_t end_token;  /* end-of-sequence token; -1: the tokenizer has none */
} bm_model_facts;

/* bm_model_facts_of - return the sizes of a model and its end-of-sequence token; zeros for NULL. */
BM_API bm_model_facts bm_model_facts_of(const bm_model *model);

/* bm_model_checkpoint - return the folder of the checkpoint that bm_model_open has selected, such
 * as "runs/mine/checkpoints/step-00000200"; "" for NULL.
 *
 * Memory    valid until the model is closed */
BM_API const char *bm_model_checkpoint(const bm_model *model);

/* ---- tokens ---- */

/* bm_encode - convert text to token ids.
 *
 * The ids start with the beginning-of-sequence token if the tokenizer adds one. If `special` is not
 * 0, names of special tokens in the text become these tokens. With an encoder-decoder, the text is
 * a source: the ids include its end token or its other special tokens, and `special` has no effect.
 *
 * Memory    the caller frees *ids with bm_free()
 * Errors    BM_DATA: no tokenizer, or a character-level tokenizer does not have a character */
BM_API bm_status bm_encode(const bm_model *model, const char *text, size_t bytes, int special,
                           int32_t **ids, int64_t *count);

/* bm_decode - convert token ids to text, without special tokens. With two vocabularies, the ids are
 * ids of targets.
 *
 * Memory    the caller frees *text with bm_free(); a NUL byte follows the *bytes bytes
 * Errors    BM_DATA: the model has no tokenizer, or an id is outside the vocabulary */
BM_API bm_status bm_decode(const bm_model *model, const int32_t *ids, int64_t count, char **text,
                           size_t *bytes);

/* ---- text generation with a causal model or an encoder-decoder ----
 *
 * The prompt of an encoder-decoder is its source, and the text is the target. */

/* Each comment starts with the default. */
typedef struct bm_generate_options {
    int64_t max_new_tokens;    /* 100 */
    double temperature;        /* 1; 0: always the most probable token */
    int64_t top_k;             /* 0: all tokens */
    double top_p;              /* 1: all tokens */
    double repetition_penalty; /* 1: none */
    int64_t num_beams;         /* 1: no beam search. Beam search does not sample; it streams once */
    double length_penalty;     /* 1; used by beam search only */
    uint64_t seed;             /* 0; seed of the random numbers */
    const char *const *stops;  /* NULL; stop strings, terminated by NULL: text ends before them */
    int slide; /* 1: a text longer than the model's positions continues on the last half of them;
                * 0: it ends there, with a warning (W-LENGTH). Beam search always ends there */
} bm_generate_options;

/* bm_generate_defaults - return the default options. They are the defaults of `bireme generate` for
 * a causal model. */
BM_API bm_generate_options bm_generate_defaults(void);

/* Receives new bytes of the text as they become available, in whole characters, without a NUL byte
 * at the end. A return value other than 0 ends the text. It may call other functions with the
 * model, but cannot close it. */
typedef int bm_stream(void *user, const char *text, size_t bytes);

/* bm_generate - generate the text that follows the given ids; the text does not include them.
 *
 * With options NULL the defaults apply. The defaults of an encoder-decoder are temperature 0 and
 * the settings of its generation_config.json. The forced and forbidden tokens and the minimum
 * length of this file always apply. With count 0 a causal model generates the text from its
 * beginning.
 *
 * Memory    the caller frees *text with bm_free(); a NUL byte follows it. text and bytes may be
 *           NULL, for example if stream is used
 * Order     stream (or NULL) is called by this thread, before the function returns
 * Errors    BM_USAGE: an option is out of range, or the ids fill all positions of the model;
 *           BM_DATA: the model does not generate text, no tokenizer, or an id outside the
 *           vocabulary; BM_NOT_FINITE */
BM_API bm_status bm_generate(bm_model *model, const int32_t *ids, int64_t count,
                             const bm_generate_options *options, bm_stream *stream, void *user,
                             char **text, size_t *bytes);

/* bm_generate_text - generate the text that follows a prompt text.
 *
 * The prompt is encoded as by bm_encode with special tokens. The other arguments and the errors are
 * the same as in bm_generate. */
BM_API bm_status bm_generate_text(bm_model *model, const char *prompt, size_t prompt_bytes,
                                  const bm_generate_options *options, bm_stream *stream, void *user,
                                  char **text, size_t *bytes);

/* A message of a conversation. */
typedef struct bm_message {
    const char *role; /* "system", "user" or "assistant" */
    const char *text;
    size_t bytes;
} bm_message;

/* bm_chat - generate the assistant's next message of a conversation.
 *
 * The chat template of the checkpoint's tokenizer makes the prompt. The text ends at the template's
 * end of turn; a target of an encoder-decoder ends at the end token. The other arguments are those
 * of bm_generate. Unlike `bireme chat`, the function never omits old messages.
 *
 * Errors    as bm_generate; BM_NO_INPUT: the tokenizer has no chat template; BM_USAGE: no
 *           message, or an unknown role; BM_DATA: the template cannot represent the messages */
BM_API bm_status bm_chat(bm_model *model, const bm_message *messages, int64_t count,
                         const bm_generate_options *options, bm_stream *stream, void *user,
                         char **text, size_t *bytes);

/* Options of bm_translate. Each comment starts with the default. -1, or NaN for length_penalty,
 * selects the value of generation_config.json in the checkpoint. Without this value, the number in
 * parentheses applies. */
typedef struct bm_translate_options {
    const char *source_prefix;    /* NULL; text before the source, such as a task of T5 */
    const char *source_lang;      /* NULL; language of the source, such as "en_XX" */
    const char *target_lang;      /* NULL; language of the target, such as "es_XX" or "es" */
    int64_t max_new_tokens;       /* -1 (128, at most the decoder's positions) */
    int64_t min_new_tokens;       /* -1 (0) */
    int64_t num_beams;            /* -1 (1: always the most probable token) */
    double length_penalty;        /* NaN (1); used by beam search only */
    int64_t no_repeat_ngram_size; /* -1 (0: no limit) */
    int early_stopping; /* 0; 1: beam search ends as soon as num_beams targets have ended */
} bm_translate_options;

/* bm_translate_defaults - return the default options of `bireme translate`. */
BM_API bm_translate_options bm_translate_defaults(void);

/* bm_translate - generate the target of a source with an encoder-decoder, as `bireme translate` and
 * `bireme summarize` do. An empty source has an empty target.
 *
 * With options NULL the defaults apply.
 *
 * Memory    the caller frees *text with bm_free(); a NUL byte follows the *bytes bytes
 * Errors    BM_USAGE: an option is out of range, the tokenizer has no such language, or the source
 *           has more tokens than the model has positions; BM_DATA: not an encoder-decoder, no
 *           tokenizer, or an invalid generation_config.json; BM_NOT_FINITE */
BM_API bm_status bm_translate(bm_model *model, const char *source, size_t source_bytes,
                              const bm_translate_options *options, char **text, size_t *bytes);

/* The reason why a generated text ended. */
typedef enum bm_end {
    BM_END_NONE = 0,  /* nothing was generated, or the last call failed */
    BM_END_TOKEN,     /* end-of-sequence token */
    BM_END_STOP,      /* stop string */
    BM_END_LENGTH,    /* max_new_tokens */
    BM_END_POSITIONS, /* the model's positions are full */
    BM_END_STREAM     /* bm_stream returned a value other than 0 */
} bm_end;

/* bm_generate_end - return why the last text of bm_generate, bm_generate_text, bm_chat or
 * bm_translate with this model ended. */
BM_API bm_end bm_generate_end(const bm_model *model);

/* bm_log_probabilities - compute out[i] = ln p(ids[i + 1] | ids[0], ..., ids[i]).
 *
 * Shapes    ids [count], out [count - 1]; 2 <= count <= positions + 1
 * Errors    BM_USAGE: count is out of range; BM_DATA: not a causal model, or an id outside the
 *           vocabulary; BM_UNAVAILABLE: an encoder-decoder; BM_NOT_FINITE */
BM_API bm_status bm_log_probabilities(bm_model *model, const int32_t *ids, int64_t count,
                                      double *out);

/* bm_logits - compute the logits of a causal or a masked language model, before the softmax.
 *
 * Row i of a causal model predicts ids[i + 1]. Row i of a masked model predicts ids[i].
 *
 * Shapes    ids [count], out [count, vocabulary]; 1 <= count <= positions
 * Errors    BM_DATA: count is out of range, an id is outside the vocabulary, or the model has a
 *           fine-tuning head; BM_UNAVAILABLE: the model is on a GPU or an encoder-decoder;
 *           BM_NOT_FINITE */
BM_API bm_status bm_logits(bm_model *model, const int32_t *ids, int64_t count, float *out);

/* ---- predictions for a text ----
 *
 * Texts must be valid UTF-8 without NUL bytes; bm_embed accepts other texts too. The functions
 * share these errors:
 *
 * Errors    BM_DATA: the objective of the model is another one, no tokenizer, an invalid text, or
 *           one without tokens or with more than the model's positions; BM_UNAVAILABLE: the model
 *           is on a GPU or an encoder-decoder; BM_NOT_FINITE */

/* bm_embed - compute the sentence embedding of a text, as `bireme embed` does.
 *
 * The embedding is the mean of the tokens' hidden states, scaled to unit length, so the dot product
 * of two embeddings is their cosine similarity. Models trained on pairs (objective embed)
 * separate meanings best.
 *
 * Shapes    out [width] */
BM_API bm_status bm_embed(bm_model *model, const char *text, size_t bytes, float *out);

typedef struct bm_label {
    const char *name; /* "3" for label 3 without a name; "" for a number */
    int64_t id;
    double score;      /* probability; with objective regress: the number */
    size_t begin, end; /* bytes [begin, end) of the text: a word, or the whole text */
} bm_label;

/* bm_classify - predict labels, as `bireme classify` does.
 *
 * The objective of the model selects the result. classify: labels of the text, or of the text and
 * `pair` if the model was trained on pairs. regress: one number. classify_tokens: labels of each
 * word. `pair` is NULL without a second text.
 *
 * Shapes    *labels [*count]: the top_k labels, the most probable first. With words: the labels of
 *           the first word, then the labels of the next one
 * Memory    the caller frees *labels with bm_free(); the names are part of the same block
 * Errors    those above; BM_USAGE: top_k < 1; BM_DATA: no second text, or objective choose */
BM_API bm_status bm_classify(bm_model *model, const char *text, size_t bytes, const char *pair,
                             size_t pair_bytes, int64_t top_k, bm_label **labels, int64_t *count);

typedef struct bm_token {
    int32_t id;
    double probability;
    const char *text; /* a NUL byte follows the `bytes` bytes */
    size_t bytes;
} bm_token;

/* bm_fill_mask - predict the masked words of a text, as `bireme fill-mask` does.
 *
 * Names of special tokens in the text, such as [MASK], become these tokens.
 *
 * Shapes    *tokens [*masks, the smaller of top_k and vocabulary], the most probable token first
 * Memory    the caller frees *tokens with bm_free(); the texts are part of the same block
 * Errors    those above; BM_USAGE: top_k < 1; BM_DATA: no mask token in the text */
BM_API bm_status bm_fill_mask(bm_model *model, const char *text, size_t bytes, int64_t top_k,
                              bm_token **tokens, int64_t *masks);

typedef struct bm_answer_span {
    size_t begin, end; /* bytes [begin, end) of the context; equal: it contains no answer */
    double probability;
} bm_answer_span;

/* bm_answer - find the answer to a question in a context, as `bireme answer` does.
 *
 * Errors    those above */
BM_API bm_status bm_answer(bm_model *model, const char *question, size_t question_bytes,
                           const char *context, size_t context_bytes, bm_answer_span *out);

#ifdef __cplusplus
}
#endif

#endif
