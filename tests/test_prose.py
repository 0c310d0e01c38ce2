"""The check of sentences finds what it is for, at its line, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from prose import search

GOOD = {
    "a.py": '"""Return the offsets of rows."""\n\n\ndef f():\n    """Whatever is left."""\n',
    "a.cu": "/* The offsets of a packed batch. */\nint a; /* what nobody asked for */\n",
    "Makefile": "lint: a ## Check the style\n",
    "a.md": "What is this? It is compared with PyTorch in a forward pass.\n",
}
BAD = {
    "a.py": (
        '"""A file."""\n\n\nclass A:\n    """What a step reads."""\n',
        [(5, "What a step reads.")],
    ),
    "b.py": ('def f():\n    """Of one row,\n    or two.\n    """\n', [(2, "Of one row,")]),
    "c.py": ('def f():\n    """Is there one?"""\n', [(2, "Is there one?")]),
    "a.cuh": ("\n/* Those of a row. */\n", [(2, "Those of a row.")]),
    "Makefile": ("all:\nlint: ## What to check\n", [(2, "What to check")]),
    "d.py": ("a = 1  # of a forward\n", [(1, "a forward")]),
    "a.md": (
        "It waits in\nvain.\n```\nit lets go of\n```\nEach backward does.\n",
        [(1, "in vain"), (6, "Each backward")],
    ),
    "a.toml": ("# lets go of a kernel of ours\n", [(1, "lets go of"), (1, "of ours")]),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_fine(name):
    assert list(search(Path(name), GOOD[name])) == []


@pytest.mark.parametrize("name", BAD)
def test_what_is_found(name):
    text, expected = BAD[name]
    found = list(search(Path(name), text))
    assert [one.line for one in found] == [line for line, _ in expected]
    for one, (_, words) in zip(found, expected, strict=True):
        assert words in one.words
