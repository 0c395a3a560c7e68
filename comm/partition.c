#include "comm/partition.h"

struct range partition_share(int64_t count, int64_t unit, int parts, int index)
{
    int64_t units = (count + unit - 1) / unit;
    int64_t each = units / parts;
    int64_t larger = units % parts; /* the first ones get one unit more */
    int64_t first = unit * (index * each + (index < larger ? index : larger));
    int64_t end = first + unit * (each + (index < larger ? 1 : 0));
    first = first < count ? first : count;
    end = end < count ? end : count;
    return (struct range){first, end - first};
}
