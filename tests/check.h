/* Checks for test programs. Each test is a separate process, and the first failure ends it.
 *
 * A comparison of numbers is written !(error <= tolerance), so that NaN fails. A test that cannot
 * run here prints the reason and exits with CHECK_SKIPPED; ctest reports it as skipped. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define CHECK_SKIPPED 77

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                \
            status_print();                                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        status check_status = (call);                                                              \
        if (check_status != STATUS_OK) {                                                           \
            fprintf(stderr, "%s:%d: %s returned %s (%d)\n", __FILE__, __LINE__, #call,             \
                    status_word(check_status), check_status);                                      \
            status_print();                                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The call must fail with this status, and its message must contain this text. */
#define CHECK_FAILS(call, expected, message)                                                       \
    do {                                                                                           \
        status check_status = (call);                                                              \
        if (check_status != (expected)) {                                                          \
            fprintf(stderr, "%s:%d: %s returned %s (%d) instead of %s (%d) with text '%s'\n",      \
                    __FILE__, __LINE__, #call, status_word(check_status), check_status,            \
                    status_word(expected), (expected), (message));                                 \
            status_print();                                                                        \
            exit(1);                                                                               \
        }                                                                                          \
        if (strstr(status_pending()->text, (message)) == NULL) {                                   \
            fprintf(stderr, "%s:%d: %s: the message does not contain '%s':\n", __FILE__, __LINE__, \
                    #call, (message));                                                             \
            status_print();                                                                        \
            exit(1);                                                                               \
        }                                                                                          \
        status_clear();                                                                            \
    } while (0)

#define CHECK_EQUAL(a, b)                                                                          \
    do {                                                                                           \
        long long check_a = (long long)(a), check_b = (long long)(b);                              \
        if (check_a != check_b) {                                                                  \
            fprintf(stderr, "%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a, check_a,    \
                    #b, check_b);                                                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The texts must be equal; the message contains both. NULL equals only NULL. */
#define CHECK_TEXT(actual, expected)                                                               \
    do {                                                                                           \
        const char *check_actual = (actual), *check_expected = (expected);                         \
        if (check_actual == NULL || check_expected == NULL                                         \
                ? check_actual != check_expected                                                   \
                : strcmp(check_actual, check_expected) != 0) {                                     \
            fprintf(stderr, "%s:%d: %s is\n  '%s', expected\n  '%s'\n", __FILE__, __LINE__,        \
                    #actual, check_actual != NULL ? check_actual : "(NULL)",                       \
                    check_expected != NULL ? check_expected : "(NULL)");                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_NEAR(a, b, tolerance)                                                                \
    do {                                                                                           \
        double check_a = (a), check_b = (b), check_error = fabs(check_a - check_b);                \
        if (!(check_error <= (tolerance))) {                                                       \
            fprintf(stderr, "%s:%d: %s is %.9g, %s is %.9g, apart by %.3g > %.3g\n", __FILE__,     \
                    __LINE__, #a, check_a, #b, check_b, check_error, (double)(tolerance));         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* check_max - return the larger number, or NaN if one of them is NaN. fmax ignores NaN. */
static inline double check_max(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

#define CHECK_SKIP(...)                                                                            \
    do {                                                                                           \
        printf("skipped: " __VA_ARGS__);                                                           \
        printf("\n");                                                                              \
        exit(CHECK_SKIPPED);                                                                       \
    } while (0)
