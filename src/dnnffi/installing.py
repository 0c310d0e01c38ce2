"""The commands that install extras of dnnffi.

They depend on how dnnffi itself was installed. An extra of an installation from a package index is
asked for by dnnffi's name; of a checkout, an archive or a repository, by its address, because the
index may have no dnnffi or another version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dnnffi.importing import import_lock
from dnnffi.operating_system import IS_WINDOWS

_NAME = "dnnffi"


def install_extra(*names: str) -> str:
    """Return the command that adds extras to this installation of dnnffi.

    Examples
    --------
    >>> from dnnffi.installing import install_extra
    >>> command = install_extra("vulkan")
    >>> # pip install 'dnnffi[vulkan]', or in a checkout pip install -e '/home/me/dnnffi[vulkan]'
    """
    extras = f"[{','.join(names)}]"
    checkout = _checkout()
    if checkout is not None:
        return f"pip install -e {_quoted(f'{checkout}{extras}')}"
    address = _address()
    place = f" @ {address}" if address else ""
    return f"pip install {_quoted(f'{_NAME}{extras}{place}')}"


def _checkout() -> Path | None:
    """Return the checkout whose source this process runs; None if it runs an installed copy."""
    with import_lock:
        import tomllib
    root = Path(__file__).resolve().parents[2]
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        return root if project["project"]["name"] == _NAME else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _address() -> str:
    """Return the address that dnnffi was installed from; empty if an index provided it.

    Installers store it as the specification "Recording the Direct URL Origin" (PEP 610) says.
    """
    with import_lock:
        import json
        from importlib import metadata
    try:
        origin: dict[str, Any] = json.loads(
            metadata.distribution(_NAME).read_text("direct_url.json") or "{}"
        )
        repository = origin.get("vcs_info")
        address: str = origin.get("url", "")
        if repository:
            address = f"{repository['vcs']}+{address}@{repository['commit_id']}"
        if folder := origin.get("subdirectory"):
            address += f"#subdirectory={folder}"
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return address


def _quoted(text: str) -> str:
    """Quote a text for the shell: the command interpreter of Windows keeps single quotes."""
    return f'"{text}"' if IS_WINDOWS else "'" + text.replace("'", "'\"'\"'") + "'"
