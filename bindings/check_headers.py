"""Compile the C text against the vendors' real headers, on a machine without a GPU.

``python bindings/check_headers.py [--vendor cudnn] [--version 9.19 --version newest]`` checks for
each version (all by default):

- every prototype and every opaque type is declared again after the vendor's header, so that a
  difference is a conflict of types to the compiler;
- every constant and enumerator has its value asserted, every enumeration its size;
- every function and enumerator is there, or is missing and ``library.py`` names a later version
  for it.

``--headers FOLDER`` checks one folder of headers and downloads nothing. The C compiler is ``cc``,
or what the environment variable ``CC`` names; ``c++`` and ``CXX`` for headers that are C++. Headers
that this system cannot get are an error for a vendor named by ``--vendor``, and else a loud line.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ctext
import headers
from vendors import BINDINGS, VENDORS, Vendor

STUBS = BINDINGS / "stubs"
Version = tuple[int, int]

# Each declaration is compiled as if it were one line of a file of this name.
PLACE = "<declaration>"
DIAGNOSTIC = re.compile(
    r"^(?P<file>.+?):(?P<line>\d+):(?:\d+:)? (?:fatal )?(?P<kind>error|note): (?P<text>.*)$"
)


class CompilerError(Exception):
    """The compiler is missing, or it does not take the vendor's header itself."""


@dataclass(frozen=True)
class Report:
    """The result of checking the C text against one version of the headers."""

    version: Version
    missing: tuple[str, ...]
    """Functions and enumerators that the version lacks."""
    problems: tuple[str, ...]
    """One message for each thing that is wrong, with its name and place."""


def check(
    vendor: Vendor,
    folder: Path,
    declarations: Sequence[ctext.Declaration],
    since: Mapping[str, Version],
) -> Report:
    """Hold declarations of a vendor against the headers in a folder.

    ``since`` names the version of each function or enumerator that some supported version lacks.
    Raises CompilerError if the headers alone do not compile.
    """
    version, plain = _preprocess(vendor, folder)
    named = [d for d in declarations if d.kind in _OCCURRENCE]
    missing = [d for d in named if not re.search(_OCCURRENCE[d.kind].format(d.name), plain)]
    absent = {d.name for d in missing}

    problems = []
    shown = ".".join(map(str, version))
    for declaration in named:
        name, came = declaration.name, since.get(declaration.name)
        here = f"{declaration.where}: {name} is"
        said = "nothing" if came is None else f"that it came with {came[0]}.{came[1]}"
        if name in absent and (came is None or version >= came):
            problems.append(f"{here} not declared by {vendor.name} {shown}; library.py says {said}")
        elif name not in absent and came is not None and version < came:
            problems.append(f"{here} declared by {vendor.name} {shown}; library.py says {said}")
    for name in sorted(since.keys() - {d.name for d in named}):
        problems.append(f"library.py: {name} is not a function or enumerator of the C text")

    problems += _conflicts(vendor, folder, [d for d in declarations if d.name not in absent])
    return Report(version, tuple(d.name for d in missing), tuple(problems))


# Where a header without macros and comments declares a name, by the kind of declaration.
_OCCURRENCE = {"function": r"\b{}\s*\(", "enumerator": r"\b{}\b"}

# Environment variable, its default and the standard; typed like this, C++ has C's assertion too.
_COMPILERS = {"c": ("CC", "cc", "c11"), "c++": ("CXX", "c++", "c++17")}
_ASSERTION = {"c": [], "c++": ["#define _Static_assert static_assert"]}


def _includes(vendor: Vendor) -> list[str]:
    defines = [f"#define {name}" for name in vendor.defines]
    return defines + [f"#include <{name}>" for name in (vendor.include, *vendor.also_include)]


def _compile(vendor: Vendor, folder: Path, source: str, *flags: str) -> tuple[int, str, str]:
    variable, default, standard = _COMPILERS[vendor.language]
    compiler = shlex.split(os.environ.get(variable, default))
    command = [*compiler, *flags, f"-std={standard}", f"-I{STUBS}", f"-I{folder}"]
    command += ["-x", vendor.language, "-"]
    try:
        done = subprocess.run(
            command,
            input=source,
            capture_output=True,
            text=True,
            check=False,
            # The messages are read below, so they must be in English.
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        language = vendor.language.upper()
        raise CompilerError(
            f"no {language} compiler {compiler[0]!r}; set {variable} to name one"
        ) from None
    return done.returncode, done.stdout, done.stderr


def _preprocess(vendor: Vendor, folder: Path) -> tuple[Version, str]:
    """Return the version that the headers state, and their text without macros and comments."""
    macros = " ".join(vendor.version_macros or ())
    source = "\n".join([*_includes(vendor), f"DNNFFI_VERSION {macros}\n"])
    status, plain, errors = _compile(vendor, folder, source, "-E", "-P")
    if status != 0:
        raise CompilerError(f"{vendor.include} in {folder} does not compile:\n{errors.strip()}")
    if macros:
        match = re.search(r"DNNFFI_VERSION (\d+) (\d+)", plain)
    else:
        match = re.match(r"(\d+)\.(\d+)", folder.name)
    if match is None:
        said = f"define {' and '.join(vendor.version_macros or ())}" if macros else "have a version"
        raise CompilerError(f"{vendor.include} in {folder} does not {said}")
    return (int(match[1]), int(match[2])), plain


def _conflicts(
    vendor: Vendor, folder: Path, declarations: Sequence[ctext.Declaration]
) -> list[str]:
    """Return the compiler's errors for declarations that follow the vendor's header."""
    lines = _includes(vendor) + _ASSERTION[vendor.language]
    # After the header, so that its own names are left alone.
    lines += [f"#define {name} {real}" for name, real in vendor.addresses.items()]
    # In C++, declarations conflict only where they say that their names are those of C.
    wrapper = "{}" if vendor.language == "c" else 'extern "C" {{ {} }}'
    for number, declaration in enumerate(declarations, start=1):
        lines += [f'#line {number} "{PLACE}"', wrapper.format(declaration.check)]
    status, _, errors = _compile(vendor, folder, "\n".join(lines) + "\n", "-fsyntax-only")

    messages: dict[int, str] = {}
    current: int | None = None
    for line in errors.splitlines():
        match = DIAGNOSTIC.match(line)
        if match is None:
            continue
        file, line_number, kind, text = match.groups()
        if kind == "error" and file == PLACE:
            # Only the first for each declaration: the others follow from it.
            current = None if int(line_number) in messages else int(line_number)
            if current is not None:
                declaration = declarations[current - 1]
                messages[current] = f"{declaration.where}: {declaration.name}: {text}"
        elif kind == "error":
            raise CompilerError(f"{vendor.include} in {folder} does not compile:\n{errors.strip()}")
        elif current is not None:
            messages[current] += f"\n    {Path(file).name}:{line_number}: {text}"
    if status != 0 and not messages:
        raise CompilerError(f"the compiler failed:\n{errors.strip()}")
    return list(messages.values())


def read_since(vendor: Vendor) -> dict[str, Version]:
    """Return the table SINCE of the vendor's ``library.py``, read without importing the package.

    Without a table nothing is missing in a supported version.
    """
    path = vendor.package / "library.py"
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "SINCE":
            assert node.value is not None
            since: dict[str, Version] = ast.literal_eval(node.value)
            return since
    return {}


def _show(vendor: Vendor, name: str, report: Report) -> None:
    verdict = f"{len(report.problems)} problems" if report.problems else "agrees"
    without = f"; without {', '.join(report.missing)}" if report.missing else ""
    print(f"{vendor.name} {name}: {verdict}{without}")
    for problem in report.problems:
        print(f"  {problem}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the C text against real headers.")
    parser.add_argument("--vendor", choices=VENDORS, action="append", help="default: all")
    parser.add_argument("--version", action="append", default=[], help="such as 9.19 or newest")
    parser.add_argument("--headers", type=Path, help="a folder of headers, for one vendor")
    options = parser.parse_args(arguments)
    chosen = [VENDORS[name] for name in options.vendor or VENDORS]
    if options.headers is not None and (len(chosen) != 1 or options.version):
        parser.error("--headers needs one --vendor and no --version")

    failed = False
    try:
        releases = headers.select_all(chosen, options.version)
        for vendor in chosen:
            text = ctext.declarations(vendor.text, vendor.topics, vendor.addresses)
            since = read_since(vendor)
            count = sum(d.kind == "function" for d in text)
            print(f"{vendor.name}: {count} functions, {len(text) - count} types and values")
            try:
                if options.headers is not None:
                    folders = [options.headers]
                else:
                    folders = [headers.fetch(vendor, one) for one in releases[vendor.name]]
            except headers.UnavailableError as error:
                if options.vendor:
                    raise
                print(f"*** {vendor.name}: NOT CHECKED, for want of headers: {error} ***")
                continue
            for folder in folders:
                report = check(vendor, folder, text, since)
                _show(vendor, folder.name, report)
                failed = failed or bool(report.problems)
    except (CompilerError, ctext.TextError, headers.HeaderError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
