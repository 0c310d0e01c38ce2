"""The header check itself: it must notice each kind of mistake and name the declaration."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import check_headers
import ctext
import headers
import pytest
from vendors import VENDORS, Vendor

needs_compiler = pytest.mark.usefixtures("compiler")
needs_cxx = pytest.mark.usefixtures("cxx_compiler")

TOY = Vendor(
    name="toy",
    topics=("base.h", "run.h"),
    addresses={"dev_ptr": "void *", "dev_ptr_int32": "int32_t *", "stream_ptr": "cudaStream_t"},
    include="toy.h",
    version_macros=("TOY_MAJOR", "TOY_MINOR"),
    wheels=(),
)

# The vendor's header. Its enumerations and last function differ in form from the C text.
HEADER = """
#include <cuda_runtime_api.h>
#include <stdint.h>
#define TOY_MAJOR 3
#define TOY_MINOR 5
#define TOY_FLAG (1U << 1)
typedef enum { TOY_OK = 0, TOY_BROKEN = 1001 } toyStatus_t;
typedef enum { TOY_LSTM = 2, TOY_GRU, TOY_MORE } toyMode_t;
struct toyContext;
typedef struct toyContext *toyHandle_t;
toyStatus_t toyCreate(toyHandle_t *handle);
toyStatus_t toySetStream(toyHandle_t handle, cudaStream_t stream);
toyStatus_t
toyForward(toyHandle_t handle, toyMode_t mode, const int32_t lengths[], const void *x, void *y);
toyStatus_t toyAddress(toyHandle_t handle, void **address);
"""

BASE = """
/* A comment
   of two lines. */
#define TOY_FLAG 2
typedef int toyStatus_t;
enum { TOY_OK = 0 };
typedef enum {
    TOY_LSTM = 2, // remark
    TOY_GRU = 3
} toyMode_t;
typedef struct toyContext *toyHandle_t;
toyStatus_t toyCreate(toyHandle_t *handle);
toyStatus_t toySetStream(toyHandle_t handle, stream_ptr stream);
"""

RUN = """
toyStatus_t toyForward(
    toyHandle_t handle,
    toyMode_t mode,
    const dev_ptr_int32 lengths,
    const dev_ptr x,
    dev_ptr y);
toyStatus_t toyAddress(toyHandle_t handle, dev_ptr *address);
"""


def run_check(
    tmp_path: Path,
    *,
    header: str = HEADER,
    base: str = BASE,
    run: str = RUN,
    since: dict[str, tuple[int, int]] | None = None,
    vendor: Vendor = TOY,
) -> check_headers.Report:
    text = tmp_path / "bindings" / "toy"
    real = tmp_path / "real"
    text.mkdir(parents=True)
    real.mkdir()
    (text / "base.h").write_text(base)
    (text / "run.h").write_text(run)
    (real / "toy.h").write_text(header)
    declared = ctext.declarations(text, vendor.topics, vendor.addresses)
    return check_headers.check(vendor, real, declared, since or {})


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@needs_compiler
def test_right_text_agrees(tmp_path: Path) -> None:
    assert run_check(tmp_path) == check_headers.Report((3, 5), (), ())


@needs_compiler
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("dev_ptr y", "const dev_ptr y", id="const added"),
        pytest.param("const dev_ptr x", "dev_ptr x", id="const lost"),
        pytest.param("const dev_ptr_int32 lengths", "const dev_ptr lengths", id="other address"),
        pytest.param("toyMode_t mode", "toyStatus_t mode", id="other enumeration"),
        pytest.param("    toyMode_t mode,\n", "", id="argument lost"),
        pytest.param("toyStatus_t toyForward", "size_t toyForward", id="other result"),
    ],
)
def test_wrong_prototype_is_named(tmp_path: Path, old: str, new: str) -> None:
    (problem,) = run_check(tmp_path, run=changed(RUN, old, new)).problems
    assert problem.startswith("bindings/toy/run.h:2: toyForward: conflicting types")


@needs_compiler
def test_wrong_address_result_is_named(tmp_path: Path) -> None:
    run = changed(RUN, "dev_ptr *address", "stream_ptr *address")
    (problem,) = run_check(tmp_path, run=run).problems
    assert problem.startswith("bindings/toy/run.h:8: toyAddress: conflicting types")


@needs_compiler
@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("TOY_GRU = 3", "TOY_GRU = 4", "base.h:9", "TOY_GRU is not 4"),
        ("TOY_OK = 0", "TOY_OK = 1", "base.h:6", "TOY_OK is not 1"),
        ("TOY_FLAG 2", "TOY_FLAG 1", "base.h:4", "TOY_FLAG is not 1"),
        ("int toyStatus_t", "long toyStatus_t", "base.h:5", "toyStatus_t is not of the size"),
    ],
)
def test_wrong_value_is_named(tmp_path: Path, old: str, new: str, where: str, message: str) -> None:
    (problem,) = run_check(tmp_path, base=changed(BASE, old, new)).problems
    assert problem.startswith(f"bindings/toy/{where}: ")
    assert message in problem


@needs_compiler
def test_unknown_enumerator_is_named(tmp_path: Path) -> None:
    base = changed(BASE, "TOY_GRU = 3", "TOY_GRU = 3, TOY_NONE = 9")
    (problem,) = run_check(tmp_path, base=base).problems
    assert problem.startswith("bindings/toy/base.h:9: TOY_NONE is not declared by toy 3.5")


@needs_compiler
def test_wrong_opaque_type_is_named(tmp_path: Path) -> None:
    base = changed(BASE, "struct toyContext", "struct toyOther")
    problems = run_check(tmp_path, base=base).problems
    assert problems[0].startswith("bindings/toy/base.h:11: toyHandle_t: conflicting types")


# A header of C++, as MIOpen's is: a default argument, a macro that it wants, a second header.
CXX_TOY = replace(
    TOY,
    addresses={"dev_ptr": "void *", "dev_ptr_int32": "int32_t *", "stream_ptr": "hipStream_t"},
    language="c++",
    also_include=("stddef.h",),
    defines=("TOY_ALL",),
)
CXX_HEADER = (
    HEADER.replace("cuda_runtime_api.h", "hip/hip_runtime_api.h")
    .replace("cudaStream_t", "hipStream_t")
    .replace("struct toyContext;", 'extern "C" {\n#ifdef TOY_ALL\nstruct toyContext {};')
    + "void toyOther(int number = 0);\n#endif\n}\n"
)


@needs_cxx
def test_right_text_agrees_with_a_header_of_cxx(tmp_path: Path) -> None:
    report = run_check(tmp_path, header=CXX_HEADER, vendor=CXX_TOY)
    assert report == check_headers.Report((3, 5), (), ())


@needs_cxx
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dev_ptr y", "const dev_ptr y"),
        ("const dev_ptr x", "dev_ptr x"),
        ("toyMode_t mode", "toyStatus_t mode"),
        ("    toyMode_t mode,\n", ""),
        ("toyStatus_t toyForward", "size_t toyForward"),
    ],
)
def test_wrong_prototype_is_named_in_cxx(tmp_path: Path, old: str, new: str) -> None:
    run = changed(RUN, old, new)
    (problem,) = run_check(tmp_path, header=CXX_HEADER, run=run, vendor=CXX_TOY).problems
    assert problem.startswith("bindings/toy/run.h:2: toyForward: ")


@needs_cxx
@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("TOY_GRU = 3", "TOY_GRU = 4", "base.h:9", "TOY_GRU is not 4"),
        ("TOY_OK = 0", "TOY_OK = 1", "base.h:6", "TOY_OK is not 1"),
        ("int toyStatus_t", "long toyStatus_t", "base.h:5", "toyStatus_t is not of the size"),
    ],
)
def test_wrong_value_is_named_in_cxx(
    tmp_path: Path, old: str, new: str, where: str, message: str
) -> None:
    base = changed(BASE, old, new)
    (problem,) = run_check(tmp_path, header=CXX_HEADER, base=base, vendor=CXX_TOY).problems
    assert problem.startswith(f"bindings/toy/{where}: ")
    assert message in problem


MEMBERS = """float time;
    size_t size;
    toyMode_t mode;"""
RESULT = f"typedef struct {{ {MEMBERS} }} toyResult_t;\n"
RESULT_OF_HEADER = """
typedef struct { union { float time; int ticks; }; size_t size; toyMode_t mode; } toyResult_t;
"""


@needs_compiler
@needs_cxx
@pytest.mark.parametrize("cxx", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", None),
        ("float time", "double time", "toyResult_t has time elsewhere"),
        ("    size_t size;\n", "", "toyResult_t is of another size"),
        (MEMBERS, "toyMode_t mode; size_t size; float time;", "has mode elsewhere"),
    ],
)
def test_a_structure_has_the_members_of_the_header(
    tmp_path: Path, cxx: bool, old: str, new: str, message: str | None
) -> None:
    report = run_check(
        tmp_path,
        header=(CXX_HEADER if cxx else HEADER) + RESULT_OF_HEADER,
        base=BASE + changed(RESULT, old, new),
        vendor=CXX_TOY if cxx else TOY,
    )
    if message is None:
        assert report.problems == ()
    else:
        (problem,) = report.problems
        assert re.match(r"bindings/toy/base\.h:\d+: toyResult_t: ", problem)
        assert message in problem


UNDECLARED = "toyStatus_t toyExtra(int number);\n"


@needs_compiler
def test_undeclared_function_is_named(tmp_path: Path) -> None:
    report = run_check(tmp_path, run=RUN + UNDECLARED)
    assert report.missing == ("toyExtra",)
    (problem,) = report.problems
    assert problem == (
        "bindings/toy/run.h:9: toyExtra is not declared by toy 3.5; library.py says nothing"
    )


@needs_compiler
def test_function_of_a_later_version_may_be_missing(tmp_path: Path) -> None:
    report = run_check(tmp_path, run=RUN + UNDECLARED, since={"toyExtra": (4, 0)})
    assert report == check_headers.Report((3, 5), ("toyExtra",), ())


@needs_compiler
def test_function_missing_where_the_table_promises_it(tmp_path: Path) -> None:
    report = run_check(tmp_path, run=RUN + UNDECLARED, since={"toyExtra": (3, 5)})
    (problem,) = report.problems
    assert problem.endswith(
        "toyExtra is not declared by toy 3.5; library.py says that it came with 3.5"
    )


@needs_compiler
def test_function_present_before_the_table_says(tmp_path: Path) -> None:
    (problem,) = run_check(tmp_path, since={"toyAddress": (3, 6)}).problems
    assert problem.endswith(
        "toyAddress is declared by toy 3.5; library.py says that it came with 3.6"
    )


@needs_compiler
def test_enumerator_of_a_later_version_may_be_missing(tmp_path: Path) -> None:
    base = changed(BASE, "TOY_GRU = 3", "TOY_GRU = 3, TOY_NEW = 9")
    report = run_check(tmp_path, base=base, since={"TOY_NEW": (4, 0)})
    assert report == check_headers.Report((3, 5), ("TOY_NEW",), ())


@needs_compiler
def test_enumerator_present_before_the_table_says(tmp_path: Path) -> None:
    (problem,) = run_check(tmp_path, since={"TOY_GRU": (3, 6)}).problems
    assert problem.endswith("TOY_GRU is declared by toy 3.5; library.py says that it came with 3.6")


@needs_compiler
def test_table_naming_an_unknown_function(tmp_path: Path) -> None:
    (problem,) = run_check(tmp_path, since={"toyGone": (3, 0)}).problems
    assert problem == "library.py: toyGone is not a function or enumerator of the C text"


@needs_compiler
def test_header_that_does_not_compile_is_no_problem_of_the_text(tmp_path: Path) -> None:
    with pytest.raises(check_headers.CompilerError, match=r"toy\.h in .* does not compile"):
        run_check(tmp_path, header=HEADER + "unknown_type_t toyLast(void);\n")


def test_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(check_headers.CompilerError, match="no C compiler 'no-such-compiler'"):
        run_check(tmp_path)


def test_missing_cxx_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    message = r"no C\+\+ compiler 'no-such-compiler'; set CXX"
    with pytest.raises(check_headers.CompilerError, match=message):
        run_check(tmp_path, header=CXX_HEADER, vendor=CXX_TOY)


@pytest.fixture
def no_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(vendor: Vendor, release: object) -> Path:
        raise headers.UnavailableError("this system has no apt-get")

    monkeypatch.setattr(headers, "fetch", fetch)
    monkeypatch.setattr(check_headers, "VENDORS", {"miopen": VENDORS["miopen"]})


@pytest.mark.usefixtures("no_debian")
def test_what_could_not_be_checked_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_headers.main([]) == 0
    assert "*** miopen: NOT CHECKED" in capsys.readouterr().out


@pytest.mark.usefixtures("no_debian")
def test_a_vendor_that_was_named_must_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_headers.main(["--vendor", "miopen"]) == 1
    assert "this system has no apt-get" in capsys.readouterr().err


@needs_compiler
def test_command_fails_without_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_headers.main(["--vendor", "cudnn", "--headers", str(tmp_path)]) == 1
    assert "cudnn.h" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enum { TOY_A };", "base.h:1: TOY_A needs a number as its value"),
        ("struct toyThing { int a; };", "base.h:1: neither a prototype"),
        ("extern int toyNumber;", "base.h:1: neither a prototype"),
        ("toyStatus_t toyBad(int", "base.h"),
        ("#define TOY_NAME other", "base.h:1: TOY_NAME needs a number as its value"),
        ("#include <stdint.h>", "base.h:1: a directive that is not an integer #define"),
    ],
)
def test_text_that_cannot_be_checked_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "base.h").write_text(text)
    with pytest.raises(ctext.TextError, match=message):
        ctext.declarations(tmp_path, ("base.h",), {})


@pytest.mark.parametrize("name", VENDORS)
def test_table_of_versions_names_declarations_of_the_text(name: str) -> None:
    vendor = VENDORS[name]
    declared = ctext.declarations(vendor.text, vendor.topics, vendor.addresses)
    named = {d.name for d in declared if d.kind in ("function", "enumerator")}
    assert check_headers.read_since(vendor).keys() <= named
