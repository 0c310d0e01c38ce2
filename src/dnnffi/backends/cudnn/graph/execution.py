"""Running a graph: the plan, the addresses it runs on, and the one call."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dnnffi.backends.cudnn.graph.attributes import (
    ADDRESS,
    DESCRIPTOR,
    HANDLE,
    INT64,
    TEXT,
    attribute,
    table,
)
from dnnffi.backends.cudnn.graph.descriptor import BackendDescriptor
from dnnffi.backends.cudnn.graph.engine import EngineConfig
from dnnffi.backends.cudnn.handle import Handle
from dnnffi.backends.cudnn.library import Library

MOST_PACKS = 32
"""Sets of addresses that a `VariantPacks` knows again."""


class ExecutionPlan(BackendDescriptor):
    """An engine configuration made ready to run on the GPU of ``handle``.

    Attributes: ``workspace_size`` (bytes). cuDNN does not promise that several threads may run one
    plan at a time: each should have its own, made from the same ``config``.

    Raises `UnsupportedError` where the engine cannot compute the graph, `CudnnError`.
    """

    _kind = "EXECUTION_PLAN"
    _attributes = table(
        handle=attribute("EXECUTION_PLAN_HANDLE", HANDLE, readable=False),
        config=attribute("EXECUTION_PLAN_ENGINE_CONFIG", DESCRIPTOR, readable=False),
        json=attribute("EXECUTION_PLAN_JSON_REPRESENTATION", TEXT, many=True, readable=False),
        workspace_size=attribute("EXECUTION_PLAN_WORKSPACE_SIZE", INT64),
    )

    def __init__(
        self, handle: Handle, config: EngineConfig, *, library: Library | None = None
    ) -> None:
        self._make(library, {"handle": handle, "config": config})

    @classmethod
    def from_json(
        cls, handle: Handle, text: str, *, library: Library | None = None
    ) -> ExecutionPlan:
        """The plan that `to_json` wrote, on the same kind of GPU and version of cuDNN.

        Raises `CudnnError` or `UnsupportedError` where cuDNN does not take it.
        """
        plan = cls.__new__(cls)
        plan._make(library, {"handle": handle, "json": text.encode()})
        return plan

    def _make(self, library: Library | None, values: dict[str, object]) -> None:
        super().__init__(library, values)
        try:
            self.workspace_size: int = self.read("workspace_size")
        except BaseException:
            self.close()
            raise

    def to_json(self) -> str:
        """The plan as text, from which it can be made without asking the heuristics."""
        return b"".join(self.read("json")).rstrip(b"\0").decode()


class VariantPack(BackendDescriptor):
    """Addresses for the tensors of a graph, and of the workspace (0 where none is needed).

    ``uids`` and ``addresses`` go together. The library gives neither back (seen on 9.19).
    """

    _kind = "VARIANT_PACK"
    _attributes = table(
        uids=attribute("VARIANT_PACK_UNIQUE_IDS", INT64, many=True, readable=False),
        addresses=attribute("VARIANT_PACK_DATA_POINTERS", ADDRESS, many=True, readable=False),
        workspace=attribute("VARIANT_PACK_WORKSPACE", ADDRESS),
    )

    def __init__(
        self,
        uids: Sequence[int],
        addresses: Sequence[int],
        workspace: int = 0,
        *,
        library: Library | None = None,
    ) -> None:
        if not uids:
            raise ValueError("uids: a pack needs at least one tensor")
        if len(uids) != len(addresses):
            raise ValueError(
                f"addresses must have one entry for each of the {len(uids)} uids; "
                f"got {len(addresses)}"
            )
        values = {"uids": tuple(uids), "addresses": tuple(addresses), "workspace": workspace}
        super().__init__(library, values)


class VariantPacks:
    """Variant packs for the same tensors at other addresses, made when they are first asked for.

    A finalized pack cannot be changed, so a call at new addresses needs a new one; a call at known
    addresses, which is what a memory pool gives, needs only a look. Threads may share it.
    """

    def __init__(self, uids: Sequence[int], *, library: Library) -> None:
        self._uids = tuple(uids)
        self._library = library
        self._packs: dict[tuple[int, ...], VariantPack] = {}
        self._lock = threading.Lock()

    def at(self, addresses: tuple[int, ...]) -> VariantPack:
        """The pack for the addresses of the tensors in the order of the uids, then the workspace.

        The caller keeps it until its call has returned.
        """
        pack = self._packs.get(addresses)
        return self._new(addresses) if pack is None else pack

    def _new(self, addresses: tuple[int, ...]) -> VariantPack:
        pack = VariantPack(self._uids, addresses[:-1], addresses[-1], library=self._library)
        with self._lock:
            if len(self._packs) >= MOST_PACKS:
                # The oldest; a thread that is just using it has its own reference.
                del self._packs[next(iter(self._packs))]
            self._packs[addresses] = pack
        return pack

    def clear(self) -> None:
        """Let go of all packs."""
        with self._lock:
            self._packs.clear()


def execute(handle: Handle, plan: ExecutionPlan, pack: VariantPack) -> None:
    """Run ``plan`` on the stream of ``handle`` (``cudnnBackendExecute``).

    The memory of ``pack`` must stay until the GPU is done with it, pack and plan only until this
    returns. Raises `CudnnError` or `UnsupportedError`.
    """
    library = plan.library
    status = library.lib.cudnnBackendExecute(handle.pointer, plan.pointer, pack.pointer)
    if status:
        raise library.error(status, "cudnnBackendExecute", plan)
