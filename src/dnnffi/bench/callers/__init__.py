"""The same network through each entry of dnnffi, on one device, beside ``torch.nn``.

The models of `dnnffi.bench.runner` are reused: a call on the same arrays, in a loop. Besides, there
are empty calls, whose host cost belongs to the caller's library and is subtracted: a
``torch.autograd.Function`` and a compiled function of JAX with the same operands, which compute
nothing.

The modules with models are separate by library, because a library may be missing.
"""
