"""List sentences that do not say what they are about, and fail if there are any.

    python tests/prose.py [FILE ...]

Checked are docstrings and comments of Python, comments of C, CUDA, TOML and YAML, pages, and the
help of the Makefile. The first line of a docstring, of a block comment or of a help names a thing
or says what is done: it is no question, and no fragment that needs the name above it. Some phrases
are idioms, or have a pronoun without a noun. ``MEANT`` has lines that were read and stay.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

_NOUNS = (
    "algorithm|and|bias|call|convolution|data|differentiation|direction|executor|function|graph|"
    "kernel|launch|layer|method|or|pass|phase|plan|products|recurrence|step|time|weights|workspace"
)
NOT_WRITTEN = {
    "a forward or backward pass has the noun": re.compile(
        r"\b(a|an|another|each|every|its|no|of|one|that|the|this|training) (forward|backward)s?\b"
        rf"(?!,?[- ](mode )?({_NOUNS})|-mode|\*)",
        re.IGNORECASE,
    ),
    "no idiom": re.compile(
        r"\b(in vain|lets? go of|goes? back over|gone back over|has them apart|said once|"
        r"as long as they are|where there is (one|none|no)|that is there|is there already)\b",
        re.IGNORECASE,
    ),
    "a pronoun has a noun": re.compile(
        r"\b(such a one|such ones|so many|so often|what is there|what is missing|of ours|"
        r"of our own|each by itself|than that of)\b",
        re.IGNORECASE,
    ),
}
NO_FIRST_WORD = re.compile(r"(Of|What|How|Where|Which|Who|When|Why|Those|These|That|Than)\b")
"""First words of questions and fragments."""

MEANT = frozenset(
    {
        # The file's bytes are part of the name of a folder that takes long to make.
        "Where this machine's own apt finds Debian; debootstrap's default on other systems.",
    }
)
"""First lines that one of the patterns finds although they say what they are about."""

_C_COMMENT = re.compile(r"/\*+(.+?)\*/|//([^\n]+)", re.DOTALL)
_HELP = re.compile(r"^[\w-]+:.*?##(.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_PARAGRAPH = re.compile(r"(^.*\S.*\n?)+", re.MULTILINE)
_C_SUFFIXES = {".c", ".h", ".cu", ".cuh"}
_COMMENT_SUFFIXES = {".toml", ".yml"}
_SUFFIXES = {".py", ".md"} | _C_SUFFIXES | _COMMENT_SUFFIXES


class Passage(NamedTuple):
    """A text of a file: its first line's number, and whether that line has to stand alone."""

    line: int
    text: str
    is_block: bool


class Found(NamedTuple):
    """A passage that is to be written again, and the words that are the reason."""

    path: str
    line: int
    words: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words}"


def passages(path: Path, text: str) -> Iterator[Passage]:
    """Yield the texts of a file that people read."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            body = getattr(node, "body", None)
            for one in body if isinstance(body, list) else ():
                value = one.value if isinstance(one, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield Passage(value.lineno, value.value.strip(), True)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield Passage(token.start[0], token.string, False)
    elif path.suffix in _C_SUFFIXES or path.name == "Makefile":
        pattern = _HELP if path.name == "Makefile" else _C_COMMENT
        for match in pattern.finditer(text):
            words = match[match.lastindex or 0].strip()
            is_alone = not text[: match.start()].rpartition("\n")[2].strip()
            is_block = path.name == "Makefile" or is_alone
            yield Passage(text.count("\n", 0, match.start()) + 1, words, is_block)
    elif path.suffix in _COMMENT_SUFFIXES:
        for line, words in enumerate(text.splitlines(), 1):
            if words.lstrip().startswith("#"):
                yield Passage(line, words, False)
    else:
        without_code = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        for paragraph in _PARAGRAPH.finditer(without_code):
            line = without_code.count("\n", 0, paragraph.start()) + 1
            yield Passage(line, paragraph[0], False)


def phrases(text: str) -> Iterator[str]:
    """Yield each of the phrases in a text, with the rule and the words around it."""
    text = " ".join(text.split())
    for rule, pattern in NOT_WRITTEN.items():
        for one in pattern.finditer(text):
            yield f"{rule}: ...{text[max(0, one.start() - 40) : one.end() + 20]}..."


def search(path: Path, text: str) -> Iterator[Found]:
    """Yield the passages of a file that are to be written again."""
    for line, words, is_block in passages(path, text):
        first = words.partition("\n")[0]
        if is_block and first not in MEANT and (NO_FIRST_WORD.match(first) or first[-1:] == "?"):
            yield Found(str(path), line, first)
        for phrase in phrases(words):
            yield Found(str(path), line, phrase)


def tracked() -> Iterator[Path]:
    """Yield the files of the repository that people write."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().splitlines():
        path = Path(name)
        is_text = path.suffix in _SUFFIXES or path.name == "Makefile"
        if is_text and path.name != "_cdef.py" and "LICENSE" not in path.name:
            yield path


def main() -> int:
    """Print what is found in the files of the command line, or in all; return 1 if there is any."""
    paths = [Path(name) for name in sys.argv[1:]] or tracked()
    found = [one for path in paths for one in search(path, (ROOT / path).read_text("utf-8"))]
    print("\n".join(map(str, found)) or "prose: nothing found")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
