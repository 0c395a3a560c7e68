#include "trainer/formats/weights/saved_recipe.h"

#include <string.h>

#include "build_info.h"

status saved_recipe_parse(const struct checkpoint_info *found, char *const *overrides, int count,
                          struct recipe *out)
{
    static const char version[] = BUILD_VERSION " " BUILD_COMMIT;
    status result = recipe_parse(found->folder, found->recipe_text, strlen(found->recipe_text),
                                 overrides, count, out);
    struct status_note note;
    if ((result != STATUS_RECIPE && result != STATUS_UNAVAILABLE) ||
        strncmp(found->version, version, sizeof found->version - 1) == 0) {
        return result;
    }
    status_take(&note);
    bool is_saved = strncmp(note.text, found->folder, strlen(found->folder)) == 0;
    if (!is_saved) { /* an error in an override */
        RAISE(result, "%s", note.text);
    }
    RAISE(
        result,
        "%s; version %s of bireme wrote this checkpoint, and this is version %s: use that version "
        "or a newer one",
        note.text, found->version, version);
}
