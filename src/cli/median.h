/* cli/median.h - the order of measured numbers. */
#ifndef CLI_MEDIAN_H
#define CLI_MEDIAN_H
#include <stddef.h>

/* Sorts x [n], the least first, and returns the median: the mean of the middle two where n is even, NAN for none. No x may be NAN. */
double median_sort(double *x, size_t n);
#endif
