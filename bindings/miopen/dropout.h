/* Dropout descriptor. The states of its random number generator are device memory. */

typedef enum {
    MIOPEN_RNG_PSEUDO_XORWOW = 0
} miopenRNGType_t;

typedef struct miopenDropoutDescriptor *miopenDropoutDescriptor_t;

miopenStatus_t miopenCreateDropoutDescriptor(miopenDropoutDescriptor_t *desc);
miopenStatus_t miopenDestroyDropoutDescriptor(miopenDropoutDescriptor_t desc);
miopenStatus_t miopenDropoutGetStatesSize(miopenHandle_t handle, size_t *size);
/* Starts the generator from the seed, which runs a kernel over the states. */
miopenStatus_t miopenSetDropoutDescriptor(
    miopenDropoutDescriptor_t desc,
    miopenHandle_t handle,
    float dropout,
    dev_ptr states,
    size_t states_size,
    unsigned long long seed,
    bool use_mask,
    bool state_evo,
    miopenRNGType_t rng_mode);
/* Takes states as they are. */
miopenStatus_t miopenRestoreDropoutDescriptor(
    miopenDropoutDescriptor_t desc,
    miopenHandle_t handle,
    float dropout,
    dev_ptr states,
    size_t states_size,
    unsigned long long seed,
    bool use_mask,
    bool state_evo,
    miopenRNGType_t rng_mode);
miopenStatus_t miopenGetDropoutDescriptor(
    miopenDropoutDescriptor_t desc,
    miopenHandle_t handle,
    float *dropout,
    dev_ptr *states,
    unsigned long long *seed,
    bool *use_mask,
    bool *state_evo,
    miopenRNGType_t *rng_mode);
