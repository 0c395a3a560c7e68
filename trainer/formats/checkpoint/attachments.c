#include "trainer/formats/checkpoint/attachments.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

static const size_t file_limit_bytes = (size_t)256 << 20;

static status read_attachment(struct checkpoint_attachments *a, const char *folder,
                              const char *name)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, name));
    if (file_size(path) < 0) {
        return STATUS_OK;
    }
    TRY(GROW(a->files, a->count + 1, path));
    struct checkpoint_attachment *file = &a->files[a->count];
    TRY(file_read(path, file_limit_bytes, &file->data, &file->bytes));
    a->count++;
    return memory_copy_text(&file->name, name, path);
}

static status read_folder(struct checkpoint_attachments *a, const char *folder)
{
    DIR *dir = opendir(folder);
    REQUIRE(dir != NULL, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open the tokenizer folder %s: %s", folder, strerror(errno));
    status result = STATUS_OK;
    for (struct dirent *e; result == STATUS_OK && (e = readdir(dir)) != NULL;) {
        result = e->d_name[0] != '.' ? read_attachment(a, folder, e->d_name) : STATUS_OK;
    }
    closedir(dir);
    return result;
}

status checkpoint_attachments_read(const char *folder, const char *const *names,
                                   struct checkpoint_attachments *out)
{
    *out = (struct checkpoint_attachments){0};
    if (names == NULL) {
        return read_folder(out, folder);
    }
    for (; *names != NULL; names++) {
        TRY(read_attachment(out, folder, *names));
    }
    return STATUS_OK;
}

void checkpoint_attachments_destroy(struct checkpoint_attachments *attachments)
{
    for (int i = 0; i < attachments->count; i++) {
        free(attachments->files[i].name);
        free(attachments->files[i].data);
    }
    free(attachments->files);
    *attachments = (struct checkpoint_attachments){0};
}
