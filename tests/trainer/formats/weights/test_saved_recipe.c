/* The recipe of a checkpoint that a newer version wrote. */
#include "trainer/formats/weights/saved_recipe.h"

#include <stdlib.h>

#include "build_info.h"
#include "tests/check.h"

static void parse_saved(const char *version, const char *text, char *const *overrides, int count,
                        status expected, const char *message, bool names_version)
{
    struct recipe recipe;
    struct status_note note;
    struct checkpoint_info found = {.found = true, .recipe_text = (char *)(uintptr_t)text};
    snprintf(found.folder, sizeof found.folder, "run/final");
    snprintf(found.version, sizeof found.version, "%.63s", version);
    CHECK_EQUAL(saved_recipe_parse(&found, overrides, count, &recipe), expected);
    status_take(&note);
    if (strstr(note.text, message) == NULL) {
        fprintf(stderr, "no '%s' in: %s\n", message, note.text);
        exit(1);
    }
    CHECK((strstr(note.text, "; version 9.0 abc of bireme wrote this checkpoint, and this is "
                             "version " BUILD_VERSION) != NULL) == names_version);
}

int main(void)
{
    static const char text[] = "model: {vocab_size: 8}\ntrain: {max_steps: 1}\n";
    static const char newer[] = "model: {vocab_size: 8}\ntrain: {max_steps: 1, unheard_of: 2}\n";
    static const char missing[] = "objective: ppo\n";
    char wrong[] = "train.max_stps=3", *overrides[] = {wrong};
    parse_saved("9.0 abc", text, NULL, 0, STATUS_OK, "", false);
    parse_saved("9.0 abc", newer, NULL, 0, STATUS_RECIPE,
                "run/final:2:23: train.unheard_of: unknown key", true);
    parse_saved("9.0 abc", missing, NULL, 0, STATUS_UNAVAILABLE, "ppo", true);
    parse_saved("9.0 abc", text, overrides, 1, STATUS_RECIPE, "command line: train.max_stps",
                false);
    parse_saved(BUILD_VERSION " " BUILD_COMMIT, newer, NULL, 0, STATUS_RECIPE, "train.unheard_of",
                false);
    return 0;
}
