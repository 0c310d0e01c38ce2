/* What sums the gradients of a layer's biases? The backward leaves sums over some rows; here they
   are added up, always in the same order, so that every run gives the same bits. */

extern "C" __global__ void bias_gradients(
    const float *sums, Element *d_input, Element *d_recurrent, long long parts, long long stride,
    long long accumulate)
{
    const int unit = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y;
    const int direction = blockIdx.z;
    if (unit >= HIDDEN) return;
    const float *from = sums + ((long long)direction * parts * SAVED + column) * PADDED + unit;
    float sum = 0;
    for (long long part = 0; part < parts; part++) sum += from[part * SAVED * PADDED];
    /* Of a GRU, column 2 is n's product of x, and column 3 its product of h. */
    const bool only_recurrent = CELL == GRU && column == 3, only_input = CELL == GRU && column == 2;
    const int gate = only_recurrent ? 2 : column;
    const long long at = direction * stride + gate * HIDDEN + unit;
    if (!only_recurrent)
        d_input[at] = rounded(sum + (accumulate ? real(d_input[at]) : 0.0f));
    if (!only_input)
        d_recurrent[at] = rounded(sum + (accumulate ? real(d_recurrent[at]) : 0.0f));
}
