"""Reading regular files alone, without waiting, and replacing files as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import bounded
import irregular
import pytest

from dnnffi import files

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


# Reading


def test_a_file_and_a_link_to_it_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        assert files.read(tmp_path / name, 7) == b"content"
        with files.open_regular(str(tmp_path / name)) as file:
            assert file.read() == b"content"


def test_a_file_of_more_bytes_than_allowed_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with pytest.raises(OSError, match=rf"has more than 6 bytes: '{path}'$"):
        files.read(path, 6)


READ = """
import sys
from dnnffi import files
for function in (files.open_regular, lambda path: files.read(path, 100)):
    try:
        function(sys.argv[1])
    except OSError as error:
        print(error)
"""


@pytest.mark.parametrize("kind", irregular.KINDS)
def test_only_regular_files_are_read(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    irregular.make(path, kind)
    told = bounded.run(READ, path).splitlines()
    assert len(told) == 2
    assert all(line.endswith(f"is not a regular file but a {kind}: '{path}'") for line in told)


def test_a_device_is_not_even_opened(tmp_path, monkeypatch):
    path = tmp_path / "file"
    irregular.make(path, "character device")
    monkeypatch.setattr(os, "open", None)
    with pytest.raises(OSError, match="not a regular file but a character device"):
        files.open_regular(path)


def test_a_fifo_that_replaces_the_file_while_it_is_opened_keeps_nobody_waiting(tmp_path):
    path = tmp_path / "file"
    path.touch()
    code = """
import os, sys
from dnnffi import files
checked = os.stat
def stat(path):
    found = checked(path)
    os.unlink(path)
    os.mkfifo(path)
    return found
free = os.dup(0)
os.close(free)
os.stat = stat
try:
    files.open_regular(sys.argv[1])
except OSError as error:
    print(error)
print(os.dup(0) == free)
"""
    told, is_closed = bounded.run(code, path).splitlines()
    assert told.endswith(f"is not a regular file but a FIFO: '{path}'")
    assert is_closed == "True"


def test_a_file_that_does_not_exist_is_named(tmp_path):
    for function in (files.check_regular, files.open_regular, lambda path: files.read(path, 1)):
        with pytest.raises(FileNotFoundError, match=str(tmp_path / "none")):
            function(tmp_path / "none")


# JSON


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', '[{"b": {"b": 2, "a": 1, "a": 3}}]', b'{"a": 1, "\\u0061": 2}']
)
def test_a_name_twice_in_a_json_object_is_refused(text):
    with pytest.raises(ValueError, match=r"^the name 'a' occurs twice in one JSON object$"):
        files.parse_json(text)


def test_other_json_is_read():
    text = '{"a": {"a": [1, 2.5, null]}, "b": {"a": "b"}}'
    assert files.parse_json(text) == {"a": {"a": [1, 2.5, None]}, "b": {"a": "b"}}


# Writing


def test_a_file_is_made_and_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "file"
    for content in (b"first", memoryview(b"second"), b""):
        files.write(path, content)
        assert path.read_bytes() == content
        assert left_in(tmp_path) == ["file"]


def test_a_path_without_a_folder_is_in_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write("file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("length", [1, 230, 250, 255])
@pytest.mark.parametrize("character", ["x", "é"])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path, length, character):
    name = character * (length // len(character.encode())) or character
    files.write(tmp_path / name, b"content")
    assert left_in(tmp_path) == [name]


def test_permissions_of_a_new_file_are_those_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "file", b"")
        files.write(tmp_path / "shared", b"", mode=0o664)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "shared").stat().st_mode & 0o7777 == 0o664


@pytest.mark.parametrize("permissions", [0o600, 0o644, 0o666, 0o400])
def test_permissions_of_the_replaced_file_are_kept(tmp_path, permissions):
    path = tmp_path / "file"
    path.touch()
    path.chmod(permissions)
    files.write(path, b"new")
    assert path.stat().st_mode & 0o7777 == permissions
    files.write(path, b"private", mode=0o600)
    assert path.stat().st_mode & 0o7777 == 0o600


def test_the_bit_that_runs_a_file_as_its_owner_is_not_kept(tmp_path):
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o4755)
    files.write(path, b"new")
    assert path.stat().st_mode & 0o7777 == 0o755


def test_the_part_file_is_never_more_readable_than_the_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o600)
    seen = []

    def look(descriptor, mode):
        seen.append(os.fstat(descriptor).st_mode & 0o777)

    monkeypatch.setattr(os, "fchmod", look)
    files.write(path, b"new")
    assert seen == [0o600]


@pytest.mark.parametrize("kind", irregular.KINDS)
@pytest.mark.parametrize("follow_link", [False, True])
def test_only_regular_files_are_replaced(kind, follow_link, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    irregular.make(path, kind)
    before = os.lstat(path).st_ino
    described = "link" if path.is_symlink() and not follow_link else kind
    named = os.path.realpath(path) if follow_link else path
    for function in (files.check_replaceable, lambda *args, **kw: files.write(*args, b"x", **kw)):
        with pytest.raises(OSError, match=f"not a regular file but a {described}: '{named}'$"):
            function(path, follow_link=follow_link)
    assert os.lstat(path).st_ino == before
    assert left_in(tmp_path) == [path.name]


def test_a_device_is_not_replaced_by_root(tmp_path):
    path = tmp_path / "device"
    irregular.make_device(path)
    with pytest.raises(OSError, match="not a regular file but a character device"):
        files.write(path, b"x")
    assert path.is_char_device()


def test_a_link_is_followed_only_on_request(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="not a regular file but a link"):
        files.write(tmp_path / "link", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    files.write(tmp_path / "link", b"new", follow_link=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert left_in(tmp_path) == ["file", "link"]


def test_links_without_end_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for follow_link in (False, True):
        with pytest.raises(OSError, match="not a regular file but a link"):
            files.write(tmp_path / "a", b"", follow_link=follow_link)


def test_a_value_is_written_and_read_as_json(tmp_path):
    value = {"a": [1, 2.5, None, "\N{EURO SIGN}"]}
    files.write_json(tmp_path / "file", value)
    assert files.read_json(tmp_path / "file") == value
    assert (tmp_path / "file").read_text().endswith("}\n")
    with pytest.raises(OSError, match="has more than 10 bytes"):
        files.read_json(tmp_path / "file", 10)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    folder = tmp_path / "none"
    with pytest.raises(FileNotFoundError, match=f"folder does not exist: '{folder}'$"):
        files.write(folder / "file", b"")
    folder.touch()
    with pytest.raises(NotADirectoryError, match=f"'{folder}'$"):
        files.write(folder / "file", b"")


@pytest.mark.parametrize("function", ["fchmod", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, function, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*arguments):
        raise error

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(type(error)):
        files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert left_in(tmp_path) == ["file"]


def test_what_is_planted_at_the_name_of_a_part_file_is_neither_followed_nor_removed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "0" * 2 * count)
    victim, planted = tmp_path / "victim", tmp_path / f".dnnffi-{'0' * 16}.part"
    planted.symlink_to("victim")
    for follow_link in (False, True):
        with pytest.raises(FileExistsError):
            files.write(tmp_path / "file", b"new", follow_link=follow_link)
        assert not victim.exists()
        assert left_in(tmp_path) == [planted.name]


# Part files of writers that were killed

KILLED = """
import os, signal, sys
from dnnffi import files
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
files.write(sys.argv[1], b"content")
"""


def killed(path, hours):
    """The part file of a writer of ``path`` that was killed, made older by some hours."""
    before = set(path.parent.iterdir())
    command = [sys.executable, "-c", KILLED, path]
    environment = os.environ | {"PYTHONPATH": str(Path(files.__file__).parents[1])}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    (left,) = set(path.parent.iterdir()) - before
    then = left.stat().st_mtime - 3600 * hours
    os.utime(left, (then, then), follow_symlinks=False)
    return left


@pytest.mark.parametrize("name", ["net", "other"])
def test_a_later_write_into_the_folder_removes_what_a_killed_one_left(tmp_path, name):
    old, young = (killed(tmp_path / "net", hours) for hours in (2, 0.5))
    assert old.name != young.name
    files.write(tmp_path / name, b"content")
    assert left_in(tmp_path) == sorted([name, young.name]), "a young one may have a writer"


def test_only_part_files_of_this_writer_are_removed(tmp_path):
    left = killed(tmp_path / "net", hours=2)
    precious = tmp_path / "precious"
    precious.touch()
    others = [
        tmp_path / name
        for name in (
            "download.part",
            left.name[1:],
            f"{left.name}.bak",
            left.name.replace(".part", "0.part"),
            left.name.upper(),
        )
    ]
    for path in (precious, *others):
        path.touch()
        os.utime(path, (0, 0))
    link, folder = (tmp_path / f".dnnffi-{digit * 16}.part" for digit in "ab")
    link.symlink_to("precious")
    os.utime(link, (0, 0), follow_symlinks=False)
    folder.mkdir()
    os.utime(folder, (0, 0))
    files.write(tmp_path / "net", b"content")
    names = [path.name for path in (precious, *others, link, folder)]
    assert left_in(tmp_path) == sorted([*names, "net"])


def test_a_part_file_that_cannot_be_removed_does_not_fail_the_write(tmp_path, monkeypatch):
    left = killed(tmp_path / "net", hours=2)

    def fail(path):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", fail)
    files.write(tmp_path / "net", b"content")
    assert left_in(tmp_path) == sorted([left.name, "net"])


def test_a_folder_of_many_files_is_not_searched_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_SCANNED_ENTRIES", 0)
    left = killed(tmp_path / "net", hours=2)
    files.write(tmp_path / "net", b"content")
    assert left.exists()
