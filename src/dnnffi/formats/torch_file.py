"""PyTorch's files of weights, which ``torch.save`` writes.

PyTorch itself reads them, with ``weights_only=True``: its unpickler makes tensors and plain
containers, and runs nothing. TorchScript archives are refused, because ``torch.jit.load``, the only
way to read them, runs the ``__setstate__`` of their modules.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from zipfile import ZipFile, is_zipfile

import numpy as np

from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import NDArray
from dnnffi.formats.npz import stored_members
from dnnffi.formats.outline import UNDESCRIBED, outline
from dnnffi.importing import import_lock
from dnnffi.spec.checks import ITEM_SIZES, clipped

# Earlier releases run code that a prepared file contains, also with weights_only=True
# (CVE-2025-32434).
_FIRST_SAFE_VERSION = (2, 6)
_INSTALL = "pip install torch"
_FIRST_BYTE_OF_PICKLE = b"\x80"  # of protocol 2 and newer

MAX_NESTING = 32
"""Upper bound on the depth of containers that are entered."""


class TorchReader:
    """The tensors of an open file, also those in nested dictionaries and lists.

    The names of containers and entries are joined by dots, as in "model_state.lstm.weight_ih_l0".

    Raises ``ValueError`` if the file has anything but tensors and plain containers, or if the
    tensors that are read claim more bytes than it has, ``ImportError`` without PyTorch 2.6. The
    whole file is read at once.

    Attributes
    ----------
    outlines : by name, an array of the tensor's shape and dtype that takes no memory
    description : empty, as these files say nothing about layers
    """

    description = UNDESCRIBED

    def __init__(self, file: BinaryIO) -> None:
        self._max_bytes = os.fstat(file.fileno()).st_size
        self._num_bytes = 0
        is_archive = is_zipfile(file)
        if is_archive:
            with ZipFile(file) as archive:
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    raise ValueError(
                        "it is a TorchScript archive, and loading it runs code that it contains. "
                        "If you trust it, pass torch.jit.load(path).state_dict() to "
                        "RNNWeights.from_torch"
                    )
            stored_members(file)
        torch = self._torch = _imported()
        file.seek(0)
        if not is_archive and file.read(1) != _FIRST_BYTE_OF_PICKLE:
            raise ValueError("torch.save has not written it")
        file.seek(0)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            # PyTorch's message recommends to unpickle anything.
            raise ValueError(
                "it has objects other than tensors and plain containers, which are not "
                "unpickled: save module.state_dict() with PyTorch"
            ) from error
        self._tensors: dict[str, Any] = {}
        self.outlines: dict[str, NDArray] = {}
        for name, tensor in _tensors(torch, content):
            dtype = _dtype(tensor)
            if dtype is None or tensor.layout != torch.strided:
                continue
            if name in self._tensors:
                raise ValueError(f"it has two tensors of the name {clipped(name)}")
            self._tensors[name] = tensor
            self.outlines[name] = outline(tuple(tensor.shape), dtype)

    def array(self, name: str) -> NDArray:
        """Return a tensor as an array."""
        # Not in the constructor: another tensor of the model may repeat its elements.
        if self.outlines[name].nbytes > self._tensors[name].untyped_storage().nbytes():
            raise ValueError(f"{clipped(name)} claims more bytes than are stored for it")
        self._num_bytes += self.outlines[name].nbytes
        if self._num_bytes > self._max_bytes:
            raise ValueError(f"its tensors claim more bytes than the {self._max_bytes:,} of it")
        tensor = self._tensors[name].detach()
        bits: NDArray = tensor.contiguous().flatten().view(_bits(self._torch, tensor)).numpy()
        return bits.view(self.outlines[name].dtype).reshape(self.outlines[name].shape)

    def text(self, name: str) -> str | None:
        """Return None: these files have no texts."""
        return None

    def close(self) -> None:
        """Do nothing: the file itself stays open."""


def _imported() -> Any:
    try:
        with import_lock:
            import torch
    except ImportError as error:
        raise ImportError(
            f"Reading files .pt and .pth needs PyTorch. Install: {_INSTALL}. Or save the weights "
            f"where it is installed: RNNWeights.from_torch(module.state_dict()).save('rnn.npz')"
        ) from error
    major, minor = torch.__version__.split(".")[:2]
    if (int(major), int(minor)) < _FIRST_SAFE_VERSION:
        raise ImportError(
            f"Reading files .pt and .pth needs PyTorch 2.6: earlier ones, as {torch.__version__}, "
            f"run code in files that they read (CVE-2025-32434). Install: {_INSTALL} --upgrade"
        )
    return torch


def _dtype(tensor: Any) -> np.dtype[Any] | None:
    """Return NumPy's dtype; None for one that weights do not have."""
    name = str(tensor.dtype).removeprefix("torch.")
    return dtype_object(name) if name in ITEM_SIZES else None


def _bits(torch: Any, tensor: Any) -> Any:
    """Return the integer dtype of the size of the tensor's elements: NumPy has no bfloat16."""
    return {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]


def _tensors(torch: Any, content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in ``content`` with their names; each container is entered once."""
    entered: set[int] = set()
    waiting: list[tuple[tuple[str, ...], Any]] = [((), content)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield ".".join(path), value
            continue
        entries: list[tuple[Any, Any]] = []
        if isinstance(value, Mapping):
            entries = list(value.items())
        elif isinstance(value, list | tuple):
            entries = list(enumerate(value))
        if entries and id(value) not in entered and len(path) < MAX_NESTING:
            entered.add(id(value))
            waiting += [((*path, str(key)), one) for key, one in reversed(entries)]
