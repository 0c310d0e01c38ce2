"""The commands that install extras, by how dnnffi was installed."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from dnnffi import installing
from dnnffi.installing import install_extra

ROOT = Path(installing.__file__).resolve().parents[2]


class Distribution:
    """The metadata of an installed dnnffi."""

    def __init__(self, origin):
        self._origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return self._origin


@pytest.fixture(autouse=True)
def quotes_of_posix(monkeypatch):
    monkeypatch.setattr(installing, "IS_WINDOWS", False)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Let dnnffi be an installed copy whose file ``direct_url.json`` has a content."""

    def install(origin):
        module = tmp_path / "lib" / "python3.11" / "dnnffi" / "installing.py"
        monkeypatch.setattr(installing, "__file__", str(module))
        monkeypatch.setattr(metadata, "distribution", lambda name: Distribution(origin))
        folder = module.parents[2]
        folder.mkdir(exist_ok=True)
        return folder

    return install


def test_in_a_checkout_the_checkout_is_installed():
    assert install_extra("vulkan") == f"pip install -e '{ROOT}[vulkan]'"
    assert install_extra("jax", "demo") == f"pip install -e '{ROOT}[jax,demo]'"


def test_an_installation_from_an_index_is_named(installed):
    installed(None)
    assert install_extra("vulkan") == "pip install 'dnnffi[vulkan]'"


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ({"url": "file:///home/me/dnnffi", "dir_info": {}}, "file:///home/me/dnnffi"),
        (
            {"url": "file:///tmp/dnnffi-0.1.0-py3-none-any.whl", "archive_info": {}},
            "file:///tmp/dnnffi-0.1.0-py3-none-any.whl",
        ),
        (
            {
                "url": "https://example.org/r.git",
                "vcs_info": {"vcs": "git", "commit_id": "0123abc", "requested_revision": "main"},
                "subdirectory": "python",
            },
            "git+https://example.org/r.git@0123abc#subdirectory=python",
        ),
    ],
)
def test_an_installation_from_an_address_is_asked_for_there(installed, origin, address):
    installed(json.dumps(origin))
    assert install_extra("vulkan") == f"pip install 'dnnffi[vulkan] @ {address}'"


@pytest.mark.parametrize("origin", ["{", "[]", "null", '{"url": ""}'])
def test_an_origin_that_cannot_be_read_leaves_the_name(installed, origin):
    installed(origin)
    assert install_extra("vulkan").startswith("pip install 'dnnffi[vulkan]")


def test_without_metadata_the_name_is_left(installed, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    installed(None)
    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_extra("vulkan") == "pip install 'dnnffi[vulkan]'"


def test_a_copy_in_the_source_of_another_project_is_not_its_checkout(installed):
    (installed(None) / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert install_extra("vulkan") == "pip install 'dnnffi[vulkan]'"


def test_quotes_are_those_of_the_shell(installed, monkeypatch):
    installed(json.dumps({"url": "file:///home/o'neil/dnnffi"}))
    quoted = "'dnnffi[vulkan] @ file:///home/o'\"'\"'neil/dnnffi'"
    assert install_extra("vulkan") == f"pip install {quoted}"
    monkeypatch.setattr(installing, "IS_WINDOWS", True)
    installed(None)
    assert install_extra("vulkan") == 'pip install "dnnffi[vulkan]"'


# The extras in pyproject.toml

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
FOR_ONE_GPU = {"cuda12", "cuda13", "rocm"}
FOR_THIS_PROJECT = {"dev", "docs"}


def test_all_has_every_extra_that_any_machine_can_install():
    (one,) = EXTRAS["all"]
    name, _, listed = one.partition("[")
    assert name == "dnnffi"
    wanted = set(EXTRAS) - FOR_ONE_GPU - FOR_THIS_PROJECT - {"all"}
    assert listed.rstrip("]").split(",") == sorted(wanted)


def test_every_extra_that_a_page_or_an_example_names_exists():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*")]
    named = set()
    for path in pages:
        for command in re.findall(r"pip install (.*)", path.read_text(encoding="utf-8")):
            # No index has dnnffi yet: pages install from a checkout.
            assert "dnnffi[" not in command, f"{path.name}: {command}"
            for listed in re.findall(r"'\.\[([\w,]+)\]'", command):
                named |= set(listed.split(","))
    assert len(named) >= 4
    assert named <= set(EXTRAS)


def test_every_extra_that_an_error_names_exists():
    named = set()
    for path in Path(installing.__file__).parent.rglob("*.py"):
        named |= set(re.findall(r"install_extra\(['\"](\w+)", path.read_text(encoding="utf-8")))
    assert len(named) >= 4
    assert named <= set(EXTRAS)
