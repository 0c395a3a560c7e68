/* The keys of config.json that only encoder-decoder models have. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "trainer/formats/huggingface/config_impl.h"
#include "trainer/setup/derive.h"

/* Sizes of the decoder that must equal sizes of the encoder. */
static const char *const equal_sizes[][2] = {
    {"encoder_attention_heads", "decoder_attention_heads"},
    {"encoder_ffn_dim", "decoder_ffn_dim"},
};

enum { EQUAL_SIZES = COUNT(equal_sizes), VOCABULARY_MAX = 1 << 24 };

static bool has_equal_sizes(const struct huggingface_architecture *architecture)
{
    return architecture->architecture != ARCHITECTURE_T5;
}

static bool has_scaled_embedding(const struct huggingface_architecture *architecture)
{
    return architecture->architecture == ARCHITECTURE_MARIAN ||
           architecture->architecture == ARCHITECTURE_MBART;
}

static status check_sizes(const struct config_document *c)
{
    for (int i = 0; i < EQUAL_SIZES; i++) {
        int64_t encoder, decoder;
        TRY(config_read_integer(c, equal_sizes[i][0], -1, &encoder));
        TRY(config_read_integer(c, equal_sizes[i][1], encoder, &decoder));
        REQUIRE(encoder < 0 || encoder == decoder, STATUS_UNAVAILABLE,
                "%s: %s is %" PRId64 " and %s is %" PRId64 "; only equal sizes are supported",
                c->path, equal_sizes[i][0], encoder, equal_sizes[i][1], decoder);
    }
    return STATUS_OK;
}

/* Reads whether encoder and decoder share a table of tokens. Two tables can have two sizes. */
static status read_sharing(const struct config_document *c, struct recipe *r)
{
    int64_t source = r->model.vocab_size, size = source;
    TRY(config_read_boolean(c, "share_encoder_decoder_embeddings", true,
                            &r->model.share_encoder_decoder_embeddings));
    if (!r->model.share_encoder_decoder_embeddings) {
        TRY(config_read_integer(c, "decoder_vocab_size", size, &size));
    }
    REQUIRE(size > 1 && size <= VOCABULARY_MAX, STATUS_DATA,
            "%s: decoder_vocab_size is %" PRId64 "; it must be from 2 to %d", c->path, size,
            (int)VOCABULARY_MAX);
    r->model.decoder_vocab_size = size != source ? size : 0;
    return STATUS_OK;
}

/* Warns about layers that transformers skips at random in training, and only there. */
static status check_layerdrop(const struct config_document *c)
{
    static const char *const keys[] = {"encoder_layerdrop", "decoder_layerdrop"};
    for (int i = 0; i < COUNT(keys); i++) {
        double rate;
        TRY(config_read_number(c, keys[i], 0, &rate));
        if (rate != 0) {
            log_warning("LAYERDROP", "%s: %s is %g, but Bireme skips no layers in training",
                        c->path, keys[i], rate);
        }
    }
    return STATUS_OK;
}

/* T5 1.0 divides the outputs of the decoder, T5 1.1 does not. Before transformers 5, the key
 * tie_word_embeddings distinguished them. MT5 never divides. */
static status read_output_scale(const struct config_document *c,
                                const struct huggingface_architecture *architecture,
                                struct recipe *r)
{
    bool scaled, tied = r->model.tie_word_embeddings;
    bool is_t5 = strcmp(architecture->model_type, "t5") == 0;
    TRY(config_read_boolean(c, "scale_decoder_outputs", is_t5 && tied, &scaled));
    r->model.scale_decoder_outputs = scaled ? RECIPE_TRUE : RECIPE_FALSE;
    return STATUS_OK;
}

status config_read_seq2seq(const struct config_document *c,
                           const struct huggingface_architecture *architecture, struct recipe *r)
{
    int64_t start = architecture->decoder_start;
    if (architecture->architecture == ARCHITECTURE_MARIAN) {
        REQUIRE(r->model.tie_word_embeddings, STATUS_UNAVAILABLE,
                "%s: tie_word_embeddings: false is not supported", c->path);
        TRY(read_sharing(c, r));
    }
    int64_t vocabulary = derive_decoder_vocabulary(r, r->model.vocab_size);
    TRY(config_read_integer(c, "decoder_start_token_id", start, &start));
    bool is_none = start == -1 && architecture->decoder_start == -1;
    REQUIRE(is_none || (start >= 0 && start < vocabulary), STATUS_DATA,
            "%s: decoder_start_token_id is %" PRId64
            "; the token ids of the model are 0 to %" PRId64,
            c->path, start, vocabulary - 1);
    r->model.decoder_start_token_id = start;
    if (has_scaled_embedding(architecture)) {
        TRY(config_read_boolean(c, "scale_embedding", false, &r->model.scale_embedding));
    }
    if (!has_equal_sizes(architecture)) {
        return read_output_scale(c, architecture, r);
    }
    TRY(check_layerdrop(c));
    return check_sizes(c);
}

void config_write_seq2seq(FILE *file, const struct huggingface_architecture *architecture,
                          const struct recipe *r)
{
    fprintf(file, "  \"is_encoder_decoder\": true,\n");
    if (has_scaled_embedding(architecture)) {
        fprintf(file, "  \"scale_embedding\": %s,\n", r->model.scale_embedding ? "true" : "false");
    }
    if (architecture->architecture == ARCHITECTURE_MARIAN) {
        fprintf(file, "  \"static_position_embeddings\": true,\n");
        fprintf(file, "  \"share_encoder_decoder_embeddings\": %s,\n",
                r->model.share_encoder_decoder_embeddings ? "true" : "false");
        config_write_integer(file, "decoder_vocab_size",
                             derive_decoder_vocabulary(r, r->model.vocab_size));
    }
    if (has_equal_sizes(architecture)) {
        config_write_integer(file, equal_sizes[0][1], r->model.num_heads);
        config_write_integer(file, equal_sizes[1][1], r->model.intermediate_size);
        return;
    }
    fprintf(file, "  \"scale_decoder_outputs\": %s,\n",
            r->model.scale_decoder_outputs == RECIPE_TRUE ? "true" : "false");
}
