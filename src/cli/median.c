/* cli/median.c - see median.h. */
#include "cli/median.h"
#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_sort(double *x, size_t n) {
    if (!n) return NAN;
    qsort(x, n, sizeof *x, ascending);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}
