"""The conda recipe, the lock of continuous integration, and what `make release` checks."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RELEASE = runpy.run_path(str(ROOT / "release" / "release.py"))


@pytest.fixture
def recipe():
    """The recipe as rattler-build parses it; unknown fields are errors."""
    rattler_build = pytest.importorskip("rattler_build")
    text = (ROOT / "release" / "recipe.yaml").read_text(encoding="utf-8")
    return rattler_build.Stage0Recipe.from_yaml(text)


def spaced(requirement):
    """A requirement as conda writes it: "numpy >=2.0"."""
    return re.sub(r"(?=[<>=~!])", " ", requirement, count=1)


def test_the_recipe_can_be_rendered(recipe):
    rattler_build = pytest.importorskip("rattler_build")
    (variant,) = recipe.render(rattler_build.VariantConfig())
    rendered = variant.recipe.to_dict()
    assert rendered["package"] == {
        "name": "dnnffi",
        "version": RELEASE["versions"]()["src/dnnffi/__init__.py"],
    }
    assert rendered["build"]["noarch"] == "python"


def test_the_recipe_needs_what_the_package_needs(recipe):
    project = PROJECT["project"]
    requirements = recipe.to_dict()["requirements"]
    python = f"python {project['requires-python']}"
    assert requirements["run"] == [python, *map(spaced, project["dependencies"])]
    assert requirements["host"] == [
        python,
        "pip",
        *map(spaced, PROJECT["build-system"]["requires"]),
    ]


def test_the_recipe_has_the_commands_of_the_package(recipe):
    scripts = PROJECT["project"]["scripts"]
    expected = [f"{name} = {target}" for name, target in scripts.items()]
    assert recipe.to_dict()["build"]["python"]["entry_points"] == expected


# make release


def test_all_files_name_the_same_version():
    assert len(set(RELEASE["versions"]().values())) == 1


@pytest.fixture
def repository(tmp_path):
    """The files that `problems` reads, with a repository's address."""
    for path in (*RELEASE["versions"](), "pyproject.toml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text(encoding="utf-8"), encoding="utf-8")
    with (tmp_path / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write('\n[project.urls]\nRepository = "https://github.com/owner/dnnffi"\n')
    return tmp_path


def test_nothing_is_to_be_mended_if_versions_agree_and_the_address_is_known(repository):
    assert RELEASE["problems"](repository) == []


def test_versions_that_differ_are_named(repository):
    path = repository / "CITATION.cff"
    path.write_text("version: 9.9\n")
    (problem,) = RELEASE["problems"](repository)
    assert "CITATION.cff 9.9" in problem


def test_a_file_without_a_version_is_named(repository):
    (repository / "CHANGELOG.md").write_text("# Changelog\n")
    (problem,) = RELEASE["problems"](repository)
    assert "CHANGELOG.md none" in problem


def test_a_missing_address_is_named(repository):
    path = repository / "pyproject.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("Repository", "Other"))
    (problem,) = RELEASE["problems"](repository)
    assert "has no Repository" in problem


def test_the_steps_have_the_hash_of_each_archive(tmp_path):
    archive = tmp_path / "dnnffi-1.tar.gz"
    archive.write_bytes(b"")
    text = "\n".join(RELEASE["steps"]("1", [archive]))
    # SHA-256 of an empty file.
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert f"{empty}  dnnffi-1.tar.gz" in text
    assert "git tag -s v1" in text
