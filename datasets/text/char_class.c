#include "datasets/text/char_class.h"

#include <utf8proc.h>

#include "base/utf8.h"
#include "datasets/text/unicode_form.h"

static bool is_category(uint32_t code, utf8proc_category_t first, utf8proc_category_t last)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category >= first && category <= last;
}

bool char_class_is_number(uint32_t code)
{
    return is_category(code, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool char_class_is_punctuation(uint32_t code)
{
    return is_category(code, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool char_class_is_symbol(uint32_t code)
{
    return is_category(code, UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SO);
}

bool char_class_is_space(uint32_t code)
{
    return (code >= 0x1c && code <= 0x1f) || unicode_form_is_white_space(code);
}

uint32_t char_class_to_lower(uint32_t code)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}

uint32_t char_class_to_upper(uint32_t code)
{
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)code);
}

size_t char_class_read(const char *text, size_t bytes, uint32_t *code)
{
    size_t length = utf8_read(text, bytes, code);
    if (length == 0) {
        *code = 0xfffd;
    }
    return length > 0 ? length : 1;
}
