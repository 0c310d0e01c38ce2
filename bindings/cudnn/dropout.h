/* Dropout descriptor. The states of its random number generator are device memory. */

typedef struct cudnnDropoutStruct *cudnnDropoutDescriptor_t;

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *desc);
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t desc);
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *size);
/* Starts the generator from the seed, which runs a kernel over the states. */
cudnnStatus_t cudnnSetDropoutDescriptor(
    cudnnDropoutDescriptor_t desc,
    cudnnHandle_t handle,
    float dropout,
    dev_ptr states,
    size_t states_size,
    unsigned long long seed);
/* Takes states as they are. */
cudnnStatus_t cudnnRestoreDropoutDescriptor(
    cudnnDropoutDescriptor_t desc,
    cudnnHandle_t handle,
    float dropout,
    dev_ptr states,
    size_t states_size,
    unsigned long long seed);
cudnnStatus_t cudnnGetDropoutDescriptor(
    cudnnDropoutDescriptor_t desc,
    cudnnHandle_t handle,
    float *dropout,
    dev_ptr *states,
    unsigned long long *seed);
