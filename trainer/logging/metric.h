/* A named value of a metrics line. */
#pragma once

#include <stdint.h>

enum metric_kind {
    METRIC_NUMBER,
    METRIC_INTEGER,
    METRIC_TEXT,
    METRIC_NULL,
    METRIC_JSON /* an array or object */
};

/* A field of a line. A name with a '.' is a member of an object: "rank_bytes.weights". */
struct metric {
    const char *name;
    enum metric_kind kind;
    double number;    /* METRIC_NUMBER */
    int64_t integer;  /* METRIC_INTEGER */
    const char *text; /* METRIC_TEXT, METRIC_JSON */
};

/* metric_number - make a field with a floating-point value. */
static inline struct metric metric_number(const char *name, double number)
{
    return (struct metric){.name = name, .kind = METRIC_NUMBER, .number = number};
}

/* metric_integer - make a field with an integer value. */
static inline struct metric metric_integer(const char *name, int64_t integer)
{
    return (struct metric){.name = name, .kind = METRIC_INTEGER, .integer = integer};
}

/* metric_text - make a field with a string value, which is not copied. */
static inline struct metric metric_text(const char *name, const char *text)
{
    return (struct metric){.name = name, .kind = METRIC_TEXT, .text = text};
}

/* metric_null - make a field with the value null. */
static inline struct metric metric_null(const char *name)
{
    return (struct metric){.name = name, .kind = METRIC_NULL};
}

/* metric_json - make a field with an array or object, given as JSON text, which is not copied. */
static inline struct metric metric_json(const char *name, const char *text)
{
    return (struct metric){.name = name, .kind = METRIC_JSON, .text = text};
}
