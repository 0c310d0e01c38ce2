"""Requirements of tests: a test without them fails, unless ``--without`` names them.

`make test` installs what can be installed, so that nothing is left out there in silence.
"""

from __future__ import annotations

import re
import shutil

import pytest

NEEDS = {
    "compiler": "a compiler of C and C++: cc and c++",
    "headers": "the headers of cuDNN 9",
    "libcudnn": "a libcudnn",
    "libcublasLt": "a libcublasLt",
    "libnvrtc": "a libnvrtc",
    "vulkan": "the package wgpu and an adapter, which may be Mesa's lavapipe",
}


_HINT = "Missing. pytest --without {} skips the tests that need it."


def said(reports):
    """Return the messages of `missing` in the tests of ``reports``, once each."""
    texts = dict.fromkeys(re.sub(r"^\[gw.*\n", "", report.longreprtext) for report in reports)
    hints = tuple(_HINT.format(what) for what in NEEDS)
    return [text.strip() for text in texts if text.strip().endswith(hints)]


def add_option(parser):
    parser.addoption(
        "--without",
        action="append",
        default=[],
        choices=NEEDS,
        help="skip the tests that need this, where it is missing; may be given several times: "
        + ", ".join(f"{name} ({what})" for name, what in NEEDS.items()),
    )


def missing(config, what, reason):
    """End a test whose requirement is missing: fail, or skip if ``--without`` allows it."""
    if what in config.getoption("--without"):
        raise pytest.skip.Exception(str(reason).partition("\n")[0]) from None
    raise pytest.fail.Exception(f"{reason}\n{_HINT.format(what)}", pytrace=False) from None


def program(config, name):
    """Return the path of a compiler, or end the test if there is none."""
    path = shutil.which(name)
    if path is None:
        missing(config, "compiler", f"there is no compiler {name}")
    return path


def check_vulkan(config):
    """Return the Vulkan adapter that is used, or end the test if there is none."""
    from dnnffi.backends.vulkan.device import open_device
    from dnnffi.errors import LibraryNotFoundError

    try:
        return open_device()
    except LibraryNotFoundError as error:
        missing(config, "vulkan", error)
