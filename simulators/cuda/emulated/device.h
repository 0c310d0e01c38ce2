/* The functions that kernels call in place of a device's instructions. */
#ifdef __cplusplus
extern "C" {
#endif

struct index {
    int x, y, z;
};
extern struct index threadIdx, blockIdx, blockDim, gridDim;

typedef void collective(void **arguments_of_lanes);

void *device_shared(void);
void device_barrier(void);
void device_part_barrier(int threads); /* a barrier of `threads` consecutive threads */
void device_warp(collective *what, void *argument);
void device_load(void *value, const void *at);
void device_store(void *at, const void *value);
/* A store into the memory of a block of the cluster, and barriers, by their offsets in that memory. */
void device_send(int block, unsigned at, const void *value, int bytes, unsigned barrier);
void device_begin_barrier(unsigned at);
void device_expect(unsigned at, int bytes);
int device_phase_ended(unsigned at, unsigned parity);
void device_meet(int of_cluster);
void device_copy(void *to, const void *from);
void device_commit(void);
void device_wait(int pending);

#ifdef __cplusplus
}
#endif
