"""README.md as a package index shows it (setup.py)."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

import dnnffi

ROOT = Path(__file__).resolve().parents[2]
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
README = (ROOT / "README.md").read_text(encoding="utf-8")
REPOSITORY = "https://github.com/owner/dnnffi"
TARGET = re.compile(r"\]\(([^)]+)\)")


@pytest.mark.parametrize("repository", [None, REPOSITORY])
def test_no_link_and_no_picture_is_relative(repository):
    text = SETUP["render"](README, repository, "v1.2.3")
    targets = TARGET.findall(text)
    assert "https://cupy.dev" in targets
    assert [one for one in targets if not one.startswith("https://")] == []
    assert ("![" in text) == (repository is not None)


def test_links_lead_to_files_of_the_release():
    text = SETUP["render"](README, REPOSITORY, "v1.2.3")
    paths = re.findall(rf"\]\({re.escape(REPOSITORY)}/(blob|raw)/v1\.2\.3/([^)#]+)", text)
    assert ("raw", "docs/speed.svg") in paths
    assert ("blob", "docs/torch.md") in paths
    assert [path for _, path in paths if not (ROOT / path).exists()] == []


def test_commands_install_by_name_and_none_needs_a_checkout():
    text = SETUP["render"](README, None, "v1.2.3")
    assert "pip install 'dnnffi[cuda13]'" in text
    assert "pip install dnnffi " in text
    for absent in ("pip install .", "pip install '.", "make demo", "not on a package index"):
        assert absent in README
        assert absent not in text


def test_code_is_left_as_it_is():
    text = SETUP["render"]("[a](b)\n\n```python\nx = [a](b)\n```\n", None, "v1")
    assert text == "a\n\n```python\nx = [a](b)\n```\n"


def test_the_readme_of_this_version_is_rendered():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project.get("urls", {}).get("Repository")
    revision = f"v{dnnffi.__version__}"
    assert SETUP["readme"]() == SETUP["render"](README, repository, revision)
    assert "readme" in project["dynamic"]
