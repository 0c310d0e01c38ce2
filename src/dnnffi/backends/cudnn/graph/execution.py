"""Running a graph: the plan, the addresses it runs on, and the one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.graph.attributes import (
    ADDRESS,
    DESCRIPTOR,
    HANDLE,
    INT64,
    attribute,
    table,
)
from dnnffi.backends.cudnn.graph.descriptor import BackendDescriptor
from dnnffi.backends.cudnn.graph.engine import EngineConfig
from dnnffi.backends.cudnn.graph.types import DESCRIPTORS
from dnnffi.backends.cudnn.library import Library
from dnnffi.backends.vendor.handle import Handle
from dnnffi.device.interface import Launch
from dnnffi.execution.cache import PlanCache

MAX_PACKS = 32
"""Sets of addresses that a `VariantPacks` knows again."""


class RunnablePlan(Protocol):
    """A plan that `execute` runs: an engine that was made ready for a graph and a handle.

    Attributes: ``workspace_size`` (bytes).
    """

    library: Library
    workspace_size: int

    @property
    def pointer(self) -> Any:
        """The execution plan of cuDNN. Raises ``ValueError`` once closed."""

    def close(self) -> None:
        """Destroy the plan and release what it needed. A second call does nothing."""


class ExecutionPlan(BackendDescriptor):
    """An engine configuration made ready to run on the GPU of ``handle``.

    Attributes: ``workspace_size`` (bytes). cuDNN does not promise that several threads may run one
    plan at a time: each should have its own, made from the same ``config``.

    Raises `UnsupportedError` where the engine cannot compute the graph, `CudnnError`.
    """

    _kind = "EXECUTION_PLAN"
    attributes = table(
        handle=attribute("EXECUTION_PLAN_HANDLE", HANDLE, readable=False),
        config=attribute("EXECUTION_PLAN_ENGINE_CONFIG", DESCRIPTOR, readable=False),
        workspace_size=attribute("EXECUTION_PLAN_WORKSPACE_SIZE", INT64),
    )

    def __init__(
        self, handle: Handle, config: EngineConfig, *, library: Library | None = None
    ) -> None:
        super().__init__(library, {"handle": handle, "config": config})
        try:
            self.workspace_size: int = self.read("workspace_size")
        except BaseException:
            self.close()
            raise


_PACK = DESCRIPTORS["CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR"]
_ATTRIBUTES = (
    attribute("VARIANT_PACK_UNIQUE_IDS", INT64),
    attribute("VARIANT_PACK_DATA_POINTERS", ADDRESS),
    attribute("VARIANT_PACK_WORKSPACE", ADDRESS),
)


def _pack(library: Library, uids: Any, addresses: tuple[int, ...]) -> Any:
    """Return a finalized pack, freed with its last reference. The workspace's address is last."""
    lib, count = library.lib, len(addresses) - 1
    out = ffi.new("cudnnBackendDescriptor_t *")
    status = lib.cudnnBackendCreateDescriptor(_PACK, out)
    if status:
        raise library.error(status, "cudnnBackendCreateDescriptor", "VariantPack")
    pointer = ffi.gc(out[0], lib.cudnnBackendDestroyDescriptor)
    array = ADDRESS.new(addresses)
    elements = (uids, count), (array, count), (array + count, 1)
    for (number, (kind, *_), *_), (values, size) in zip(_ATTRIBUTES, elements, strict=True):
        status = lib.cudnnBackendSetAttribute(pointer, number, kind, size, values)
        if status:
            raise library.error(status, "cudnnBackendSetAttribute", _words(uids, addresses))
    status = lib.cudnnBackendFinalize(pointer)
    if status:
        raise library.error(status, "cudnnBackendFinalize", _words(uids, addresses))
    return pointer


def _words(uids: Any, addresses: tuple[int, ...]) -> str:
    return f"VariantPack(uids={tuple(uids)}, addresses={addresses[:-1]}, workspace={addresses[-1]})"


class VariantPacks:
    """Variant packs for the same tensors at other addresses, made when they are first asked for.

    A finalized pack cannot be changed, so a call at new addresses needs a new one; a call at known
    addresses, which is what a memory pool gives, needs only a look. Packs are made without what
    other descriptors go through, which takes longer. Threads may share it.
    """

    def __init__(self, uids: Sequence[int], *, library: Library) -> None:
        self._uids = INT64.new(uids)
        self._library = library
        self._packs: PlanCache[Any] = PlanCache(MAX_PACKS)

    def at(self, addresses: tuple[int, ...]) -> Any:
        """Return the pack for addresses of tensors in the order of the uids, then the workspace.

        The last is 0 where none is needed. The pack goes with the last reference to it: the caller
        keeps it until its call has returned. Raises `CudnnError` naming what was refused.
        """
        pack = self._packs.find(addresses)
        return self._new(addresses) if pack is None else pack

    def _new(self, addresses: tuple[int, ...]) -> Any:
        return self._packs.get(addresses, partial(_pack, self._library, self._uids, addresses))

    def clear(self) -> None:
        """Release all packs."""
        self._packs.clear()


def execute(launch: Launch, plan: RunnablePlan, pack: Any) -> None:
    """Run ``plan`` on the stream of ``launch`` (``cudnnBackendExecute``), on a pack of its tensors.

    The memory of ``pack`` must stay until the GPU is done with it, pack and plan only until this
    returns. Raises `CudnnError` or `UnsupportedError`.
    """
    library = plan.library
    status = library.lib.cudnnBackendExecute(launch.handle, plan.pointer, pack)
    if status:
        raise library.error(status, "cudnnBackendExecute", plan)
