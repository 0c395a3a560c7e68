#include "trainer/train/replica_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum { LANES = 4, BLOCK_BYTES = 4 << 20, RANKS_TEXT_BYTES = 512 };

struct replica_check {
    const struct session *session;
    int count;     /* of tensors */
    uint64_t *own; /* [count] */
    uint64_t *all; /* [data-parallel ranks, count] */
    void *block;   /* [BLOCK_BYTES] host copy of device memory; NULL: the host reads the weights */
};

status replica_check_create(const struct session *session, struct replica_check **out)
{
    struct replica_check *c = NULL;
    *out = NULL;
    TRY(ALLOCATE(c, 1, "the comparison of replicas"));
    c->session = session;
    (void)model_parameters(session->model, &c->count);
    int ranks = comm_size(session->mesh.data);
    status result = ALLOCATE(c->own, c->count, "the hashes of the weights");
    KEEP_FIRST(result, ALLOCATE(c->all, (int64_t)ranks * c->count, "the hashes of all replicas"));
    if (!device_is_host(session->device)) {
        KEEP_FIRST(result, memory_allocate_array(&c->block, 1, BLOCK_BYTES, "a block of weights"));
    }
    if (result != STATUS_OK) {
        replica_check_destroy(&c);
    }
    *out = c;
    return result;
}

void replica_check_destroy(struct replica_check **check)
{
    if (*check != NULL) {
        free((*check)->own);
        free((*check)->all);
        free((*check)->block);
        free(*check);
        *check = NULL;
    }
}

/* ---- hashes ---- */

/* An unkeyed hash of 64 bits in four independent lanes. Each update is a bijection of the lane for
 * a given word, and of the word for a given lane: a single changed word always changes the hash. */
struct lanes {
    uint64_t lane[LANES];
};

static uint64_t update_lane(uint64_t lane, uint64_t word)
{
    return ((lane << 29 | lane >> 35) ^ word) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Adds bytes. All calls but the last one pass a multiple of 32 bytes. */
static void hash_bytes(struct lanes *hash, const void *data, size_t bytes)
{
    const char *at = data;
    struct lanes h = *hash;
    uint64_t words[LANES];
    for (; bytes >= sizeof words; at += sizeof words, bytes -= sizeof words) {
        memcpy(words, at, sizeof words);
        for (int i = 0; i < LANES; i++) {
            h.lane[i] = update_lane(h.lane[i], words[i]);
        }
    }
    memset(words, 0, sizeof words);
    memcpy(words, at, bytes);
    for (int i = 0; i < LANES && bytes > 0; i++) {
        h.lane[i] = update_lane(h.lane[i], words[i]);
    }
    *hash = h;
}

static status hash_range(const struct replica_check *c, struct lanes *hash, const void *data,
                         size_t bytes)
{
    const struct session *s = c->session;
    if (c->block == NULL) {
        hash_bytes(hash, data, bytes);
        return STATUS_OK;
    }
    for (size_t done = 0, count; done < bytes; done += count) {
        count = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
        TRY(device_read(s->device, kernels_stream(s->kernels), c->block, (const char *)data + done,
                        count));
        hash_bytes(hash, c->block, count);
    }
    return STATUS_OK;
}

/* Hashes what this rank stores of a tensor: its f32 weights, its f32 vector, its bf16 copy. */
static status hash_tensor(const struct replica_check *c, const struct model_parameter *p,
                          uint64_t *out)
{
    const struct model *m = c->session->model;
    int64_t unused, elements = p->rows * p->columns;
    const float *weights = model_weights(m), *vectors = model_vectors(m, &unused);
    const bf16 *copy = model_bf16_weights(m);
    struct lanes hash = {{1, 2, 3, 4}};
    if (weights != NULL && p->first < model_f32_elements(m)) {
        TRY(hash_range(c, &hash, weights + p->first, (size_t)elements * sizeof *weights));
    } else if (vectors != NULL && p->dimensions == 1) {
        TRY(hash_range(c, &hash, vectors + p->vector_offset, (size_t)elements * sizeof *vectors));
    }
    if (copy != NULL) {
        TRY(hash_range(c, &hash, copy + p->first, (size_t)elements * sizeof *copy));
    }
    *out = 0;
    for (int i = 0; i < LANES; i++) {
        *out = update_lane(*out, hash.lane[i]);
    }
    return STATUS_OK;
}

static status hash_weights(struct replica_check *c)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(c->session->model, &count);
    for (int i = 0; i < count; i++) {
        TRY(hash_tensor(c, &parameters[i], &c->own[i]));
    }
    return STATUS_OK;
}

/* ---- comparison ---- */

static uint64_t get_hash(const struct replica_check *c, int rank, int tensor)
{
    return c->all[(int64_t)rank * c->count + tensor];
}

/* Returns the hash of a tensor that most ranks have. If several hashes are equally frequent, it is
 * the hash of the lowest rank. */
static uint64_t find_most_frequent(const struct replica_check *c, int tensor)
{
    int ranks = comm_size(c->session->mesh.data), best = 0;
    uint64_t found = 0;
    for (int r = 0; r < ranks; r++) {
        int equal = 0;
        for (int other = 0; other < ranks; other++) {
            equal += get_hash(c, other, tensor) == get_hash(c, r, tensor);
        }
        found = equal > best ? get_hash(c, r, tensor) : found;
        best = equal > best ? equal : best;
    }
    return found;
}

/* Appends the world numbers of the data-parallel ranks that have (or do not have) this hash.
 * Returns how many there are. */
static int list_ranks(const struct replica_check *c, int tensor, uint64_t hash, bool equal,
                      char text[RANKS_TEXT_BYTES])
{
    const struct mesh *mesh = &c->session->mesh;
    int listed = 0, used = 0;
    text[0] = '\0';
    for (int r = 0; r < comm_size(mesh->data); r++) {
        if ((get_hash(c, r, tensor) == hash) == equal && used < RANKS_TEXT_BYTES - 16) {
            int world_rank = r * comm_size(mesh->tensor) + comm_rank(mesh->tensor);
            used += snprintf(text + used, (size_t)(RANKS_TEXT_BYTES - used), "%s%d",
                             listed > 0 ? ", " : "", world_rank);
            listed++;
        }
    }
    return listed;
}

static status raise_difference(const struct replica_check *c, int tensor)
{
    int count = 0;
    char odd[RANKS_TEXT_BYTES], others[RANKS_TEXT_BYTES];
    uint64_t hash = find_most_frequent(c, tensor);
    int odd_count = list_ranks(c, tensor, hash, false, odd);
    int other_count = list_ranks(c, tensor, hash, true, others);
    RAISE(STATUS_DIVERGED,
          "%s differs between rank%s %s and rank%s %s. These replicas must be "
          "equal, so the memory or the processor of a host may be faulty%s. This state is not "
          "saved; check the hosts, then start again to resume from the last checkpoint",
          model_parameters(c->session->model, &count)[tensor].name, text_plural(odd_count), odd,
          text_plural(other_count), others,
          odd_count < other_count ? ", most likely a host of the ranks named first" : "");
}

static status compare_replicas(const struct replica_check *c)
{
    for (int tensor = 0; tensor < c->count; tensor++) {
        for (int r = 1; r < comm_size(c->session->mesh.data); r++) {
            if (get_hash(c, r, tensor) != get_hash(c, 0, tensor)) {
                return raise_difference(c, tensor);
            }
        }
    }
    return STATUS_OK;
}

status replica_check_run(struct replica_check *c)
{
    const struct mesh *mesh = &c->session->mesh;
    status result = hash_weights(c);
    TRY(comm_all_gather_bytes(mesh->data, c->all, c->own, (size_t)c->count * sizeof *c->own));
    if (result == STATUS_OK) {
        result = compare_replicas(c);
    }
    return comm_agree(mesh->world, result);
}
