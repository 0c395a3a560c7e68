#include "trainer/checkpoint/attachments.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const size_t file_limit = (size_t)256 << 20;

static status keep(struct checkpoint_files *k, const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, name));
    if (file_size(path) < 0) {
        return STATUS_OK;
    }
    struct checkpoint_file *more = realloc(k->files, (size_t)(k->count + 1) * sizeof *more);
    REQUIRE(more != NULL, STATUS_INTERNAL, "out of memory for %s", path);
    k->files = more;
    struct checkpoint_file *file = &k->files[k->count];
    TRY(file_read(path, file_limit, &file->bytes, &file->count));
    file->name = strdup(name);
    k->count++;
    REQUIRE(file->name != NULL, STATUS_INTERNAL, "out of memory for %s", path);
    return STATUS_OK;
}

static status keep_all(struct checkpoint_files *k, const char *folder)
{
    DIR *dir = opendir(folder);
    REQUIRE(dir != NULL, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open the tokenizer %s: %s", folder, strerror(errno));
    status result = STATUS_OK;
    for (struct dirent *e; result == STATUS_OK && (e = readdir(dir)) != NULL;) {
        result = e->d_name[0] != '.' ? keep(k, folder, e->d_name) : STATUS_OK;
    }
    closedir(dir);
    return result;
}

status checkpoint_files_read(const char *folder, const char *const *names,
                             struct checkpoint_files *out)
{
    *out = (struct checkpoint_files){0};
    if (names == NULL) {
        return keep_all(out, folder);
    }
    for (; *names != NULL; names++) {
        TRY(keep(out, folder, *names));
    }
    return STATUS_OK;
}

void checkpoint_files_destroy(struct checkpoint_files *files)
{
    for (int i = 0; i < files->count; i++) {
        free(files->files[i].name);
        free(files->files[i].bytes);
    }
    free(files->files);
    *files = (struct checkpoint_files){0};
}
