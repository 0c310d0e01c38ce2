"""List sentences of the repository that do not say what they are about, and fail if there are any.

    python tests/prose.py [FILE ...]

The first sentence of a docstring, or of a comment of C, CUDA or the Makefile, names a thing or says
what is done: it is no question, and no fragment that needs the name above it. Some phrases are
idioms, or have a pronoun without a noun. ``MEANT`` has the sentences that were read and stay.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

_QUESTION = "What|How|Where|Which|Who|When|Why"
_FRAGMENT = "Of|That|Than|Those|These|With what|By what|From which|To which"
_BAD_BEGINNING = re.compile(rf"({_QUESTION}|{_FRAGMENT})\b")
_BAD_PHRASE = re.compile(
    r"\b(such a one|such ones|so many|so often|of ours|in vain|lets? go of|go(es|ne)? back over|"
    r"has them apart|the one which|where there is (one|none|no)|"
    r"beside (PyTorch|JAX|cuDNN|NumPy|PyTorch's)|"
    r"(a|an|one|each) (forward|backward)s?(?= (of|is|has|takes|runs|needs|for|with|in)\b))"
)
_BLOCK_COMMENT = re.compile(r"/\*+\s*(.+?)\*/", re.DOTALL)
_HELP = re.compile(r"^[\w-]+:.*?## (.+)$", re.MULTILINE)
_C_SUFFIXES = {".c", ".h", ".cu", ".cuh"}
_TEXT_SUFFIXES = {".md", ".toml", ".yml"}

MEANT: frozenset[str] = frozenset()
"""Sentences that one of the patterns finds although they say what they are about."""


class Found(NamedTuple):
    """A sentence, or a line with a phrase, and its place."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def beginnings(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the first line of each docstring, block comment or help of a target."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            body = getattr(node, "body", None)
            for one in body if isinstance(body, list) else ():
                value = one.value if isinstance(one, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.lineno, value.value.strip().partition("\n")[0]
    elif path.suffix in _C_SUFFIXES or path.name == "Makefile":
        pattern = _HELP if path.name == "Makefile" else _BLOCK_COMMENT
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield line, match[1].strip().partition("\n")[0]


def search(path: Path, text: str) -> Iterator[Found]:
    """Yield the sentences of a file that are to be written again."""
    for line, first in beginnings(path, text):
        if (_BAD_BEGINNING.match(first) or first.endswith("?")) and first not in MEANT:
            yield Found(str(path), line, first)
    for line, words in enumerate(text.splitlines(), 1):
        if _BAD_PHRASE.search(words) and words.strip() not in MEANT:
            yield Found(str(path), line, words.strip())


def tracked() -> Iterator[Path]:
    """Yield the files of the repository that people write."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().splitlines():
        path = Path(name)
        is_text = path.suffix in _C_SUFFIXES | _TEXT_SUFFIXES | {".py"} or path.name == "Makefile"
        if is_text and path.name not in ("_cdef.py", "prose.py", "test_prose.py"):
            yield path


def main() -> int:
    """Print what is found in the files of the command line, or in all; return 1 if there is any."""
    paths = [Path(name) for name in sys.argv[1:]] or tracked()
    found = [one for path in paths for one in search(path, (ROOT / path).read_text("utf-8"))]
    print("\n".join(map(str, found)) or "prose: nothing found")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
