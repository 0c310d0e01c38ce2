"""Taking headers out of packages, with pip and apt replaced: no test here reaches an index."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

import debian
import headers
import pytest
from vendors import NEWEST, VENDORS, Deb, Wheel

CUDNN = VENDORS["cudnn"]
MIOPEN = VENDORS["miopen"]


class FakePip:
    """Stand-in for pip that answers for one package with one version."""

    def __init__(self, version: str, members: dict[str, str]) -> None:
        self.version = version
        self.members = members
        self.online = True
        self.calls: list[str] = []

    def __call__(self, *arguments: str) -> str:
        self.calls.append(arguments[0])
        if not self.online:
            raise headers.HeaderError("pip failed: no network")
        if arguments[0] == "index":
            return f"{arguments[2]} ({self.version})\nAvailable versions: {self.version}, 1.0\n"
        folder = Path(arguments[arguments.index("--dest") + 1])
        with zipfile.ZipFile(folder / "package.whl", "w") as archive:
            for name, text in self.members.items():
                archive.writestr(name, text)
        return ""


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip(
        "9.99.1.2",
        {
            "nvidia/cudnn/include/cudnn.h": "/* top */",
            "nvidia/cudnn/include/cudnn_ops.h": "/* ops */",
            "nvidia/cudnn/include/__init__.py": "",
            "nvidia/cudnn/lib/libcudnn.so.9": "library",
        },
    )
    monkeypatch.setattr(headers, "_pip", fake)
    monkeypatch.setattr(headers, "HEADERS", tmp_path)
    return fake


def test_only_the_headers_are_kept(pip: FakePip, tmp_path: Path) -> None:
    folder = headers.fetch(CUDNN, Wheel("nvidia-cudnn-cu13", "9.99.1.2"))
    assert sorted(p.name for p in folder.iterdir()) == ["cudnn.h", "cudnn_ops.h"]
    assert sorted(p.name for p in (tmp_path / "cudnn").iterdir()) == ["9.99.1.2"]


def test_headers_that_are_there_are_not_fetched_again(pip: FakePip) -> None:
    wheel = Wheel("nvidia-cudnn-cu13", "9.99.1.2")
    assert headers.fetch(CUDNN, wheel) == headers.fetch(CUDNN, wheel)
    assert pip.calls == ["download"]


def test_newest_is_asked_for_and_recorded(pip: FakePip, tmp_path: Path) -> None:
    folder = headers.fetch(CUDNN, Wheel("nvidia-cudnn-cu13", NEWEST))
    assert folder.name == "9.99.1.2"
    assert (tmp_path / "cudnn" / "newest.txt").read_text() == "9.99.1.2\n"


def test_newest_is_the_recorded_one_without_an_index(pip: FakePip) -> None:
    folder = headers.fetch(CUDNN, Wheel("nvidia-cudnn-cu13", NEWEST))
    pip.online = False
    assert headers.fetch(CUDNN, Wheel("nvidia-cudnn-cu13", NEWEST)) == folder


def test_newest_without_index_and_record_is_an_error(pip: FakePip) -> None:
    pip.online = False
    with pytest.raises(headers.HeaderError, match="no network"):
        headers.fetch(CUDNN, Wheel("nvidia-cudnn-cu13", NEWEST))


def test_wheel_without_headers_leaves_nothing(pip: FakePip, tmp_path: Path) -> None:
    pip.members = {"nvidia/cudnn/lib/libcudnn.so.9": "library"}
    with pytest.raises(headers.HeaderError, match=r"holds no cudnn\.h"):
        headers.fetch(CUDNN, Wheel("nvidia-cudnn-cu13", "9.99.1.2"))
    assert list((tmp_path / "cudnn").iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["9.1"], ["9.1.0.70"]),
        (["8.9.7"], ["8.9.7.29"]),
        (["9.19", "newest"], ["9.19.0.56", "newest"]),
        ([], [wheel.version for wheel in CUDNN.wheels]),
    ],
)
def test_version_selects_by_whole_parts(asked: list[str], found: list[str]) -> None:
    assert [wheel.version for wheel in headers.select(CUDNN, asked)] == found


def test_unknown_version_lists_the_known_ones() -> None:
    with pytest.raises(headers.HeaderError, match=r"cudnn 9\.2 is not .*9\.19\.0\.56, newest"):
        headers.select(CUDNN, ["9.2"])


def test_a_version_may_be_of_one_vendor_only() -> None:
    found = headers.select_all([CUDNN, MIOPEN], ["9.19"])
    assert [release.version for release in found["cudnn"]] == ["9.19.0.56"]
    assert found["miopen"] == []
    both = headers.select_all([CUDNN, MIOPEN], ["newest"])
    assert both["miopen"] == list(MIOPEN.debs)
    with pytest.raises(headers.HeaderError, match=r"cudnn, miopen 3\.9 is not"):
        headers.select_all([CUDNN, MIOPEN], ["3.9"])


class Installed:
    """A distribution as `importlib.metadata` gives it."""

    version = "13.99.0.1"
    files = tuple(
        PurePosixPath(path)
        for path in ("nvidia/cu13/include/cublasLt.h", "nvidia/cu13/lib/libcublasLt.so.13")
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def locate_file(self, path: PurePosixPath) -> Path:
        return self._folder / path


@pytest.mark.parametrize(
    ("version", "calls"), [("13.99.0.1", []), ("13.98.0.1", ["download"])], ids=["same", "other"]
)
def test_headers_of_an_installed_wheel_of_that_version_are_not_fetched(
    pip: FakePip,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    calls: list[str],
) -> None:
    there = tmp_path / "installed"
    header = there / Installed.files[0]
    header.parent.mkdir(parents=True)
    header.write_text("/* installed */")
    monkeypatch.setattr(headers.metadata, "distribution", lambda package: Installed(there))
    pip.members = {"nvidia/cu13/include/cublasLt.h": "/* fetched */"}
    folder = headers.fetch(VENDORS["cublas"], Wheel("nvidia-cublas", version))
    assert pip.calls == calls
    text = (folder / "cublasLt.h").read_text()
    assert text == ("/* fetched */" if calls else "/* installed */")
    assert [path.name for path in folder.iterdir()] == ["cublasLt.h"]


# Debian packages


class FakeArchive:
    """A suite with one version of one package."""

    version_there = "6.4.3+dfsg-1"
    members = ("miopen/miopen.h", "miopen/version.h")
    online = True
    unpacked = 0

    def __init__(self, folder: Path, suite: str) -> None:
        if not self.online:
            raise debian.DebianError("no network")
        self._folder = folder

    def version(self, package: str) -> str:
        return self.version_there

    def unpack(self, package: str) -> Path:
        FakeArchive.unpacked += 1
        for name in self.members:
            header = self._folder / "files" / "usr" / "include" / name
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text("/* a header */")
        return self._folder / "files"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[FakeArchive]:
    class Fresh(FakeArchive):
        pass

    FakeArchive.unpacked = 0
    monkeypatch.setattr(debian, "Archive", Fresh)
    monkeypatch.setattr(headers, "HEADERS", tmp_path)
    return Fresh


DEB = Deb("libmiopen-dev", "sid")


def test_headers_of_a_deb_are_kept_under_its_version(
    archive: type[FakeArchive], tmp_path: Path
) -> None:
    folder = headers.fetch(MIOPEN, DEB)
    assert folder == tmp_path / "miopen" / "6.4.3+dfsg-1"
    assert sorted(p.name for p in (folder / "miopen").iterdir()) == ["miopen.h", "version.h"]
    assert sorted(p.name for p in (tmp_path / "miopen").iterdir()) == [folder.name, "newest.txt"]


def test_a_deb_that_is_there_is_not_fetched_again(archive: type[FakeArchive]) -> None:
    assert headers.fetch(MIOPEN, DEB) == headers.fetch(MIOPEN, DEB)
    assert archive.unpacked == 1


def test_a_deb_is_the_recorded_one_without_the_archive(archive: type[FakeArchive]) -> None:
    folder = headers.fetch(MIOPEN, DEB)
    archive.online = False
    assert headers.fetch(MIOPEN, DEB) == folder


def test_a_deb_that_cannot_be_had_is_unavailable(archive: type[FakeArchive]) -> None:
    archive.online = False
    with pytest.raises(headers.UnavailableError, match=r"libmiopen-dev of Debian sid: no network"):
        headers.fetch(MIOPEN, DEB)


def test_a_deb_without_headers_leaves_nothing(archive: type[FakeArchive], tmp_path: Path) -> None:
    archive.members = ("other/other.h",)
    with pytest.raises(headers.HeaderError, match=r"holds no miopen/miopen\.h"):
        headers.fetch(MIOPEN, DEB)
    assert [p.name for p in (tmp_path / "miopen").iterdir()] == ["newest.txt"]


def test_a_system_without_apt_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(debian.DebianError, match=r"^this system has no apt-get$"):
        debian.mirror()
