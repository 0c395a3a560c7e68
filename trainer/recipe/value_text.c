/* One value of a recipe: from the field in struct recipe back to a string. */
#include <inttypes.h>
#include <string.h>

#include "base/text.h"
#include "trainer/recipe/settings.h"

static bool is_safe(const char *text)
{
    static const char safe[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-*";
    char reason[TEXT_REASON_BYTES];
    double number;
    return strspn(text, safe) == strlen(text) && strchr("*-", text[0]) == NULL &&
           !text_to_number(text, &number, reason) && strcmp(text, "true") != 0 &&
           strcmp(text, "false") != 0 && strcmp(text, "null") != 0;
}

char *recipe_value_quote(const char *text, bool json, char *out)
{
    if (text[0] == '\0') {
        return strcpy(out, "null");
    }
    if (!json && is_safe(text)) {
        return strcpy(out, text);
    }
    char *to = out;
    *to++ = '"';
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            *to++ = '\\';
        }
        *to++ = *c;
    }
    *to++ = '"';
    *to = '\0';
    return out;
}

/* Writes a single entry, or several entries in brackets. */
static char *format_list(const struct setting *setting, const char *list, bool json, char *out)
{
    char entry[RECIPE_PATH_BYTES], quoted[2 * RECIPE_PATH_BYTES + 3];
    bool is_number = setting->kind == SETTING_LIST && setting->choices == NULL;
    bool several = strchr(list, ',') != NULL;
    size_t used = 0;
    for (const char *cursor = list; recipe_list_next(&cursor, entry, sizeof entry);) {
        const char *text = is_number ? entry : recipe_value_quote(entry, json, quoted);
        used += (size_t)snprintf(out + used, RECIPE_VALUE_BYTES - used, "%s%s",
                                 used > 0  ? ", "
                                 : several ? "["
                                           : "",
                                 text);
    }
    snprintf(out + used, RECIPE_VALUE_BYTES - used, "%s", several ? "]" : used == 0 ? "null" : "");
    return out;
}

static char *format_enum(const struct setting *setting, unsigned value, bool json, char *out)
{
    char text[CHOICES_BYTES];
    const char *choices[CHOICES_MAX];
    int count = recipe_value_choices(setting->choices, text, choices);
    unsigned index = setting->null != NULL ? value - 1 : value; /* null wraps around */
    return recipe_value_quote(index < (unsigned)count ? choices[index] : "", json, out);
}

char *recipe_value_format(const struct setting *setting, const struct recipe *recipe, bool json,
                          char *out)
{
    const void *field = (const char *)recipe + setting->offset;
    switch (setting->kind) {
    case SETTING_INTEGER: {
        int64_t value = *(const int64_t *)field;
        if (setting->null != NULL && value == (int64_t)setting->null_value) {
            return strcpy(out, "null");
        }
        snprintf(out, RECIPE_VALUE_BYTES, "%" PRId64, value);
        return out;
    }
    case SETTING_NUMBER: {
        double value = *(const double *)field;
        if (setting->null != NULL && value == setting->null_value) {
            return strcpy(out, "null");
        }
        return text_from_number(value, out);
    }
    case SETTING_BOOLEAN:
        return strcpy(out, *(const bool *)field ? "true" : "false");
    case SETTING_ENUM: {
        unsigned value;
        memcpy(&value, field, sizeof value);
        return format_enum(setting, value, json, out);
    }
    case SETTING_LIST:
    case SETTING_PATHS:
        return format_list(setting, field, json, out);
    case SETTING_TEXT:
    case SETTING_PATH:
    case SETTING_SOURCES:
        break;
    }
    return recipe_value_quote(field, json, out);
}
