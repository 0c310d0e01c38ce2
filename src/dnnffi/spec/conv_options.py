"""Options of a convolution call: math, determinism, tuning, workspace, validation."""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.spec.checks import check_integer, checked_options, option_flag, option_of_choices, shown
from dnnffi.spec.names import Math, Tune
from dnnffi.spec.options import EMBEDDING, MATHS, EmbeddingDict, check_tune


class ConvOptionsDict(EmbeddingDict, total=False):
    """``options`` of a convolution, as a caller writes them; `ConvOptions` says what they mean."""

    math: Math
    deterministic: bool
    tune: Tune
    workspace_limit: int | None
    validate: bool


class ConvOptions(NamedTuple):
    """The checked form of ``options``. The reference heeds ``validate`` alone.

    math : "default" (float32 may use TF32, as PyTorch does), "strict" (no reduced precision),
        "fast" (float32 may be converted down for the tensor cores)
    deterministic : only algorithms that give the same bits each time
    tune : as `dnnffi.spec.options.check_tune` describes; with "auto" nothing is measured unless
        `ConvPlan.autotune` is called
    workspace_limit : bytes that an algorithm may ask for, or None for no limit
    validate : run the reference too, and compare
    """

    math: str = "default"
    deterministic: bool = False
    tune: str = "auto"
    workspace_limit: int | None = None
    validate: bool = False


DEFAULTS = ConvOptions()


def conv_options(options: object) -> ConvOptions:
    """``options`` of a call, checked. ``None`` means the defaults.

    Raises ``TypeError`` or ``ValueError`` naming the key, what came and what was expected.
    """
    if options is None:
        return DEFAULTS
    return checked_options(options, ConvOptions, _check, elsewhere=EMBEDDING)


def _check(options: dict[str, object]) -> ConvOptions:
    limit = options.get("workspace_limit")
    if limit is not None:
        limit = check_integer("options['workspace_limit']", limit)
        if limit < 0:
            raise ValueError(
                f"options['workspace_limit'] must be 0 bytes or more; got {shown(limit)}"
            )
    return ConvOptions(
        math=option_of_choices(options, "math", MATHS),
        deterministic=option_flag(options, "deterministic"),
        tune=check_tune(options),
        workspace_limit=limit,
        validate=option_flag(options, "validate"),
    )
