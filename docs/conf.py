"""Sphinx configuration: pages in Markdown, the reference from the docstrings."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # directives.py

import dnnffi

project = "dnnffi"
author = "dnnffi contributors"
copyright = author
release = version = dnnffi.__version__

extensions = [
    "myst_parser",
    "directives",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
smartquotes = False  # "cudnn" is a string
default_role = "py:obj"  # `name` in a docstring is a reference where there is such a name
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autosummary_generate = False  # the pages of the reference are written by hand
autodoc_type_aliases = {
    name: name
    for name in ("AnyArray", "Array", "CellState", "DTypeLike", "LayoutName", "Mode", "Weights")
}
# dnnffi.testing needs Hypothesis and dnnffi.torch needs PyTorch; the documentation needs neither.
autodoc_mock_imports = [name for name in ("hypothesis", "torch") if not find_spec(name)]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = f"dnnffi {release}"
html_show_copyright = False

_SECTION = re.compile(r"(Parameters|Attributes|Returns|Raises)$")
_FIELD = re.compile(r"\w[\w, ]* : ")
_DRAW = re.compile(r"\(draw: [\w.]+(?:, )?")
_ALIAS = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")


def list_sections(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make lists of the sections at the end of a docstring.

    They look like numpydoc's, but say shape and meaning in a sentence after ``x :``, where
    Napoleon would take it for a type.
    """
    at = lines.index("Examples") if "Examples" in lines else len(lines)
    examples, lines[at:] = lines[at:][2:], []
    starts = (n for n, line in enumerate(lines) if _SECTION.match(line) or _FIELD.match(line))
    start = next(starts, len(lines))
    result = lines[:start]
    for line in lines[start:]:
        names, colon, text = line.partition(" : ")
        mark = "**" if colon else "`"  # errors have no colon, and pages of their own
        if _SECTION.match(line):
            result.append(f":{line}:")
        elif line.startswith(" "):
            result.append(f"  {line}")  # keeps the indentation of a list in a description
        elif line.strip("-"):
            marked = ", ".join(f"{mark}{one}{mark}" for one in names.split(", "))
            result.append(f"    * {marked}: {text}".rstrip())
        elif not line:
            result.append(line)
    if examples:
        result += ["", ".. rubric:: Examples", "", *examples]
    lines[:] = result


def tidy_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str]:
    """Show aliases by their names inside of other types too, and strategies as they are called."""
    if signature and (drawn := _DRAW.match(signature)):
        # What Hypothesis, were it there, would have made of a strategy.
        signature, returns = f"({signature[drawn.end() :]}", f"SearchStrategy[{returns}]"
    shown = (text and text.replace("hypothesis.strategies.", "") for text in (signature, returns))
    return tuple(text and _ALIAS.sub(r"\1", text) for text in shown)


def resolve_public_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Find the public names of dnnffi from any module, as its docstrings write them."""
    target = node.get("reftarget")
    if node.get("refdomain") != "py" or target not in dnnffi.__all__:
        return None
    python = env.domains.python_domain
    return python.resolve_xref(
        env, node["refdoc"], app.builder, "obj", f"dnnffi.{target}", node, content
    )


def break_code_in_cells(
    app: Any, page: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """Let code in the cells of tables go on in the next line after an underscore or a slash."""
    body = context.get("body", "")
    context["body"] = _CELL.sub(lambda cell: _CODE.sub(_with_breaks, cell[0]), body)


def _with_breaks(code: re.Match[str]) -> str:
    parts = re.split(r"(<[^>]*>)", code[0])  # text and tags in turns
    parts[::2] = [_BREAK.sub(r"\1<wbr>", text) for text in parts[::2]]
    return "".join(parts)


_CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
_CODE = re.compile(r"<code\b.*?</code>", re.DOTALL)
_BREAK = re.compile(r"(_|/|::|\.(?=[a-z]))(?=[\w.])")


def setup(app: Any) -> None:
    """Register the hooks."""
    app.connect("html-page-context", break_code_in_cells)
    app.connect("missing-reference", resolve_public_name)
    app.connect("autodoc-process-docstring", list_sections)
    app.connect("autodoc-process-signature", tidy_signature)
