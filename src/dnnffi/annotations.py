"""Show the annotations of public names as they are written, in signatures and in ``help``.

Annotations are texts (PEP 563), which ``inspect.signature`` shows in quotes, and named tuples make
``ForwardRef`` of them. The texts themselves read best: ``backend: BackendName | None``.
"""

from __future__ import annotations

import inspect
import re
from types import FunctionType
from typing import Any

_FORWARD_REFERENCE = re.compile(r"ForwardRef\('([^']*)'[^)]*\)")


class AnnotationText(str):
    """The text of an annotation; its ``repr`` has no quotes."""

    __slots__ = ()

    __repr__ = str.__str__


def show_annotations(*values: object) -> None:
    """Replace the annotations of functions, and of classes and their methods, by their texts.

    ``typing.get_type_hints`` evaluates them as before. Of the bases of a class those are included
    that dnnffi defines; other values are left alone.
    """
    for value in values:
        if not isinstance(value, type):
            _show(value)
            continue
        for base in value.__mro__:
            if base.__module__.partition(".")[0] == __package__:
                _show(base)
                for member in list(vars(base).values()):
                    _show(getattr(member, "__func__", member))  # of a class or static method


def _show(owner: Any) -> None:
    """Replace the annotations of one function, or of a class without its methods."""
    if not isinstance(owner, FunctionType | type):
        return
    annotations = inspect.get_annotations(owner)
    texts = {name: _text(one) for name, one in annotations.items()}
    if any(texts[name] is not one for name, one in annotations.items()):
        owner.__annotations__ = texts
    _show(vars(owner).get("__wrapped__"))  # which has the signature of a context manager
    signature = vars(owner).get("__signature__")  # of a strategy, say
    if isinstance(signature, inspect.Signature):
        owner.__signature__ = signature.replace(  # type: ignore[union-attr]
            parameters=[
                one.replace(annotation=_text(one.annotation))
                for one in signature.parameters.values()
            ],
            return_annotation=_text(signature.return_annotation),
        )


def _text(annotation: Any) -> Any:
    """Return an annotation that shows its text, or the annotation if it does so itself."""
    if annotation.__class__ is str:
        return AnnotationText(annotation)
    written = repr(annotation)
    text = _FORWARD_REFERENCE.sub(r"\1", written)
    return annotation if text == written else AnnotationText(text)
