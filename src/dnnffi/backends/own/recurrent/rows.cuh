/* Convert rows of unequal length to packed rows and back, by a table of their positions. */

/* Packed row p is row where[p] of the caller's array; each has `pieces` pieces of type PIECE. */
extern "C" __global__ void gather_rows(
    const PIECE *from, PIECE *to, const int *where, long long rows, long long pieces)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = first; i < rows * pieces; i += (long long)gridDim.x * blockDim.x)
        to[i] = from[where[i / pieces] * pieces + i % pieces];
}

/* The other way. What no packed row belongs to is left as it is. */
extern "C" __global__ void scatter_rows(
    const PIECE *from, PIECE *to, const int *where, long long rows, long long pieces)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = first; i < rows * pieces; i += (long long)gridDim.x * blockDim.x)
        to[where[i / pieces] * pieces + i % pieces] = from[i];
}
