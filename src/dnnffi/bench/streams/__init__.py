"""Streams of batches: what a batch costs when each one has another length, as in training.

A stream is one network and two epochs of batches. Its rules, which the tests check:

* Each batch has arrays of its own, from the caching allocator of the library that computes. They
  are made before the epoch is timed, as a loader does that works ahead.
* In training, a step of gradient descent changes the weights in place before each batch.
* The last batch of an epoch has B // 2 + 1 rows.
* No pair of T and lengths of the later epoch occurs in the first one.
* The first epoch of a model of dnnffi begins with no plan and no tuning result.

The time of an epoch is wall time, from an idle device until it is idle again.

The modules with models are separate by library, because a library may be missing.
"""
