#include "trainer/base_model.h"

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

void base_model_add(struct base_model_sums *sums, int number, int64_t element, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t place = mix(((uint64_t)number << 44) + (uint64_t)element + 1);
    sums->sums[0] += mix(place ^ bits);
    sums->sums[1] += mix(place + ((uint64_t)bits << 32 | bits));
}

void base_model_text(const struct base_model_sums *sums, char text[HASH_TEXT_BYTES])
{
    snprintf(text, HASH_TEXT_BYTES, "%016llx%016llx", (unsigned long long)sums->sums[0],
             (unsigned long long)sums->sums[1]);
}

/* weights: the parameter's own. */
static void digest_piece(struct base_model_sums *d, int parameter, const struct model_parameter *p,
                         const struct model_piece *piece, const float *weights)
{
    const float *at = weights + piece->first;
    for (int64_t row = 0; row < piece->rows; row++) {
        for (int64_t column = 0; column < piece->columns; column++) {
            int64_t element = (piece->row + row) * p->whole_columns + piece->column + column;
            base_model_add(d, parameter, element, *at++);
        }
    }
}

static status digest_parameter(struct base_model_sums *d, const struct session *s, int number,
                               const struct model_parameter *p)
{
    size_t bytes = (size_t)(p->rows * p->columns) * sizeof(float);
    float *weights = malloc(bytes);
    REQUIRE(weights != NULL, STATUS_INTERNAL, "out of memory for a digest of %s", p->name);
    status result = device_read(s->device, kernels_stream(s->kernels), weights,
                                model_weights(s->model) + p->first, bytes);
    for (int j = 0; j < p->piece_count && result == STATUS_OK; j++) {
        digest_piece(d, number, p, &p->pieces[j], weights);
    }
    free(weights);
    return result;
}

/* Adapters are numbered behind the model's own parameters: without them it is the same model's digest. */
static status digest_own(const struct session *s, bool adapters, struct base_model_sums *mine)
{
    int count = 0, of_model = 0;
    const struct model_parameter *p = model_parameters(s->model, &count);
    for (int i = 0; i < count; i++) {
        bool adapter = model_is_adapter(&p[i]);
        bool another = p[i].replicated && comm_rank(s->mesh.tensor) != 0;
        int number = adapter ? count + i : of_model++;
        if (!another && (adapters || !adapter)) {
            TRY(digest_parameter(mine, s, number, &p[i]));
        }
    }
    return STATUS_OK;
}

status base_model_digest(const struct session *s, bool adapters, char text[HASH_TEXT_BYTES])
{
    struct comm *tensor = s->mesh.tensor;
    struct base_model_sums mine = {{0}}, *all = calloc((size_t)comm_size(tensor), sizeof *all);
    REQUIRE(all != NULL, STATUS_INTERNAL, "out of memory for a digest");
    status result = digest_own(s, adapters, &mine);
    KEEP_FIRST(result, comm_all_gather_bytes(tensor, all, &mine, sizeof mine));
    for (int i = 1; i < comm_size(tensor); i++) {
        all[0].sums[0] += all[i].sums[0];
        all[0].sums[1] += all[i].sums[1];
    }
    base_model_text(all, text);
    free(all);
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

static status check_weights(struct session *s)
{
    struct recipe *r = &s->recipe;
    char digest[HASH_TEXT_BYTES];
    TRY(base_model_digest(s, false, digest));
    if (r->adapter.base_weights[0] == '\0') {
        snprintf(r->adapter.base_weights, sizeof r->adapter.base_weights, "%s", digest);
    }
    return base_model_check(r, digest);
}

status base_model_load(struct session *s, struct comm *world)
{
    const struct recipe *r = &s->recipe;
    struct checkpoint_found found = {0};
    struct family base = {0};
    status result = checkpoint_choose(world, r->adapter.base, true, &found);
    result =
        recipe_blame(r, "adapter.base", result,
                     "The frozen model of these adapters is expected there; name its place with "
                     "adapter.base (`--set adapter.base=DIR`)");
    TRY(comm_agree(world, result));
    log_info("frozen weights from %s", found.folder);
    result = comm_agree(world, session_base(s, &base));
    if (result == STATUS_OK) {
        result = checkpoint_load(world, found.folder, &base.family, 1);
    }
    family_destroy(&base);
    free(found.recipe_text);
    TRY(result);
    return comm_agree(world, check_weights(s));
}
