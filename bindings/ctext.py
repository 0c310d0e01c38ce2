"""Read the C text of a vendor: as cffi takes it, and as a list of single declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S+)[ \t]*")

# Names that cffi knows by itself and that the parser must be told are types.
STANDARD_TYPES = (
    *("bool", "size_t", "ptrdiff_t", "intptr_t", "uintptr_t"),
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


class TextError(Exception):
    """The C text has something that these tools do not take; the message says what and where."""


@dataclass(frozen=True)
class Declaration:
    """One declaration of the C text and the C code that checks it after the real header."""

    kind: str
    """``function``, ``type``, ``constant`` or ``enumerator``."""
    name: str
    where: str
    """File and line in the C text."""
    check: str
    """One line of C, valid where the header agrees."""


def address_types(addresses: Mapping[str, str]) -> str:
    """Return the typedefs by which cffi takes addresses as integers."""
    return "".join(f"typedef uintptr_t {name};\n" for name in addresses)


def cdef(folder: Path, topics: Sequence[str], addresses: Mapping[str, str]) -> str:
    """Return the whole text, as cffi takes it."""
    parts = [(folder / topic).read_text(encoding="utf-8") for topic in topics]
    return "\n".join([address_types(addresses), *parts])


def declarations(
    folder: Path, topics: Sequence[str], addresses: Mapping[str, str]
) -> list[Declaration]:
    """Return the declarations of all topics, in their order.

    Raises TextError for what is neither a prototype, an enumeration with explicit values, a
    structure, a type name nor an integer ``#define``.
    """
    found: list[Declaration] = []
    known = "".join(f"typedef int {name};" for name in STANDARD_TYPES)
    pieces = [f'#line 1 "<addresses>"\n{known}\n{address_types(addresses)}']
    for topic in topics:
        # Comments become blanks of as many lines, so that line numbers stay those of the file.
        text = COMMENT.sub(
            lambda match: " " + "\n" * match.group().count("\n"),
            (folder / topic).read_text(encoding="utf-8"),
        )
        shown = f"{folder.parent.name}/{folder.name}/{topic}"
        for directive in DIRECTIVE.finditer(text):
            where = f"{shown}:{text.count(chr(10), 0, directive.start()) + 1}"
            define = DEFINE.fullmatch(directive.group())
            if define is None:
                raise TextError(f"{where}: a directive that is not an integer #define")
            value = _number(define[2], define[1], where)
            found.append(_constant("constant", define[1], value, where))
        pieces.append(f'#line 1 "{shown}"\n{DIRECTIVE.sub("", text)}')
    try:
        nodes = c_parser.CParser().parse("\n".join(pieces)).ext
    except c_parser.ParseError as error:
        raise TextError(str(error)) from None
    for node in nodes:
        if node.coord is None or node.coord.file != "<addresses>":
            found += _declared(node)
    return found


def _constant(kind: str, name: str, value: int, where: str) -> Declaration:
    check = f'_Static_assert(({name}) == {value}, "{name} is not {value}");'
    return Declaration(kind, name, where, check)


def _same_size(name: str, as_type: str, where: str) -> Declaration:
    check = f"_Static_assert(sizeof({name}) == sizeof({as_type}), "
    return Declaration("type", name, where, f'{check}"{name} is not of the size of {as_type}");')


def _declared(node: c_ast.Node) -> Iterator[Declaration]:
    where = f"{node.coord.file}:{node.coord.line}"
    # An enumeration cannot be declared again after the header's, so its parts are asserted.
    enum = _enumeration(node)
    if enum is not None:
        for item in enum.values.enumerators:
            place = f"{item.coord.file}:{item.coord.line}"
            value = c_generator.CGenerator().visit(item.value) if item.value else ""
            number = _number(value, item.name, place)
            yield _constant("enumerator", item.name, number, place)
        if isinstance(node, c_ast.Typedef):
            yield _same_size(node.name, "int", where)
        return
    struct = _structure(node)
    if struct is not None:
        yield _same_members(node.name, struct, where)
        return
    code = " ".join(c_generator.CGenerator().visit(node).split()) + ";"
    if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
        yield Declaration("function", node.name, where, code)
    elif isinstance(node, c_ast.Typedef) and isinstance(node.type, c_ast.PtrDecl):
        yield Declaration("type", node.name, where, code)
    elif isinstance(node, c_ast.Typedef):
        # A plain number here may be an enumeration in the header: the same to a call.
        base = c_generator.CGenerator().visit(node.type.type)
        yield _same_size(node.name, base, where)
    else:
        raise TextError(f"{where}: neither a prototype, an enumeration nor a type name: {code}")


def _enumeration(node: c_ast.Node) -> c_ast.Enum | None:
    inner = getattr(node, "type", None)
    if isinstance(inner, c_ast.TypeDecl):
        inner = inner.type
    return inner if isinstance(inner, c_ast.Enum) and inner.values is not None else None


def _structure(node: c_ast.Node) -> c_ast.Struct | None:
    """Return the structure without a tag that a typedef names, or None."""
    inner = node.type.type if isinstance(getattr(node, "type", None), c_ast.TypeDecl) else None
    return inner if isinstance(inner, c_ast.Struct) and inner.decls is not None else None


def _same_members(name: str, struct: c_ast.Struct, where: str) -> Declaration:
    """Assert that the header's structure has the size and the members' places of the C text's."""
    ours = f"dnnffi_{name}"
    body = " ".join(c_generator.CGenerator().visit(struct).split())
    equal = [(f"sizeof({name})", f"sizeof({ours})", "is of another size")]
    for member in (decl.name for decl in struct.decls):
        at, size = "__builtin_offsetof({}, {})", "sizeof((({} *)0)->{})"
        other = f"has {member} elsewhere"
        equal += [(f.format(name, member), f.format(ours, member), other) for f in (at, size)]
    checks = (f'_Static_assert({one} == {two}, "{name} {why}");' for one, two, why in equal)
    return Declaration("type", name, where, f"typedef {body} {ours}; {' '.join(checks)}")


def _number(text: str, name: str, where: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise TextError(f"{where}: {name} needs a number as its value") from None
