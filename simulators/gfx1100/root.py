"""Makes the folder that the tests of libMIOpen run in: a small Debian sid with the real library.

``make()`` gives the folder, made once and kept in ``build/gfx1100/root``. It needs Linux on amd64,
root, ``debootstrap`` and a mirror of Debian, and takes about a minute and 1.1 GB. rocBLAS, with its
4 GB of kernels, and the HIP runtime stay out: ``libraries.py`` builds what stands in for them.

No package is named by version. ``libmiopen1`` says what it depends on, and from that follow the
version of LLVM, which compiles its kernels, and all else.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
FOLDER = REPOSITORY / "build" / "gfx1100" / "root"
STAMP = "made-from"

SUITE = "sid"
TOOLS = ("binutils", "gcc", "libc6-dev", "python3", "python3-cffi", "python3-hypothesis")
PYTEST = (
    "python3-numpy",
    "python3-platformdirs",
    "python3-pytest",
    "python3-pytest-xdist",
    "python3-setuptools",
    "python3-threadpoolctl",
)
HEADERS = ("libmiopen-dev", "libamdhip64-dev", "librocrand-dev")
REPLACED = ("libamdhip64-", "libhiprtc", "librocblas")
"""Dependencies that are not installed: the tests bring their own, or nothing calls them."""

CHROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class UnavailableError(Exception):
    """The folder cannot be made on this machine; the message says why."""


def make(folder: Path = FOLDER) -> Path:
    """Return the folder, made if it is not there or if this file makes another one by now."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == recipe:
        return folder
    _check_machine()
    for old in (folder, partial := folder.with_name(folder.name + ".partial")):
        _remove(old)
    partial.parent.mkdir(parents=True, exist_ok=True)
    print(f"Making {folder} (about a minute)", flush=True)
    try:
        _bootstrap(partial)
        _install(partial)
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"{_shown(error.cmd)} ended with {error.returncode}") from error
    (partial / STAMP).write_text(recipe)
    partial.rename(folder)
    return folder


def run(
    folder: Path,
    command: Sequence[str],
    *,
    mounts: Mapping[Path, str] | None = None,
    environment: Mapping[str, str] | None = None,
    **options: object,
) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder, with ``mounts`` (folder outside: absolute path inside).

    The mounts are in a namespace of the command's own and end with it, so that whoever removes the
    build folder can never remove what was mounted there.
    """
    script = ['mount --rbind /proc "$0/proc"']
    arguments = []
    for outside, inside in (mounts or {}).items():
        (folder / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        script.append(f'mount --bind "${{{len(arguments) + 1}}}" "$0{inside}"')
        arguments.append(str(outside))
    script.append(f'shift {len(arguments)}; exec chroot "$0" "$@"')
    variables = {"PATH": CHROOT_PATH, "HOME": "/root", "LANG": "C.UTF-8", **(environment or {})}
    return subprocess.run(
        [*_NAMESPACE, "sh", "-ec", "; ".join(script), str(folder), *arguments, *command],
        env=variables,
        text=True,
        **options,
    )


_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "--")


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnavailableError("it is made on Linux on amd64 only")
    if os.geteuid() != 0:
        raise UnavailableError("debootstrap and chroot need root")
    for tool in ("debootstrap", "unshare"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"{tool} is not installed")
    if subprocess.run([*_NAMESPACE, "true"], capture_output=True).returncode:
        raise UnavailableError("a mount namespace is not allowed here")


def _remove(folder: Path) -> None:
    if folder.exists():
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)


def _shown(command: Sequence[str]) -> str:
    return " ".join(command if len(command) < 12 else [*command[:11], "..."])


# What the folder is made of.


def _bootstrap(folder: Path) -> None:
    command = [*_NAMESPACE, "debootstrap", "--variant=minbase", SUITE, str(folder), *_mirror()]
    _logged(command, folder.with_name("debootstrap.log"), env={**os.environ, **_proxies()})


def _install(folder: Path) -> None:
    # A mirror may be older than the week for which a release file is valid.
    _inside(folder, "apt-get", "-o", "Acquire::Check-Valid-Until=false", "update")
    dependencies = parse_dependencies(_inside(folder, "apt-cache", "show", "libmiopen1"))
    llvm = llvm_version(dependencies)
    compiler = [f"{name}-{llvm}" for name in ("clang", "lld", "llvm", "rocm-device-libs")]
    kept = [name for name in dependencies if not name.startswith(REPLACED)]
    _inside(folder, *_APT_INSTALL, *TOOLS, *PYTEST, *compiler, *kept)
    gcc = _inside(folder, "gcc", "-dumpversion").strip()
    _inside(folder, *_APT_INSTALL, f"libstdc++-{gcc}-dev")  # its headers, for the kernels
    _extract(folder, "libmiopen1", *HEADERS)
    _inside(folder, "apt-get", "clean")
    _repair_compiler(folder, llvm)


def parse_dependencies(shown: str) -> list[str]:
    """Return the names of a package's dependencies, from what ``apt-cache show`` prints."""
    lines = re.findall(r"^Depends: (.*)$", shown, re.MULTILINE)
    if not lines:
        raise UnavailableError("apt-cache shows no dependencies of libmiopen1")
    first_choices = [entry.split("|")[0] for entry in lines[0].split(",")]
    return [entry.split("(")[0].split(":")[0].strip() for entry in first_choices]


def llvm_version(dependencies: Sequence[str]) -> str:
    """Return the version of the LLVM with which libMIOpen compiles, by the headers it asks for."""
    for name in dependencies:
        if found := re.fullmatch(r"libclang-common-(\d+)-dev", name):
            return found[1]
    raise UnavailableError("libmiopen1 does not depend on the headers of a clang")


def _extract(folder: Path, *packages: str) -> None:
    """Unpack without installing, for those that depend on what is replaced."""
    place, names = "/tmp/packages", " ".join(packages)
    _inside(
        folder,
        *("sh", "-ec"),
        f"mkdir {place}; cd {place}; apt-get -o APT::Sandbox::User=root download {names}; "
        f"for p in *.deb; do dpkg-deb -x $p /; done; cd /; rm -r {place}; ldconfig",
    )


COMPILER = """\
#!/bin/bash
# libMIOpen passes "-isystem /usr/include", with which <cmath> does not find C's <math.h>.
arguments=()
while (($#)); do
    if [[ $1 == -isystem && $2 == /usr/include ]]; then shift 2; continue; fi
    arguments+=("$1"); shift
done
# A bare code object, since there is one device only.
exec /usr/lib/llvm-{llvm}/bin/clang++ --no-gpu-bundle-output "${{arguments[@]}}"
"""


def _repair_compiler(folder: Path, llvm: str) -> None:
    """Two faults of Debian's package would keep libMIOpen from compiling its kernels."""
    wrapper = folder / "usr" / "bin" / f"clang++-{llvm}"
    wrapper.unlink(missing_ok=True)
    wrapper.write_text(COMPILER.format(llvm=llvm))
    wrapper.chmod(0o755)
    # The path of the OpenCL compiler points into the folder that the package was built in.
    library = next((folder / "usr" / "lib").glob("*/libMIOpen.so.1"))
    for path in set(re.findall(rb"/build/[^\0 ]*/clang-\d+", library.read_bytes())):
        link = folder / path.decode().lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/usr/bin/clang-{llvm}")


# How apt and debootstrap are called.

_APT_INSTALL = ("apt-get", "-o", "Dpkg::Use-Pty=0", "install", "--yes", "--no-install-recommends")


def _inside(folder: Path, *command: str) -> str:
    environment = {"DEBIAN_FRONTEND": "noninteractive", **_proxies()}
    done = run(folder, command, environment=environment, stdout=subprocess.PIPE)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout


def _logged(command: Sequence[str], log: Path, **options: object) -> None:
    with log.open("w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, **options)
    if done.returncode:
        print(*log.read_text().splitlines()[-20:], sep="\n", file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)


def _mirror() -> list[str]:
    """Return the mirror that this machine's own apt uses; none for debootstrap's default."""
    if chosen := os.environ.get("DEBIAN_MIRROR"):
        return [chosen]
    if shutil.which("apt-get") is None:
        return []
    wanted = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", wanted], capture_output=True, text=True
    )
    prefix = "Debian|Debian|"
    found = [line for line in targets.stdout.splitlines() if line.startswith(prefix)]
    return [found[0].removeprefix(prefix)] if found else []


def _proxies() -> dict[str, str]:
    """Return the proxies of the environment and of this machine's apt, as variables."""
    names = ("http_proxy", "https_proxy", "no_proxy")
    found = {name: os.environ[name] for name in names if name in os.environ}
    if shutil.which("apt-config"):
        shown = subprocess.run(["apt-config", "dump"], capture_output=True, text=True).stdout
        for kind, proxy in re.findall(r'^Acquire::(https?)::Proxy "([^"]+)";', shown, re.MULTILINE):
            found.setdefault(f"{kind}_proxy", proxy)
    return found
