"""Sources of the recurrent kernels: what a `Config` and the policy header of theirs contain."""

from __future__ import annotations

from collections.abc import Mapping

from dnnffi.backends.own import source
from dnnffi.backends.own.source import CONFIG_HEADER, Constant, KernelFolder, KernelSource

POLICY_HEADER = "product_policy.cuh"

FOLDER = KernelFolder(
    "dnnffi.backends.own.recurrent",
    config_include="modes.cuh",
    enums={"DTYPE": "Dtype", "FACTORS": "Dtype", "CELL": "CellMode", "CLIP": "Clip"},
)


def kernel_source(
    file: str, name: str, constants: Mapping[str, Constant], policy: str = ""
) -> KernelSource:
    """Return the source of the kernel ``name`` in ``file`` of the folder ``cuda``.

    ``policy`` is the header that `POLICY_HEADER` includes, if it is not the one of the file there.
    """
    made = {CONFIG_HEADER: config_header(constants)}
    if policy:
        made[POLICY_HEADER] = f'#pragma once\n#include "{policy}"\n'
    return source.with_headers(FOLDER, source.text_of(FOLDER, file), name, made)


def config_header(constants: Mapping[str, Constant]) -> str:
    """Return the text of ``kernel_config.cuh`` for the constants of a kernel.

    Examples
    --------
    >>> print(config_header({"DTYPE": "FLOAT16", "CELL": "LSTM"}))
    #pragma once
    #include "modes.cuh"
    <BLANKLINE>
    namespace dnnffi {
    <BLANKLINE>
    struct Config
    {
        static constexpr Dtype DTYPE = FLOAT16;
        static constexpr CellMode CELL = LSTM;
    };
    <BLANKLINE>
    } // namespace dnnffi
    <BLANKLINE>
    """
    text = source.config_header(FOLDER, constants)
    if "LAYERS" in constants:  # an attribute that only a macro can leave out
        of_cluster = "__cluster_dims__(BLOCKS * LAYERS, 1, 1)" if constants["CLUSTER"] else ""
        text += f"\n#define CLUSTER_BLOCKS {of_cluster}".rstrip() + "\n"
    return text
