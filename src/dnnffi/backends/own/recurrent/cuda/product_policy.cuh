#pragma once
/* How blocks multiply and exchange: by tensor cores, or without them. `source.py` replaces this file by one
   that includes fma.cuh for kernels without tensor cores. */

#include "recurrence.cuh"
