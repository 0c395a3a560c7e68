#include "datasets/tokenizer/alphabet.h"

#include "datasets/tokenizer/pretokenise.h"

#define STANDS_FOR_ITSELF 188

static bool is_printable(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

/* Printable bytes below this one: 94 in ASCII, then those of Latin-1. */
static int printable_below(int byte)
{
    if (byte <= '!') {
        return 0;
    }
    if (byte <= '~') {
        return byte - '!';
    }
    if (byte <= 0xa1) {
        return 94;
    }
    return 94 + byte - 0xa1 - (byte > 0xad ? 1 : 0);
}

int32_t alphabet_rank(unsigned char byte)
{
    int below = printable_below(byte);
    return is_printable(byte) ? below : STANDS_FOR_ITSELF + byte - below;
}

unsigned char alphabet_byte(int rank)
{
    if (rank < 94) {
        return (unsigned char)('!' + rank);
    }
    if (rank < STANDS_FOR_ITSELF) {
        int byte = 0xa1 + rank - 94;
        return (unsigned char)(byte + (byte >= 0xad ? 1 : 0));
    }
    int other = rank - STANDS_FOR_ITSELF; /* 0x00-0x20, 0x7f-0xa0, 0xad */
    return (unsigned char)(other < 33 ? other : other < 67 ? 0x7f + other - 33 : 0xad);
}

size_t alphabet_encode(const char *bytes, size_t length, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        uint32_t code =
            is_printable(byte) ? byte : 0x100u + (uint32_t)alphabet_rank(byte) - STANDS_FOR_ITSELF;
        if (code < 0x80) {
            out[used++] = (char)code;
        } else {
            out[used++] = (char)(0xc0 | code >> 6);
            out[used++] = (char)(0x80 | (code & 0x3f));
        }
    }
    return used;
}

bool alphabet_decode(const char *text, size_t length, char *out, size_t *out_length)
{
    size_t used = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        size_t step = pretokenise_character(text + at, length - at, &code);
        at += step;
        if (step > 0 && code < 0x100 && is_printable((int)code)) {
            out[used++] = (char)code;
        } else if (step > 0 && code >= 0x100 && code < 0x100 + 256 - STANDS_FOR_ITSELF) {
            out[used++] = (char)alphabet_byte((int)(code - 0x100) + STANDS_FOR_ITSELF);
        } else {
            return false;
        }
    }
    *out_length = used;
    return true;
}
