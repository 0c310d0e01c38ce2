/* The vendor's own declarations: whatever is defined here must match them to compile. */
#ifndef STANDIN_VENDOR_H
#define STANDIN_VENDOR_H

#include <stddef.h>
#include <stdint.h>

/* Compiled with -fvisibility=hidden: what is declared in between is all that the file exports. */
#pragma GCC visibility push(default)
#include "cudnn_adv.h"
#include "cudnn_graph.h"
#include "cudnn_ops.h"

#include "control.h"
#pragma GCC visibility pop

#if CUDNN_MAJOR != 9
#error "the stand-in is a cuDNN 9: it needs the headers of one"
#endif

#endif
