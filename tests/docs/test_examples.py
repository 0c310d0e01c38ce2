"""Tests that the Python code of README.md and of the pages in docs runs as printed.

A page's blocks run in order and share their names. A comment like ``<!-- gpu torch -->`` before a
block lists what it needs; every other block runs on NumPy and on CuPy, because the line that
imports one of them as ``xp`` is replaced.
"""

from __future__ import annotations

import logging
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/index.md",
    *(
        f"docs/{name}.md"
        for name in (
            "start",
            "tutorial",
            "sequences",
            "weights",
            "tuning",
            "convolution",
            "notes",
            "errors",
            "from_cupy",
            "torch",
            "jax",
            "jax_frameworks",
            "own_engine",
            "testing",
        )
    ),
)
BLOCK = re.compile(
    r"^(?:<!-- (?P<needs>[a-z ]+) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
ON_JAX = ("equinox", "flax", "keras", "optax")
IMPORT = re.compile(r"^import (?:numpy|cupy) as xp\b", re.MULTILINE)


@pytest.fixture(autouse=True)
def logger_as_before():
    """Restore the logger's level, which docs/tuning.md sets for the whole process."""
    logger = logging.getLogger("dnnffi")
    level = logger.level
    yield
    logger.setLevel(level)


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
    """Run the blocks of a page whose needs are ``present``, and return their names."""
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
    # The code of docs/vulkan.md needs an adapter: tests/backends/vulkan/test_page.py runs it.
    assert with_code == {*PAGES, "docs/vulkan.md"}


@pytest.mark.parametrize("page", PAGES)
def test_what_blocks_need_is_known(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("```python") == len(blocks(page))
    assert text.count("<!-- ") == sum(bool(block.needs) for block in blocks(page))
    for block in blocks(page):
        assert block.needs <= {"gpu", "torch", "jax", *ON_JAX}


@pytest.mark.parametrize("page", PAGES[1:])
def test_on_numpy(page):
    run(page, "numpy", frozenset())


def test_the_readme_on_numpy_prints_the_loss_that_it_says(capsys):
    run("README.md", "numpy", frozenset())
    (said,) = re.findall(r"^print\(f\"loss .*# (loss .*)$", (ROOT / "README.md").read_text(), re.M)
    assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_loss_of_the_readme_hardly_depends_on_the_random_numbers(seed, monkeypatch, capsys):
    # CuPy's generator draws other numbers from the seed than NumPy's.
    drawn = np.random.default_rng(seed)
    monkeypatch.setattr(np.random, "default_rng", lambda _: drawn)
    run("README.md", "numpy", frozenset())
    assert capsys.readouterr().out == "loss 0.03\n"


def test_the_start_learns(capsys):
    run("docs/start.md", "numpy", frozenset())
    out = capsys.readouterr().out
    errors = [float(one) for one in re.findall(r"error ([\d.]+)", out)]
    assert errors[-1] < 0.02 < 0.3 < errors[0]
    assert "(8, 16, 32, 32) (8, 3, 32, 32) (16, 3, 3, 3)\nArray Array Array\n" in out


@pytest.mark.parametrize("number", range(3))
def test_each_start_is_a_program_of_its_own(number, capsys):
    code = IMPORT.sub("import numpy as xp", blocks("docs/start.md")[number].code)
    exec(compile(code, "start", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out


def test_the_program_in_jax_of_the_readme_is_one_of_its_own():
    pytest.importorskip("jax")
    (block,) = (block for block in blocks("README.md") if block.needs)
    names = {"__name__": "example"}
    exec(compile(block.code, "README.md", "exec"), names)
    assert names["gradient"].flat.any()


def test_no_example_and_no_page_imports_the_command_line():
    for path in (*ROOT.glob("examples/*"), *ROOT.glob("docs/*.md"), ROOT / "README.md"):
        assert not re.search(r"(from|import) dnnffi\.cli", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/torch.md", "docs/weights.md"])
def test_with_torch(page):
    pytest.importorskip("torch")
    run(page, "numpy", frozenset({"torch"}))


@pytest.mark.parametrize("page", ["README.md", "docs/jax.md", "docs/jax_frameworks.md"])
def test_with_jax(page):
    pytest.importorskip("jax")
    present = {name for name in ("jax", *ON_JAX) if find_spec(name) is not None}
    run(page, "numpy", frozenset(present))


@pytest.mark.gpu
@pytest.mark.parametrize("page", PAGES)
def test_on_cupy(page):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    run(page, "cupy", frozenset({"gpu", "torch"} if has_torch() else {"gpu"}))
