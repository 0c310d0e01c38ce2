"""The Python code of README.md and of the pages in docs runs as it is printed.

A page's blocks run in order and share their names. A comment as ``<!-- gpu torch -->`` before a
block says what it needs; every other block runs on NumPy and on CuPy, by the line
that imports one of them as ``xp``.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/index.md",
    *(
        f"docs/{name}.md"
        for name in (
            "tutorial",
            "weights",
            "tuning",
            "convolution",
            "notes",
            "errors",
            "from_cupy",
            "torch",
            "jax",
            "own_engine",
            "testing",
        )
    ),
)
BLOCK = re.compile(
    r"^(?:<!-- (?P<needs>[a-z ]+) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
IMPORT = re.compile(r"^import (?:numpy|cupy) as xp\b", re.MULTILINE)


class Block(NamedTuple):
    needs: frozenset[str]
    code: str
    line: int


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            frozenset((match["needs"] or "").split()),
            match["code"],
            text.count("\n", 0, match.start("code")),
        )
        for match in BLOCK.finditer(text)
    ]


def run(page, module, present):
    """Run the blocks of a page whose needs are ``present``; the names that they leave."""
    names = {"__name__": "example"}
    for block in blocks(page):
        if block.needs <= present:
            code = IMPORT.sub(f"import {module} as xp", block.code)
            # Padded, so that a traceback names the line of the page.
            exec(compile("\n" * block.line + code, str(ROOT / page), "exec"), names)
    return names


def has_torch():
    try:
        import torch  # noqa: F401 - whether it can be imported is the question
    except ImportError:
        return False
    return True


def test_every_page_with_code_is_run():
    pages = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    with_code = {page for page in pages if "```python" in (ROOT / page).read_text("utf-8")}
    # That of docs/vulkan.md needs an adapter: tests/backends/vulkan/test_page.py runs it.
    assert with_code == {*PAGES, "docs/vulkan.md"}


@pytest.mark.parametrize("page", PAGES)
def test_what_blocks_need_is_known(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("```python") == len(blocks(page))
    assert text.count("<!-- ") == sum(bool(block.needs) for block in blocks(page))
    for block in blocks(page):
        assert block.needs <= {"gpu", "torch", "jax", "equinox", "flax"}


@pytest.mark.parametrize("page", PAGES[1:])
def test_on_numpy(page):
    run(page, "numpy", frozenset())


def test_the_readme_on_numpy_learns():
    names = run("README.md", "numpy", frozenset())
    assert ((names["y"] - names["target"]) ** 2).mean() < 0.1


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/torch.md"])
def test_with_torch(page):
    pytest.importorskip("torch")
    run(page, "numpy", frozenset({"torch"}))


@pytest.mark.parametrize("page", ["README.md", "docs/jax.md"])
def test_with_jax(page):
    pytest.importorskip("jax")
    present = {name for name in ("jax", "equinox", "flax") if find_spec(name) is not None}
    run(page, "numpy", frozenset(present))


@pytest.mark.gpu
@pytest.mark.parametrize("page", PAGES)
def test_on_cupy(page):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    run(page, "cupy", frozenset({"gpu", "torch"} if has_torch() else {"gpu"}))
