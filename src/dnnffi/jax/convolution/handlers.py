"""The handlers of convolutions: one executor's call, on the addresses of its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnffi.backends.conv_interface import ConvAddresses, ConvExecutor
from dnnffi.device.interface import ALIGNMENT, Launch
from dnnffi.jax import handlers as base
from dnnffi.jax.calls import WORKSPACE
from dnnffi.jax.convolution.call import Call
from dnnffi.jax.convolution.engine import Engine
from dnnffi.jax.handlers import Run, each
from dnnffi.jax.xla_ffi import Buffers
from dnnffi.spec.conv_problem import ARGUMENTS, OPERATIONS, RESULTS


class Handlers(base.Handlers):
    """Handlers of convolutions; ``engine`` makes their `Engine`."""

    read = staticmethod(Call.of_text)

    def __init__(self, prefix: str, platform: str, engine: Callable[[], Engine]) -> None:
        super().__init__(prefix, platform, OPERATIONS, engine)

    def _prepare(self, kind: str, call: Call, buffers: Buffers) -> Run:
        engine, problem, choice = self.engine, call.problem, call.choice
        needed = engine.workspace_bytes(problem, choice)
        if needed > call.workspace:
            raise RuntimeError(
                f"the program has {call.workspace} bytes of workspace; {needed} are needed for "
                f"{problem} by {choice}"
            )
        names = [one.name for one in (*buffers.operands, *buffers.results)]
        places = {name: place for place, name in enumerate(names)}
        read, result = ARGUMENTS[problem.operation], RESULTS[problem.operation]
        # Behind the last address there is a 0, for what is not there.
        order = [places.get(name, -1) for name in (*read, "", "")[:4]]
        order += [places[result], places[WORKSPACE] if needed else -1]
        made: dict[Any, ConvExecutor] = {}

        def once(launch: Launch, addresses: list[int]) -> None:
            executor = made.get(launch.owner)
            if executor is None:
                with engine.beside_capture():
                    executor = made[launch.owner] = engine.executor(problem, choice, launch)
            executor.run(launch, ConvAddresses._make([addresses[n] for n in order]))

        return each(once, buffers, call.problems, ALIGNMENT)
