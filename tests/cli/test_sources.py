"""The hashes by which a record is compared with the source."""

from __future__ import annotations

import pytest

from dnnffi.cli.sources import (
    NO_RECORD,
    PARTS,
    RECORDS,
    changed_parts,
    code,
    hashes_of,
    part_hashes,
    read_source_lines,
    source_hash,
    source_lines,
)

PYTHON = '''"""A docstring
of a module."""
LIMIT = 3  # a comment
"""A docstring of a constant."""


def scaled(a):
    """A docstring."""
    text = f"{a!r:>{LIMIT}} # in a literal" f"{'#'}"  # a comment

    # A comment.
    return """

# in a literal
""" + text
'''
CODE = '''LIMIT = 3
def scaled(a):
    text = f"{a!r:>{LIMIT}} # in a literal" f"{'#'}"
    return """

# in a literal
""" + text'''
KERNEL = r"""// A comment.
#pragma once
/* A comment
   of several lines. */
__device__ int scaled(int a /* a comment */)
{
    // A comment.
    const char *text = "/* in a literal */ \" // too";  // a comment

    return a/**/+ '"' + 2;
}
"""
KERNEL_CODE = r"""#pragma once
__device__ int scaled(int a)
{
const char *text = "/* in a literal */ \" // too";
return a + '"' + 2;
}"""


def test_the_code_of_python_has_no_comments_docstrings_and_blank_lines():
    assert code(PYTHON, ".py") == CODE


def test_the_code_of_a_kernel_has_no_comments_and_blank_lines():
    assert code(KERNEL, ".cuh") == code(KERNEL, ".cu") == KERNEL_CODE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1", "x = 2"),
        ('x = "#a"', 'x = "#b"'),
        ('x = """\n\n"""', 'x = """\n"""'),
        ("if x:\n    y = 1\nz = 2", "if x:\n    y = 1\n    z = 2"),
        ("f'{x}#a'", "f'{x}#b'"),
        ('x = 1\n"""a""" + f()', 'x = 1\n"""b""" + f()'),
    ],
)
def test_a_change_of_python_changes_its_code(before, after):
    assert code(before, ".py") != code(after, ".py")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int x = 1;", "int x = 2;"),
        ('f("//a");', 'f("//b");'),
        ("f('a');", "f('b');"),
        ("int a;", "inta;"),
    ],
)
def test_a_change_of_a_kernel_changes_its_code(before, after):
    assert code(before, ".cuh") != code(after, ".cuh")
    assert code("int/**/a;", ".cuh") == "int a;"


def test_a_part_is_hashed_by_the_names_and_the_code_of_its_files():
    path = "backends/own/recurrent/cuda/forward.cu"
    first = hashes_of([(path, b"int x;\n")])
    assert hashes_of([(path, b"// of x\nint x;\n")]) == first
    others = [
        hashes_of([(path, b"int y;\n")]),
        hashes_of([("backends/own/recurrent/cuda/backward.cu", b"int x;\n")]),
    ]
    for other in others:
        assert other["own-rnn"] != first["own-rnn"]
        assert {name: other[name] for name in PARTS if name != "own-rnn"} == {
            name: first[name] for name in PARTS if name != "own-rnn"
        }


def test_the_hashes_are_those_of_the_package(tmp_path):
    (tmp_path / "rnn").mkdir()
    (tmp_path / "rnn" / "plan.py").write_text("x = 1\n")
    assert part_hashes(tmp_path) == hashes_of([("rnn/plan.py", b"x = 1\n")])
    assert part_hashes().keys() == PARTS.keys()


def test_the_whole_hash_is_of_names_and_contents_of_sources(tmp_path):
    def written(name, text):
        (tmp_path / name).write_text(text)
        return source_hash(tmp_path)

    found = [written("a.py", "1"), written("a.py", "2"), written("b.py", "2")]
    (tmp_path / "a.py").unlink()
    found.append(source_hash(tmp_path))
    found += [written("kernel.cuh", "3"), written("kernel.cuh", "4")]
    found += [written("kernel.cu", "3"), written("kernel.cu", "4")]
    assert len(set(found)) == 8
    assert written("b.txt", "3") == found[-1]
    assert len(source_hash()) == 64


@pytest.mark.parametrize("name", [name for name in RECORDS if name.endswith(".txt")])
def test_hashes_at_the_end_of_a_text_are_read_again(name):
    figures, found = read_source_lines("x 1.0\n" + source_lines(name))
    assert figures == "x 1.0\n"
    assert changed_parts(name, found) == []


def test_a_text_ends_with_the_hashes_of_what_it_depends_on():
    text = "x 1.0\n" + source_lines("oracle_torch.txt")
    assert max(map(len, text.splitlines())) <= 90
    figures, found = read_source_lines(text)
    assert figures == "x 1.0\n"
    assert found == {part: part_hashes()[part] for part in RECORDS["oracle_torch.txt"]}
    assert changed_parts("oracle_torch.txt", found) == []
    assert changed_parts("oracle_torch.txt", found | {"spec": "0" * 16}) == ["spec"]
    assert read_source_lines("x 1.0\n") == ("x 1.0\n", None)


def test_each_part_belongs_to_a_record_or_is_named_as_of_none():
    used = {part for parts in RECORDS.values() for part in parts}
    assert used <= PARTS.keys()
    assert PARTS.keys() - used == set(NO_RECORD)
