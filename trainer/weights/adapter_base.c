#include "trainer/weights/adapter_base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"

/* ---- what weights are known by ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static void add_weight(struct base_model_sums *sums, int number, int64_t element, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t place = mix(((uint64_t)number << 44) + (uint64_t)element + 1);
    sums->sums[0] += mix(place ^ bits);
    sums->sums[1] += mix(place + ((uint64_t)bits << 32 | bits));
}

void base_model_add_block(struct base_model_sums *sums, int number, const struct model_parameter *p,
                          const int64_t offset[2], const int64_t shape[2], const float *block)
{
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        int64_t row = offset[0] + i / shape[1], column = offset[1] + i % shape[1];
        int64_t element = p->dimensions == 1 ? row
                          : p->transposed    ? column * p->whole_columns + row
                                             : row * p->whole_columns + column;
        add_weight(sums, number, element, block[i]);
    }
}

void base_model_text(const struct base_model_sums *sums, char text[HASH_TEXT_BYTES])
{
    snprintf(text, HASH_TEXT_BYTES, "%016llx%016llx", (unsigned long long)sums->sums[0],
             (unsigned long long)sums->sums[1]);
}

static void add_up(struct base_model_sums *to, const struct base_model_sums *from)
{
    to->sums[0] += from->sums[0];
    to->sums[1] += from->sums[1];
}

/* Elements [low, high) of the flat buffer, which lie in this piece; the first one is at weights. */
static void digest_piece(struct base_model_sums *d, int number, const struct model_parameter *p,
                         const struct model_piece *piece, int64_t low, int64_t high,
                         const float *weights)
{
    int64_t at = low - p->first - piece->first;
    int64_t row = at / piece->columns, column = at % piece->columns;
    for (int64_t e = low; e < high; e++) {
        int64_t element = (piece->row + row) * p->whole_columns + piece->column + column;
        add_weight(d, number, element, *weights++);
        column = column + 1 < piece->columns ? column + 1 : 0;
        row += column == 0;
    }
}

/* Of the range's elements those of a parameter, whose first one is at weights on the host. */
static void digest_parameter(struct base_model_sums *d, int number, const struct model_parameter *p,
                             struct range range, const float *weights)
{
    int64_t end = range.first + range.count;
    for (int j = 0; j < p->piece_count; j++) {
        const struct model_piece *piece = &p->pieces[j];
        int64_t from = p->first + piece->first, to = from + piece->rows * piece->columns;
        int64_t low = range.first > from ? range.first : from, high = end < to ? end : to;
        if (low < high) {
            digest_piece(d, number, p, piece, low, high, weights + (low - range.first));
        }
    }
}

/* Adapters are numbered behind the model's own parameters: without them it is the same model's digest. */
enum digested { DIGEST_MODEL, DIGEST_FROZEN, DIGEST_ADAPTERS };

static bool is_digested(const struct session *s, const struct model_parameter *p,
                        enum digested which)
{
    bool another = p->replicated && comm_rank(s->mesh.tensor) != 0;
    bool counts = which == DIGEST_FROZEN     ? !p->trained
                  : which == DIGEST_ADAPTERS ? model_is_adapter(p)
                                             : !model_is_adapter(p);
    return counts && !another;
}

/* Of the elements of a range, on the host, this rank's part. */
static void digest_range(struct base_model_sums *d, const struct session *s, enum digested which,
                         struct range range, const float *weights)
{
    int count = 0, of_model = 0;
    const struct model_parameter *p = model_parameters(s->model, &count);
    for (int i = 0; i < count; i++) {
        int number = model_is_adapter(&p[i]) ? count + i : of_model++;
        if (is_digested(s, &p[i], which)) {
            digest_parameter(d, number, &p[i], range, weights);
        }
    }
}

/* Weights in parts of so many elements at most. */
enum { PART_ELEMENTS = 1 << 22 };

static struct range next_part(int64_t first, int64_t end)
{
    int64_t left = end - first;
    return (struct range){first, left < PART_ELEMENTS ? left : PART_ELEMENTS};
}

/* Of the model's f32 weights. */
static status digest_kept(struct base_model_sums *d, const struct session *s, enum digested which)
{
    int64_t end = model_kept_elements(s->model);
    float *weights = malloc(PART_ELEMENTS * sizeof *weights);
    status result = STATUS_OK;
    REQUIRE(weights != NULL, STATUS_INTERNAL, "out of memory for a digest");
    for (struct range part = next_part(0, end); part.count > 0 && result == STATUS_OK;
         part = next_part(part.first + part.count, end)) {
        result =
            device_read(s->device, kernels_stream(s->kernels), weights,
                        model_weights(s->model) + part.first, (size_t)part.count * sizeof *weights);
        if (result == STATUS_OK) {
            digest_range(d, s, which, part, weights);
        }
    }
    free(weights);
    return result;
}

/* Over the ranks that share the model. */
static status sum_up(const struct session *s, struct base_model_sums *sums)
{
    struct comm *tensor = s->mesh.tensor;
    struct base_model_sums *all = calloc((size_t)comm_size(tensor), sizeof *all);
    REQUIRE(all != NULL, STATUS_INTERNAL, "out of memory for a digest");
    status result = comm_all_gather_bytes(tensor, all, sums, sizeof *sums);
    *sums = (struct base_model_sums){{0}};
    for (int i = 0; i < comm_size(tensor); i++) {
        add_up(sums, &all[i]);
    }
    free(all);
    return result;
}

static struct base_model_sums sums_of_text(const char *text)
{
    unsigned long long a = 0, b = 0;
    (void)sscanf(text, "%16llx%16llx", &a, &b);
    return (struct base_model_sums){{a, b}};
}

status base_model_digest(const struct session *s, bool adapters, char text[HASH_TEXT_BYTES])
{
    bool beside = s->recipe.adapter.type[0] != '\0';
    struct base_model_sums sums = {{0}};
    status result = STATUS_OK;
    if (!beside || adapters) {
        result = digest_kept(&sums, s, beside ? DIGEST_ADAPTERS : DIGEST_MODEL);
    }
    KEEP_FIRST(result, sum_up(s, &sums));
    if (beside) {
        struct base_model_sums frozen = sums_of_text(s->recipe.adapter.base_weights);
        add_up(&sums, &frozen);
    }
    base_model_text(&sums, text);
    return result;
}

/* ---- where it lies ---- */

static bool has_adapters(const struct recipe *r)
{
    return r->adapter.type[0] != '\0';
}

static status read_found(const struct checkpoint_found *found, struct recipe *out)
{
    return recipe_parse(found->folder, found->recipe_text, strlen(found->recipe_text), NULL, 0,
                        out);
}

status base_model_require_whole(const struct recipe *recipe, const struct checkpoint_found *found)
{
    struct recipe saved;
    TRY(read_found(found, &saved));
    if (has_adapters(&saved)) {
        return recipe_raise(recipe, STATUS_RECIPE, "model.init_from",
                            "%s holds adapters alone; set adapter.type to lora to go on with them, "
                            "or take what `bireme export` and `bireme import` make of it",
                            found->folder);
    }
    return STATUS_OK;
}

static status require_same_adapters(const struct recipe *r, const struct recipe *saved,
                                    const char *folder)
{
    if (r->adapter.rank != saved->adapter.rank) {
        return recipe_raise(r, STATUS_RECIPE, "adapter.rank", "%lld, but %s has rank %lld",
                            (long long)r->adapter.rank, folder, (long long)saved->adapter.rank);
    }
    bool same =
        r->adapter.alpha >= saved->adapter.alpha && r->adapter.alpha <= saved->adapter.alpha;
    if (!same) {
        return recipe_raise(r, STATUS_RECIPE, "adapter.alpha", "%g, but %s has alpha %g",
                            r->adapter.alpha, folder, saved->adapter.alpha);
    }
    if (strcmp(r->adapter.targets, saved->adapter.targets) != 0) {
        return recipe_raise(r, STATUS_RECIPE, "adapter.targets", "%s, but %s has those of %s",
                            r->adapter.targets, folder, saved->adapter.targets);
    }
    return STATUS_OK;
}

static status absolute(const char *path, char out[RECIPE_PATH_BYTES])
{
    char *whole = realpath(path, NULL);
    REQUIRE(whole != NULL && strlen(whole) < RECIPE_PATH_BYTES, STATUS_NO_INPUT,
            "%s: its whole path is unknown or too long", path);
    memcpy(out, whole, strlen(whole) + 1);
    free(whole);
    return STATUS_OK;
}

static status take_base(struct recipe *r, const struct checkpoint_found *found, char *carried)
{
    struct recipe saved;
    TRY(read_found(found, &saved));
    if (has_adapters(&saved)) {
        TRY(require_same_adapters(r, &saved, found->folder));
        snprintf(carried, FILE_PATH_BYTES, "%s", found->folder);
        if (r->adapter.base[0] == '\0') {
            memcpy(r->adapter.base, saved.adapter.base, sizeof r->adapter.base);
        }
        if (r->adapter.base_weights[0] == '\0') {
            memcpy(r->adapter.base_weights, saved.adapter.base_weights,
                   sizeof r->adapter.base_weights);
        }
        return STATUS_OK;
    }
    return r->adapter.base[0] == '\0' ? absolute(found->folder, r->adapter.base) : STATUS_OK;
}

status base_model_find(struct recipe *recipe, struct comm *world, char *carried)
{
    struct checkpoint_found found = {0};
    carried[0] = '\0';
    status result = checkpoint_choose(world, recipe->model.init_from, true, &found);
    TRY(recipe_blame(recipe, "model.init_from", result, ""));
    result = take_base(recipe, &found, carried);
    free(found.recipe_text);
    return result;
}

/* ---- loading ---- */

status base_model_check(const struct recipe *r, const char *digest)
{
    if (strcmp(r->adapter.base_weights, digest) != 0) {
        return recipe_raise(r, STATUS_DATA, "adapter.base",
                            "the weights in %s have changed since the adapters were trained beside "
                            "them: they are known by %s now, not by %s. Name the folder of those",
                            r->adapter.base, digest, r->adapter.base_weights);
    }
    return STATUS_OK;
}

static status check_weights(struct session *s, const struct base_model_sums *sums)
{
    struct recipe *r = &s->recipe;
    char digest[HASH_TEXT_BYTES];
    base_model_text(sums, digest);
    if (r->adapter.base_weights[0] == '\0') {
        snprintf(r->adapter.base_weights, sizeof r->adapter.base_weights, "%s", digest);
    }
    return base_model_check(r, digest);
}

/* Of some parameters these elements, to weights on the device. */
static status load_range(struct session *s, struct comm *world, const char *folder,
                         enum family_part part, struct range range, float *weights)
{
    struct family family = {0};
    status result = comm_agree(world, session_part(s, part, range, weights, &family));
    if (result == STATUS_OK) {
        result = checkpoint_load_part(world, folder, &family.family, 1);
    }
    family_destroy(&family);
    return result;
}

/* A part of what is frozen: to its place, or through the memory of one part to what is rounded. */
static status load_part(struct session *s, struct comm *world, const char *folder,
                        struct range range, float *passing, float *host,
                        struct base_model_sums *sums)
{
    size_t bytes = (size_t)range.count * sizeof *host;
    float *weights = passing != NULL ? passing : model_weights(s->model) + range.first;
    TRY(load_range(s, world, folder, FAMILY_FROZEN, range, weights));
    status result = STATUS_OK;
    if (host != NULL) {
        result = device_read(s->device, kernels_stream(s->kernels), host, weights, bytes);
    }
    if (result == STATUS_OK) {
        digest_range(sums, s, DIGEST_FROZEN, range, host != NULL ? host : weights);
        result = passing != NULL ? model_set_frozen(s->model, range, passing) : STATUS_OK;
    }
    return comm_agree(world, result);
}

static status load_frozen(struct session *s, struct comm *world, const char *folder,
                          struct base_model_sums *sums)
{
    int count = 0;
    const struct model_parameter *p = model_parameters(s->model, &count);
    int64_t trained = model_trained_elements(p, count), end = model_elements(s->model);
    size_t bytes = PART_ELEMENTS * sizeof(float);
    float *passing = NULL, *host = NULL; /* the latter where the weights are a device's */
    status result = STATUS_OK;
    if (model_kept_elements(s->model) < end) {
        result = device_allocate(s->device, bytes, "frozen weights", (void **)&passing);
    }
    if (result == STATUS_OK && !device_is_host(s->device)) {
        host = malloc(bytes);
        result = host != NULL ? STATUS_OK
                              : status_raise(STATUS_INTERNAL, __FILE__, __LINE__,
                                             "out of memory to load %s", folder);
    }
    result = comm_agree(world, result);
    for (struct range part = next_part(trained, end); part.count > 0 && result == STATUS_OK;
         part = next_part(part.first + part.count, end)) {
        result = load_part(s, world, folder, part, passing, host, sums);
    }
    device_release(s->device, passing, bytes);
    free(host);
    return result;
}

/* Before the first step: that it is the same model, but for the head of a task, which begins with the model's. */
static status load_fresh(struct session *s, struct comm *world, const char *folder)
{
    bool body = model_config_of(s->model)->task != MODEL_WORDS;
    struct range all = {0, model_elements(s->model)}, kept = {0, model_kept_elements(s->model)};
    struct family family = {0};
    status result = comm_agree(world, session_part(s, FAMILY_MODEL, all, NULL, &family));
    if (result == STATUS_OK) {
        result = checkpoint_compare(world, folder, &family.family, 1, body);
    }
    family_destroy(&family);
    TRY(result);
    return body ? load_range(s, world, folder, FAMILY_HEAD, kept, model_weights(s->model))
                : STATUS_OK;
}

status base_model_load(struct session *s, struct comm *world, bool fresh)
{
    const struct recipe *r = &s->recipe;
    struct checkpoint_found found = {0};
    struct base_model_sums sums = {{0}};
    status result = checkpoint_choose(world, r->adapter.base, true, &found);
    result =
        recipe_blame(r, "adapter.base", result,
                     "The frozen model of these adapters is expected there; name its place with "
                     "adapter.base (`--set adapter.base=DIR`)");
    TRY(comm_agree(world, result));
    log_info("frozen weights from %s", found.folder);
    free(found.recipe_text);
    TRY(fresh ? load_fresh(s, world, found.folder) : STATUS_OK);
    TRY(load_frozen(s, world, found.folder, &sums));
    TRY(comm_agree(world, sum_up(s, &sums)));
    return comm_agree(world, check_weights(s, &sums));
}
