#include "trainer/objective/objective.h"

static const struct objective *const objectives[] = {&objective_clm};

status objective_find(const char *name, const struct objective **out)
{
    for (size_t i = 0; i < sizeof objectives / sizeof objectives[0]; i++) {
        if (strcmp(objectives[i]->name, name) == 0) {
            *out = objectives[i];
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE, "objective %s is not in this version; clm is", name);
}
