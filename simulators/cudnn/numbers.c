#include "numbers.h"

#include <math.h>
#include <string.h>

size_t number_size(cudnnDataType_t type)
{
    switch ((int)type) {
    case CUDNN_DATA_INT8: case CUDNN_DATA_UINT8: return 1;
    case CUDNN_DATA_HALF: case CUDNN_DATA_BFLOAT16: return 2;
    case CUDNN_DATA_FLOAT: case CUDNN_DATA_INT32: return 4;
    case CUDNN_DATA_INT8x4: case CUDNN_DATA_UINT8x4: return 4;
    case CUDNN_DATA_DOUBLE: return 8;
    case CUDNN_DATA_INT8x32: return 32;
    default: return 0;
    }
}

/* A binary format, in the terms of frexp: magnitudes from 0.5 to 1 times two to an exponent. */
struct format {
    int precision;        /* bits of the significand, the hidden one among them */
    int smallest_exponent; /* of a normal number */
    double largest;
};

static const struct format half = {11, -13, 65504.0};
static const struct format bfloat16 = {8, -125, 0x1.fep127};

static double round_to(const struct format *format, double value)
{
    if (value == 0 || !isfinite(value)) return value;
    int exponent;
    frexp(value, &exponent);
    if (exponent < format->smallest_exponent) exponent = format->smallest_exponent;
    int last_place = exponent - format->precision;
    /* nearbyint rounds ties to even. */
    double rounded = ldexp(nearbyint(ldexp(value, -last_place)), last_place);
    return fabs(rounded) > format->largest ? copysign(INFINITY, value) : rounded;
}

double number_round(cudnnDataType_t type, double value)
{
    switch (type) {
    case CUDNN_DATA_HALF: return round_to(&half, value);
    case CUDNN_DATA_BFLOAT16: return round_to(&bfloat16, value);
    case CUDNN_DATA_FLOAT: return (float)value;
    default: return value;
    }
}

static double half_value(uint16_t bits)
{
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0x1f) return fraction != 0 ? (double)NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, -24);
    return sign * ldexp(fraction + 0x400, exponent - 25);
}

/* Bits of a value that is a half already. */
static uint16_t half_bits(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    if (isnan(value)) return sign | 0x7e00;
    if (isinf(value)) return sign | 0x7c00;
    int exponent;
    frexp(magnitude, &exponent);
    if (magnitude == 0 || exponent < half.smallest_exponent)
        return sign | (uint16_t)ldexp(magnitude, 24);
    /* The hidden bit adds one to the exponent's field. */
    return sign | (uint16_t)(((exponent + 13) << 10) + (int)ldexp(magnitude, 11 - exponent));
}

static double bfloat16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t bfloat16_bits(double value)
{
    float narrow = (float)value;
    uint32_t wide;
    memcpy(&wide, &narrow, sizeof wide);
    /* The bits cut off may be all that make a NaN one. */
    return isnan(value) ? (uint16_t)(wide >> 16 | 0x40) : (uint16_t)(wide >> 16);
}

double number_load(cudnnDataType_t type, const void *numbers, size_t index)
{
    switch (type) {
    case CUDNN_DATA_HALF: return half_value(((const uint16_t *)numbers)[index]);
    case CUDNN_DATA_BFLOAT16: return bfloat16_value(((const uint16_t *)numbers)[index]);
    case CUDNN_DATA_FLOAT: return ((const float *)numbers)[index];
    default: return ((const double *)numbers)[index];
    }
}

void number_store(cudnnDataType_t type, void *numbers, size_t index, double value)
{
    double rounded = number_round(type, value);
    switch (type) {
    case CUDNN_DATA_HALF: ((uint16_t *)numbers)[index] = half_bits(rounded); break;
    case CUDNN_DATA_BFLOAT16: ((uint16_t *)numbers)[index] = bfloat16_bits(rounded); break;
    case CUDNN_DATA_FLOAT: ((float *)numbers)[index] = (float)rounded; break;
    default: ((double *)numbers)[index] = rounded; break;
    }
}

void numbers_load(
    cudnnDataType_t type, const void *numbers, size_t first, size_t count, double *to)
{
    for (size_t i = 0; i < count; i++) to[i] = number_load(type, numbers, first + i);
}

void numbers_store(
    cudnnDataType_t type, void *numbers, size_t first, size_t count, const double *from)
{
    for (size_t i = 0; i < count; i++) number_store(type, numbers, first + i, from[i]);
}
