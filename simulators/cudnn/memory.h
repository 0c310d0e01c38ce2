/* Device memory: which addresses a call may read and write. */
#ifndef STANDIN_MEMORY_H
#define STANDIN_MEMORY_H

#include "call.h"

enum access { READ, WRITE };
enum presence { NEEDED, OPTIONAL };

/* One argument of a call that is an address. */
struct region {
    const char *name;
    const void *address;
    size_t bytes;
    size_t alignment;
    enum access access;
    enum presence presence;
};

/* Check that each region is given (or optional and NULL), aligned, and inside one registered
   allocation, and that no region that is written overlaps another. */
cudnnStatus_t check_regions(const struct region *regions, size_t count);

#endif
