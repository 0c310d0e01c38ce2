"""The backends of dnnffi that calls on a simulator have used."""

from __future__ import annotations

from typing import Any

from dnnffi.convolution.backend import conv_backends
from dnnffi.rnn.backend import rnn_backends


class UsedBackends:
    """The sources of plans that calls on ``library``, dnnffi's library object, have made."""

    library: Any

    @property
    def rnn(self):
        """The backend's source of networks; None before its first use."""
        return self._used(rnn_backends.used())

    @property
    def conv(self):
        """The backend's source of convolutions; None before its first use."""
        return self._used(conv_backends.used())

    def _used(self, backends):
        found = (one for one in backends if getattr(one, "library", None) is self.library)
        return next(found, None)
