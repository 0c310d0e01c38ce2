"""The directives of the pages.

``generated NAME [FILE]`` shows a content that a function with `records.shows` makes, with FILE
instead of its first record, or says that there is none; its option ``fold`` is a title under which
a reader opens a long table.
``loss-figure TITLE`` draws the losses that the code of its page computes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import figures
import limit_tables  # noqa: F401 - registers contents, like the modules below
import own_aims  # noqa: F401
import record_tables  # noqa: F401
import support_table  # noqa: F401
from docutils import nodes
from docutils.parsers.rst import directives
from records import CONTENTS, Block, Html, Literal, MissingRecordError, blocks
from sphinx.util.docutils import SphinxDirective


class Generated(SphinxDirective):
    """``generated NAME [FILE]``."""

    required_arguments = 1
    optional_arguments = 1
    option_spec: ClassVar[Any] = {"fold": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        if self.arguments[0] not in CONTENTS:
            raise self.error(f"no generated content has the name {self.arguments[0]}")
        self.env.note_reread()  # it depends on records and on the code
        try:
            shown = [_node(block) for block in blocks(*self.arguments)]
        except MissingRecordError as missing:
            return [nodes.paragraph(text=f"This checkout holds no such record ({missing}).")]
        if "fold" not in self.options:
            return shown
        title = escape(self.options["fold"])
        opening = Html(f"<details class='fold'><summary>{title}</summary>")
        return [_node(opening), *shown, _node(Html("</details>"))]


def _node(block: Block) -> nodes.Node:
    if isinstance(block, Html):
        return nodes.raw("", block, format="html")
    if isinstance(block, Literal):
        return nodes.literal_block(block, block, language="text")
    if isinstance(block, str) or not block:
        return nodes.paragraph(text=block or "Not measured yet.")
    if isinstance(block[0], dict):
        return _table([list(row.values()) for row in block], list(block[0]))
    return _table(block)


def _table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> nodes.table:
    """Return a table of plain text."""
    longest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    group = nodes.tgroup(cols=len(longest))
    # A name of a shape is not to take six lines beside columns of short numbers.
    group += [nodes.colspec(colwidth=min(max(length, 9), 30)) for length in longest]
    if head:
        group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group, classes=["colwidths-given"])


def _row(texts: Sequence[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=text)) for text in texts))


class LossFigure(SphinxDirective):
    """``loss-figure TITLE``: runs the blocks above it on NumPy, and draws their ``losses``."""

    final_argument_whitespace = True
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = Path(self.get_source_info()[0])
        above = path.read_text(encoding="utf-8").partition("{loss-figure}")[0]
        names: dict[str, Any] = {}
        for code in re.findall(r"^```python\n(.*?)^```$", above, re.MULTILINE | re.DOTALL):
            exec(compile(code, str(path), "exec"), names)
        title = self.arguments[0]
        drawn = [figures.svg(figures.curve(names["losses"], title, one)) for one in figures.LAYOUTS]
        return [_node(figures.in_both_layouts("loss", f"A curve: {title}", *drawn))]


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("generated", Generated)
    app.add_directive("loss-figure", LossFigure)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
