/* A checkpoint cut anew, as another number of ranks would have written it: read box by box. */
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/rewrite.h"
#include "trainer/checkpoint/diff.h"

#include "base/file.h"

static status read_box(void *reader, const struct manifest_tensor *tensor, const int64_t offset[2],
                       const int64_t shape[2], float *out)
{
    return checkpoint_reader_read(reader, tensor, offset, shape, out);
}

status checkpoint_reshard(const char *folder, const char *output, int ranks)
{
    char tokenizer[FILE_PATH_BYTES];
    struct checkpoint_reader *reader = NULL;
    TRY(file_join(tokenizer, folder, "tokenizer"));
    TRY(checkpoint_reader_open(folder, &reader));
    struct checkpoint_source source = {
        .manifest = checkpoint_reader_manifest(reader),
        .tokenizer_dir = file_is_folder(tokenizer) ? tokenizer : NULL,
        .context = reader,
        .read = read_box,
    };
    status result = checkpoint_source_write(&source, output, ranks);
    checkpoint_reader_close(&reader);
    return result;
}
