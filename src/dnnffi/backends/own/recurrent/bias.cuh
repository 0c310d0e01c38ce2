/* Sum the gradients of a layer's biases. The backward leaves sums over some rows, [SAVED,
   PADDED] each; here they are added up, always in the same order, so that every run gives the same
   bits. One kernel is for all cells and sizes: blocks have a column, of `gates` or, of a GRU, one
   more. */

extern "C" __global__ void bias_gradients(
    const float *sums, Element *d_input, Element *d_recurrent, long long parts, long long hidden,
    long long padded, long long gates, long long stride, long long accumulate)
{
    const int unit = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y;
    const int direction = blockIdx.z;
    if (unit >= hidden) return;
    const long long step = gridDim.y * padded;
    const float *from = sums + direction * parts * step + column * padded + unit;
    float sum = 0;
    for (long long part = 0; part < parts; part++) sum += from[part * step];
    /* Of a GRU, column 2 is n's product of x, and column 3 its product of h. */
    const bool only_recurrent = column == gates, only_input = gates < gridDim.y && column == 2;
    const long long gate = only_recurrent ? 2 : column;
    const long long at = direction * stride + gate * hidden + unit;
    if (!only_recurrent)
        d_input[at] = rounded(sum + (accumulate ? real(d_input[at]) : 0.0f));
    if (!only_input)
        d_recurrent[at] = rounded(sum + (accumulate ? real(d_recurrent[at]) : 0.0f));
}
