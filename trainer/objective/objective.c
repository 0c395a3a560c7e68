#include "trainer/objective/objective.h"

#include "base/mirror.h"

static const struct objective *const objectives[] = {&objective_clm,
                                                     &objective_mlm,
                                                     &objective_sft,
                                                     &objective_dpo,
                                                     &objective_classify,
                                                     &objective_regress,
                                                     &objective_classify_tokens,
                                                     &objective_answer,
                                                     &objective_choose,
                                                     &objective_embed,
                                                     &objective_reward};

static size_t place_of(const struct objective_views *views, const void *made)
{
    return (size_t)((const char *)made - (const char *)views->made->placed);
}

void *objective_host(const struct objective_views *views, void *made)
{
    return views->made == NULL ? made : (char *)views->made->host + place_of(views, made);
}

status objective_place(const struct objective_views *views, const void *made, size_t bytes)
{
    return views->made == NULL ? STATUS_OK : mirror_push(views->made, place_of(views, made), bytes);
}

status objective_read(const struct objective_views *views, const void *made, size_t bytes,
                      const void **host)
{
    *host = made;
    if (views->made == NULL) {
        return STATUS_OK;
    }
    size_t first = place_of(views, made);
    *host = (const char *)views->made->host + first;
    return mirror_pull(views->made, first, bytes);
}

status objective_tally(struct kernels *k, const struct objective_views *views,
                       const struct tally *t, int64_t rows, double *sums, int first)
{
    double own[4] = {0};
    if (views->later != NULL) {
        return tally_rows(k, views->later + first, t, rows);
    }
    TRY(tally_rows(k, own, t, rows));
    for (int i = 0; i < (t->entropies != NULL ? 4 : t->best != NULL ? 3 : 2); i++) {
        sums[first + i] += own[i];
    }
    return STATUS_OK;
}

status objective_scale(const struct objective_views *views, int64_t rows, double weight)
{
    float *scales = objective_host(views, views->row_scales);
    for (int64_t i = 0; i < rows; i++) {
        scales[i] = (float)weight;
    }
    return objective_place(views, views->row_scales, (size_t)rows * sizeof *scales);
}

double objective_mean(const double sums[OBJECTIVE_SUMS], const struct objective_metric *m)
{
    return sums[m->count] > 0 ? sums[m->sum] / sums[m->count] : 0;
}

double objective_loss(const struct objective *o, const double sums[OBJECTIVE_SUMS])
{
    static const struct objective_metric first[] = {{"loss", OBJECTIVE_LOSS, OBJECTIVE_COUNT},
                                                    {NULL, 0, 0}};
    double loss = 0;
    for (const struct objective_metric *m = o->losses != NULL ? o->losses : first; m->name != NULL;
         m++) {
        loss += objective_mean(sums, m);
    }
    return loss;
}

int objective_metric_count(const struct objective *o)
{
    int count = 0;
    while (o->metrics != NULL && o->metrics[count].name != NULL) {
        count++;
    }
    return count;
}

status objective_find(const char *name, const struct objective **out)
{
    for (size_t i = 0; i < sizeof objectives / sizeof objectives[0]; i++) {
        if (strcmp(objectives[i]->name, name) == 0) {
            *out = objectives[i];
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE, "objective %s is not in this version", name);
}
