"""Streams of batches: the time of a batch when each one has other lengths, sizes or resets.

A stream is one network and its epochs of batches. The tests check these rules:

* Each batch has new arrays, from the caching allocator of the library that computes. They are made
  before the epoch is timed, like those of a data loader that works ahead.
* In training, a step of gradient descent changes the weights in place before each batch.
* The last batch of an epoch has B // 2 + 1 rows.
* Except with resets, no lengths (images: no size) of a later epoch occur in the first one.
* The first epoch of a model of dnnffi begins with no plan and no tuning result.

The time of an epoch is wall time; the device is idle at its start and at its end.

Each library has its own modules with models, because a library may be missing.
"""
