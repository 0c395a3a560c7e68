#include "base/staged_folder.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>

#include "trainer/checkpoint/checkpoint_impl.h"

static const double space_margin = 1.05;

/* "DIR/NAME" into parent and name. */
static status split_path(const char *output, struct checkpoint_output *out)
{
    char parent[FILE_PATH_BYTES], name[FILE_PATH_BYTES];
    REQUIRE(strlen(output) < sizeof name, STATUS_USAGE, "--output: the path is too long");
    snprintf(parent, sizeof parent, "%s", output);
    snprintf(name, sizeof name, "%s", output);
    const char *last = basename(name);
    REQUIRE(strlen(last) < sizeof out->name && last[0] != '.' && last[0] != '/', STATUS_USAGE,
            "--output %s: its last part must be a name of at most %zu characters", output,
            sizeof out->name - 1);
    snprintf(out->parent, sizeof out->parent, "%s", dirname(parent));
    snprintf(out->name, sizeof out->name, "%s", last);
    checkpoint_temporary_name(out->name, out->temporary);
    return file_join(out->path, out->parent, out->temporary);
}

status checkpoint_output_create(const char *output, double bytes, struct checkpoint_output *out)
{
    REQUIRE(!file_exists(output), STATUS_CREATE, "%s exists already; name a folder that does not",
            output);
    TRY(split_path(output, out));
    TRY(file_make_folders(out->parent));
    TRY(checkpoint_folder_space(out->parent, space_margin * bytes));
    return file_make_folders(out->path);
}

status checkpoint_output_finish(const struct checkpoint_output *folder, status result)
{
    if (result == STATUS_OK) {
        result = checkpoint_folder_publish(folder->parent, folder->temporary, folder->name);
    }
    if (result != STATUS_OK) {
        struct status_note first;
        status_take(&first);
        (void)file_remove_tree(folder->path);
        status_clear();
        status_restore(&first);
    }
    return result;
}
