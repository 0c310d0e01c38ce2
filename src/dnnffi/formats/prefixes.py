"""Selection of a network among named arrays: by prefix, or by a mapping of names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dnnffi.formats.network import Cell, Network, network
from dnnffi.spec.checks import brief, clipped, listed
from dnnffi.spec.names import Mode


class Layers(NamedTuple):
    """Layers of a network: for each, the cells of its directions."""

    mode: Mode
    cells: list[list[Cell]]


def rename_arrays(
    where: str, arrays: Mapping[str, Any], prefix: object, names: object
) -> Mapping[str, Any]:
    """Return the arrays under the names that ``names`` gives them; all arrays without it.

    ``where`` begins messages. ``TypeError`` or ``ValueError`` if ``names`` is not a mapping of
    names of ``arrays``, or a prefix is given too.
    """
    if names is None:
        return arrays
    if not isinstance(names, Mapping) or not all(
        isinstance(one, str) for item in names.items() for one in item
    ):
        raise TypeError(f"names must be a mapping of str to str; got {brief(names)}")
    if prefix is not None:
        raise ValueError("names has whole names: pass either names or prefix")
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(f"{where}missing: {listed(missing)}; its names are {listed(arrays)}")
    if len(set(names.values())) < len(names):
        raise ValueError(f"names gives several arrays one name; got {brief(names)}")
    return {ours: arrays[theirs] for theirs, ours in names.items()}


def select_prefixes(
    where: str, names: Collection[str], prefixes: Sequence[str], prefix: object
) -> list[str]:
    """Return those of ``prefixes`` that the caller asks for.

    Parameters
    ----------
    where : beginning of messages
    names : of all arrays
    prefixes : under which there are networks
    prefix : of one network, or of several that are stacked, each whole or as the beginning of only
        one; None if there is only one
    """
    if prefix is None:
        return [_only(where, names, prefixes, "")]
    wanted = [prefix] if isinstance(prefix, str) else prefix
    if (
        not isinstance(wanted, list | tuple)
        or not wanted
        or not all(isinstance(one, str) for one in wanted)
    ):
        raise TypeError(f"prefix must be a str, or a list of them; got {brief(prefix)}")
    return [one if one in prefixes else _only(where, names, prefixes, one) for one in wanted]


def stack_layers(parts: Sequence[Layers]) -> Network:
    """Return the network of parts that are stacked in this order."""
    modes = [part.mode for part in parts]
    if len(set(modes)) > 1:
        raise ValueError(f"layers must be of one mode; got {', '.join(dict.fromkeys(modes))}")
    return network(modes[0], [layer for part in parts for layer in part.cells])


def _only(where: str, names: Collection[str], prefixes: Sequence[str], beginning: str) -> str:
    """Return the only prefix with this beginning; ``ValueError`` that lists what there is."""
    matching = [one for one in prefixes if one.startswith(beginning)]
    if len(matching) == 1:
        return matching[0]
    shown = f" with prefix {clipped(beginning)!r}" if beginning else ""
    if matching or prefixes:
        count = f"{len(matching)} networks" if matching else "no network"
        ways = listed(map(repr, matching or prefixes), " or prefix=")
        raise ValueError(f"{where}{count}{shown}; pass prefix={ways}")
    raise ValueError(
        f"{where}no weights of an RNN under names of PyTorch or Keras; its names are "
        f"{listed(names) or 'none'}"
    )
