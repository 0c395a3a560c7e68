/* The search in the settings table (table.c). */
#include <string.h>

#include "trainer/recipe/settings.h"

int recipe_table_find(const char *key)
{
    for (int i = 0; i < recipe_table_count; i++) {
        if (strcmp(recipe_table[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}
