"""Look for quoted annotations in the signatures and the help of a module's public names."""

from __future__ import annotations

import inspect
import pydoc
import re

_QUOTED = re.compile(r"ForwardRef|\w: ?'[A-Za-z(]|-> '")


def names_of(module):
    """The public names of a module, and with a dot those of the methods of its classes."""
    names = []
    for name in module.__all__:
        value = getattr(module, name)
        names.append(name)
        if isinstance(value, type):
            names += [
                f"{name}.{member}"
                for member, function in vars(value).items()
                if not member.startswith("_")
                and inspect.isfunction(getattr(function, "__func__", function))
            ]
    return names


def quoted(module, name):
    """The lines of ``help`` and of the signature that have an annotation in quotes."""
    value = module
    for part in name.split("."):
        value = getattr(value, part)
    lines = (
        pydoc.render_doc(value, renderer=pydoc.plaintext).splitlines() if callable(value) else ()
    )
    found = [line for line in lines if _QUOTED.search(line) and ">>>" not in line]
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError):  # a constant, or a class of Python's
        return found
    return [*found, *filter(_QUOTED.search, [signature])]
