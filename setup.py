"""Build of dnnffi, with README.md as a package index shows it; the rest is in pyproject.toml.

An index does not have the files of the repository. `render` therefore makes links and pictures
absolute, as soon as ``[project.urls]`` in pyproject.toml has a ``Repository`` on GitHub; until then
a link is its text, and pictures are left out. It also leaves out what concerns a checkout alone,
and installs by name.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent

_CHECKOUT = re.compile(r"<!--checkout-->.*?<!--/checkout-->\s*", re.DOTALL)
_LINK = re.compile(r"(?P<image>!)?\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<target>[^)]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_INSTALL = re.compile(r"pip install ('?)\.(?=[\[' \n])")


def render(text: str, repository: str | None, revision: str) -> str:
    """Return README.md for a package index.

    Parameters
    ----------
    text : the content of README.md
    repository : address of the repository on GitHub, without a slash at the end; None without one
    revision : the tag or commit that links lead to
    """

    def absolute(link: re.Match[str]) -> str:
        if repository is None:
            return "" if link["image"] else link["text"]
        begin, kind = ("!", "raw") if link["image"] else ("", "blob")
        return f"{begin}[{link['text']}]({repository}/{kind}/{revision}/{link['target']})"

    parts = _FENCE.split(_CHECKOUT.sub("", text))
    parts[::2] = [_LINK.sub(absolute, part) for part in parts[::2]]  # the others are code
    return _INSTALL.sub(r"pip install \1dnnffi", "".join(parts))


def readme() -> str:
    """Return README.md of this version for a package index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module = (ROOT / "src" / "dnnffi" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', module, re.MULTILINE)[1]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return render(text, project.get("urls", {}).get("Repository"), f"v{version}")


if __name__ == "__main__":
    from setuptools import setup  # the tests need `render` alone

    setup(long_description=readme(), long_description_content_type="text/markdown")
