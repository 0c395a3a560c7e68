#include "datasets/text/alphabet.h"

#include "base/utf8.h"

#define PRINTABLE_BYTES 188

/* Returns whether the byte is printable in Latin-1 and therefore maps to itself. */
static bool is_printable(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

/* Returns the number of printable bytes below this one. ASCII has 94; the printable bytes of
 * Latin-1 follow. */
static int count_printable_below(int byte)
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
    int below = count_printable_below(byte);
    return is_printable(byte) ? below : PRINTABLE_BYTES + byte - below;
}

unsigned char alphabet_byte(int rank)
{
    if (rank < 94) {
        return (unsigned char)('!' + rank);
    }
    if (rank < PRINTABLE_BYTES) {
        int byte = 0xa1 + rank - 94;
        return (unsigned char)(byte + (byte >= 0xad ? 1 : 0));
    }
    int other = rank - PRINTABLE_BYTES; /* 0x00-0x20, 0x7f-0xa0, 0xad */
    return (unsigned char)(other < 33 ? other : other < 67 ? 0x7f + other - 33 : 0xad);
}

size_t alphabet_encode(const char *bytes, size_t length, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        uint32_t code =
            is_printable(byte) ? byte : 0x100u + (uint32_t)alphabet_rank(byte) - PRINTABLE_BYTES;
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
    for (size_t pos = 0; pos < length;) {
        uint32_t code = 0;
        size_t step = utf8_read(text + pos, length - pos, &code);
        pos += step;
        if (step > 0 && code < 0x100 && is_printable((int)code)) {
            out[used++] = (char)code;
        } else if (step > 0 && code >= 0x100 && code < 0x100 + 256 - PRINTABLE_BYTES) {
            out[used++] = (char)alphabet_byte((int)(code - 0x100) + PRINTABLE_BYTES);
        } else {
            return false;
        }
    }
    *out_length = used;
    return true;
}
