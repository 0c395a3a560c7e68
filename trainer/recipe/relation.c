#include "trainer/recipe/relation_impl.h"

struct source_location relation_find_location(const struct recipe_reader *r, const char *a,
                                              const char *b)
{
    struct source_location first = r->locations[recipe_table_find(a)];
    struct source_location second = r->locations[recipe_table_find(b)];
    if (first.kind == LOCATION_COMMAND_LINE ||
        (first.kind == LOCATION_FILE && second.kind != LOCATION_COMMAND_LINE)) {
        return first;
    }
    return second;
}

status relation_fail(const struct recipe_reader *r, const struct relation *n)
{
    char value[RECIPE_VALUE_BYTES], other[RECIPE_VALUE_BYTES];
    struct source_location location = relation_find_location(r, n->key, n->other);
    if (n->problem == NULL) {
        return recipe_fail(r, location, n->key, "missing; %s", n->remedy);
    }
    recipe_value_format(&recipe_table[recipe_table_find(n->key)], r->recipe, false, value);
    recipe_value_format(&recipe_table[recipe_table_find(n->other)], r->recipe, false, other);
    return recipe_fail(r, location, n->key, "%.200s %s %s (%.200s)%s%s", value, n->problem,
                       n->other, other, n->remedy != NULL ? "; " : "",
                       n->remedy != NULL ? n->remedy : "");
}

status relation_check(const struct recipe_reader *r, const struct relation *relations, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (relations[i].violated) {
            return relation_fail(r, &relations[i]);
        }
    }
    return STATUS_OK;
}
