/* Relations between two settings that a recipe must not violate. */
#pragma once

#include <stddef.h>

#include "base/memory.h"
#include "trainer/recipe/settings.h"

/* The message for a violated relation is "KEY: VALUE problem OTHER (VALUE); remedy". */
struct relation {
    bool violated;
    const char *key;
    const char *problem; /* NULL: the message is "KEY: missing; remedy" */
    const char *other;
    const char *remedy; /* NULL: none; not if problem is NULL */
};

/* relation_find_location - return the command line if it gives one of two settings. Otherwise,
 * return the location of the first one that the file contains. */
struct source_location relation_find_location(const struct recipe_reader *r, const char *a,
                                              const char *b);

/* relation_fail - raise the error of a violated relation.
 *
 * Errors    STATUS_RECIPE */
status relation_fail(const struct recipe_reader *r, const struct relation *n);

/* relation_check - raise the error of the first violated relation.
 *
 * Errors    STATUS_RECIPE */
status relation_check(const struct recipe_reader *r, const struct relation *relations,
                      size_t count);

#define CHECK_RELATIONS(r, relations) relation_check((r), (relations), COUNT(relations))
