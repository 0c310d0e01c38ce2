/* The number formats. All arithmetic is in double; numbers are rounded where they are stored. */
#ifndef STANDIN_NUMBERS_H
#define STANDIN_NUMBERS_H

#include "vendor.h"

/* Bytes of a number of a tensor's type, 0 if tensors have no such type. */
size_t number_size(cudnnDataType_t type);

/* The floating point formats: half, bfloat16, float, double. */
double number_round(cudnnDataType_t type, double value);
double number_load(cudnnDataType_t type, const void *numbers, size_t index);
void number_store(cudnnDataType_t type, void *numbers, size_t index, double value);

void numbers_load(
    cudnnDataType_t type, const void *numbers, size_t first, size_t count, double *to);
void numbers_store(
    cudnnDataType_t type, void *numbers, size_t first, size_t count, const double *from);

#endif
