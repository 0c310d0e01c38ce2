"""Tests of results on disk: complete or absent, and never an error for a call."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import bounded
import platformdirs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dnnffi.errors import PerformanceWarning
from dnnffi.execution.store import MAX_BYTES, Store, checked_time
from dnnffi.ownership import distrust_reason

KEY = {"device": "some GPU", "problem": [1, 2, None], "training": False}
VALUE = {"times": {"standard": [1.5, None]}, "refused": {}}
NOBODY = 65534


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path / "results"))
    return tmp_path / "results"


@contextmanager
def said_once(match):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    (warning,) = said
    assert warning.category is PerformanceWarning
    assert re.search(match, str(warning.message))


def path_of(folder):
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


def test_what_is_written_is_read(folder):
    one = Store("rnn")
    assert one.read(KEY) is None
    one.write(KEY, VALUE)
    assert one.read(KEY) == Store("rnn").read(KEY) == VALUE
    assert Store("rnn").read(dict(reversed(KEY.items()))) == VALUE


def test_other_keys_and_kinds_have_files_of_their_own(folder):
    Store("rnn").write(KEY, VALUE)
    assert Store("rnn").read(KEY | {"training": True}) is None
    assert Store("conv").read(KEY) is None
    Store("rnn").write(KEY | {"training": True}, "other")
    Store("conv").write(KEY, "convolution")
    assert Store("rnn").read(KEY) == VALUE
    assert Store("conv").read(KEY) == "convolution"


def test_a_later_result_replaces_the_file(folder):
    Store("rnn").write(KEY, VALUE)
    Store("rnn").write(KEY, "later")
    assert json.loads(path_of(folder).read_text()) == {"key": KEY, "value": "later"}


def damaged(whole):
    other = json.dumps(json.loads(whole) | {"key": KEY | {"device": "another GPU"}})
    return {
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "no text": bytes(range(128, 256)),
        "no JSON": b"hello",
        "a list": b"[1, 2]",
        "a number": b"17",
        "nothing": b"null",
        "no key": b'{"value": 3}',
        "no value": json.dumps({"key": KEY}).encode(),
        "another key": other.encode(),
        "too deep": b"[" * 200_000,
        "a value twice": whole[:-1] + b', "value": "another"}',
    }


@pytest.mark.parametrize("kind", damaged(b"{}"))
def test_a_file_that_is_none_of_ours_is_ignored_and_it_is_said_once(folder, kind):
    one = Store("rnn")
    one.write(KEY, VALUE)
    path = path_of(folder)
    content = damaged(path.read_bytes())[kind]
    path.write_bytes(content)
    with said_once(f"{path} is ignored: .*DNNFFI_CACHE_DIR"):
        assert one.read(KEY) is None
        assert one.read(KEY) is None
    assert path.read_bytes() == content, "what is not ours is left alone"
    one.write(KEY, VALUE)
    assert one.read(KEY) == VALUE


def test_a_folder_in_the_place_of_a_file_is_ignored(folder):
    one = Store("rnn")
    one.write(KEY, VALUE)
    path = path_of(folder)
    path.unlink()
    path.mkdir()
    with said_once("is ignored"):
        assert one.read(KEY) is None
        one.write(KEY, VALUE)
    assert list(path.parent.iterdir()) == [path], "nothing half written is left"


def test_a_file_that_may_not_be_read_is_ignored(folder, monkeypatch):
    one = Store("rnn")
    one.write(KEY, VALUE)

    def refuse(path, flags):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with said_once("Permission denied"):
        assert one.read(KEY) is None
        assert one.read(KEY) is None


READ = f"""
import sys, warnings
from dnnffi.execution.store import Store
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    print(Store("rnn").read({KEY!r}))
    print(*(warning.message for warning in said))
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(folder):
    one = Store("rnn")
    one.write(KEY, VALUE)
    path = path_of(folder)
    path.unlink()
    os.mkfifo(path)
    value, said = bounded.run(READ).splitlines()
    assert value == "None"
    assert f"{path} is ignored: " in said
    assert "is not a regular file but a FIFO" in said
    with said_once("cannot be kept: .* is not a regular file but a FIFO"):
        one.write(KEY, VALUE)
    assert path.is_fifo()


def test_a_file_larger_than_memory_is_not_read(folder):
    one = Store("rnn")
    one.write(KEY, VALUE)
    path = path_of(folder)
    os.truncate(path, 8 * 2**30)
    value, said = bounded.run(READ).splitlines()
    assert value == "None"
    assert f"{path} is ignored: " in said
    assert "has more than 4,194,304 bytes" in said
    one.write(KEY, VALUE)
    assert one.read(KEY) == VALUE


def test_a_device_that_never_ends_is_not_read(folder):
    one = Store("rnn")
    one.write(KEY, VALUE)
    path = path_of(folder)
    path.unlink()
    path.symlink_to("/dev/zero")
    value, said = bounded.run(READ).splitlines()
    assert value == "None"
    assert "is not a regular file but a character device" in said


def test_the_largest_result_is_read(folder):
    one = Store("rnn")
    one.write(KEY, "")
    one.write(KEY, "x" * (MAX_BYTES - path_of(folder).stat().st_size))
    assert path_of(folder).stat().st_size == MAX_BYTES
    assert len(one.read(KEY)) > MAX_BYTES // 2


def test_a_link_is_followed_to_read_and_not_replaced(folder, tmp_path):
    one = Store("rnn")
    one.write(KEY, VALUE)
    path, elsewhere = path_of(folder), tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert one.read(KEY) == VALUE
    with said_once("cannot be kept: .* is not a regular file but a link"):
        one.write(KEY, "later")
    assert os.readlink(path) == str(elsewhere)
    assert json.loads(elsewhere.read_text())["value"] == VALUE


# Files and folders that another user could have written


@pytest.fixture
def distrusted(monkeypatch):
    """Give a path to a user who is neither this one nor root."""
    if sys.platform == "win32":
        pytest.skip("files have no such owners here")

    def give(path):
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    return give


OTHERS_WRITE = [0o720, 0o702, 0o777, 0o1777]


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes here")
def test_what_is_created_is_for_this_user_alone(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "of" / "results"
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(folder))
    before = os.umask(0)
    try:
        Store("rnn").write(KEY, VALUE)
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "cache").rglob("*")}
    file = path_of(folder)
    assert modes.pop(file) == 0o600
    assert modes == dict.fromkeys((folder.parent, folder, folder / "rnn"), 0o700)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert Store("rnn").read(KEY) == VALUE


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes here")
@pytest.mark.parametrize("mode", OTHERS_WRITE, ids=oct)
@pytest.mark.parametrize("what", ["folder", "folder of the kind", "file"])
def test_what_others_may_write_is_ignored_and_it_is_said_once(folder, what, mode):
    one = Store("rnn")
    one.write(KEY, VALUE)
    file = path_of(folder)
    path = {"folder": folder, "folder of the kind": file.parent, "file": file}[what]
    path.chmod(mode)
    with said_once(
        f"(?s)is ignored: .*not trusted: .*mode {mode:04o}.*chmod go-w.*DNNFFI_CACHE_DIR"
    ):
        assert one.read(KEY) is None
        assert one.read(KEY) is None
    path.chmod(mode & ~0o022)
    assert one.read(KEY) == VALUE


@pytest.mark.parametrize("what", ["folder", "folder of the kind", "file"])
def test_what_belongs_to_another_user_is_ignored_and_it_is_said_once(folder, what, distrusted):
    one = Store("rnn")
    one.write(KEY, VALUE)
    file = path_of(folder)
    distrusted({"folder": folder, "folder of the kind": file.parent, "file": file}[what])
    with said_once("is ignored: .*not trusted: it belongs to user"):
        assert one.read(KEY) is None
        assert one.read(KEY) is None


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes here")
def test_nothing_is_written_where_nothing_would_be_read(folder):
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    one = Store("rnn")
    with said_once("cannot be kept: the folder .* is not trusted"):
        one.write(KEY, VALUE)
        one.write(KEY, VALUE)
    assert [path for path in folder.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes here")
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_link_to_a_folder_is_as_trusted_as_the_folder(folder, tmp_path, mode):
    one = Store("rnn")
    one.write(KEY, VALUE)
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere, target_is_directory=True)
    elsewhere.chmod(mode)
    if mode == 0o700:
        assert one.read(KEY) == VALUE
    else:
        with said_once("not trusted"):
            assert one.read(KEY) is None


def status(user, mode):
    return os.stat_result((mode, 1, 1, 1, user, 7, 0, 0, 0, 0))


@pytest.mark.parametrize("mode", [0o100600, 0o100644, 0o100755, 0o040700, 0o040755, 0o041755])
def test_this_user_and_root_are_trusted(monkeypatch, mode):
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    assert distrust_reason(status(1000, mode)) == distrust_reason(status(0, mode)) == ""
    assert "belongs to user 1001, not to this user (1000)" in distrust_reason(status(1001, mode))
    for others in (0o020, 0o002, 0o022):
        assert "users other than its owner" in distrust_reason(status(0, mode | others))


def test_where_there_are_no_such_owners_all_is_trusted(monkeypatch):
    monkeypatch.delattr(os, "geteuid", raising=False)
    assert distrust_reason(status(1001, 0o100666)) == ""


# Times


@given(st.floats(0, exclude_min=True, allow_infinity=False) | st.integers(1, 2**63))
@example(sys.float_info.max)
def test_a_time_is_finite_and_above_0(time):
    checked = checked_time(json.loads(json.dumps(time)))
    assert type(checked) is float
    assert checked == float(time)


@pytest.mark.parametrize(
    "text", ["1" + "0" * 400, "1e400", "NaN", "Infinity", "0", "-1", "null", '"1"', "[1]"]
)
def test_other_things_are_no_times(text):
    with pytest.raises(ValueError, match=r"is no time$") as error:
        checked_time(json.loads(text))
    assert len(str(error.value)) < 60


# A folder that cannot be written


def test_a_file_in_the_place_of_the_folder_is_said_once(folder):
    folder.write_text("in the way")
    one = Store("rnn")
    with said_once("Not a directory"):
        for _ in range(3):
            assert one.read(KEY) is None
            one.write(KEY, VALUE)
    assert folder.read_text() == "in the way"


UNPRIVILEGED = f"""
import os, sys, warnings
from dnnffi.execution.store import Store
if os.geteuid() == 0:  # root may write anywhere
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
one = Store("rnn")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(3):
        assert one.read({KEY!r}) is None
        one.write({KEY!r}, {VALUE!r})
print(*(warning.message for warning in said), sep="\\n")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes here")
def test_a_folder_that_may_not_be_written_is_said_once(monkeypatch):
    # Not in pytest's folder, which only its own user may enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0o500)
        monkeypatch.setenv("DNNFFI_CACHE_DIR", name)
        try:
            (said,) = bounded.run(UNPRIVILEGED).splitlines()
        finally:
            folder.chmod(0o700)
        assert "tuning results cannot be kept: [Errno 13] Permission denied" in said
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("where", "function"), [(Path, "mkdir"), (os, "fchmod"), (os, "replace")])
def test_a_file_system_that_fails_leaves_nothing_half_written(folder, monkeypatch, where, function):
    one = Store("rnn")
    one.write(KEY, VALUE)

    def fail(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(where, function, fail)
    with said_once("No space left"):
        one.write(KEY, "later")
        one.write(KEY, "later")
    assert one.read(KEY) == VALUE
    path_of(folder)  # the only file


def test_an_interrupted_writer_leaves_nothing_half_written(folder, monkeypatch):
    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Store("rnn").write(KEY, VALUE)
    assert [path for path in folder.rglob("*") if path.is_file()] == []


# Parts of writers that were killed

KILLED = f"""
import os, signal
from dnnffi.execution.store import Store
os.replace = lambda *arguments, **keywords: os.kill(os.getpid(), signal.SIGKILL)
Store("rnn").write({KEY!r}, {VALUE!r})
"""


def parts(folder):
    return [path.name for path in folder.rglob("*.part")]


def killed(folder, hours):
    """A partial file of a writer that was killed some hours ago."""
    before = parts(folder)
    with pytest.raises(AssertionError):
        bounded.run(KILLED)
    (left,) = (path for path in folder.rglob("*.part") if path.name not in before)
    then = left.stat().st_mtime - 3600 * hours
    os.utime(left, (then, then))
    return left.name


@pytest.mark.parametrize("key", [KEY, KEY | {"training": True}], ids=["same", "other"])
def test_the_next_writer_removes_what_a_killed_one_left(folder, key):
    killed(folder, hours=2)
    young = killed(folder, hours=0.5)
    assert len(parts(folder)) == 2
    Store("rnn").write(key, VALUE)
    assert parts(folder) == [young], "its writer may be alive"


def test_what_another_program_left_is_not_removed(folder):
    Store("rnn").write(KEY, VALUE)
    other = path_of(folder).with_name("download.part")
    other.touch()
    os.utime(other, (0, 0))
    Store("rnn").write(KEY, VALUE)
    assert other.exists()


def test_a_part_that_cannot_be_removed_is_left(folder, monkeypatch):
    left = killed(folder, hours=2)

    def fail(*arguments, **keywords):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", fail)
    Store("rnn").write(KEY, VALUE)
    assert Store("rnn").read(KEY) == VALUE
    assert parts(folder) == [left]


# Where


def test_off_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DNNFFI_CACHE_DIR", "off")
    one = Store("rnn")
    one.write(KEY, VALUE)
    assert one.read(KEY) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("named", [None, ""])
def test_the_folder_of_the_user_is_that_of_platformdirs(monkeypatch, tmp_path, named):
    if named is None:
        monkeypatch.delenv("DNNFFI_CACHE_DIR")
    else:
        monkeypatch.setenv("DNNFFI_CACHE_DIR", named)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    Store("rnn").write(KEY, VALUE)
    assert path_of(tmp_path).parent == tmp_path / "dnnffi" / "rnn"


def no_home(name):
    raise RuntimeError("could not determine the home directory")


@pytest.mark.parametrize(
    "user_cache_dir", [no_home, lambda name: f"~/.cache/{name}"], ids=["raised", "relative"]
)
def test_a_user_without_a_home_directory_keeps_nothing(monkeypatch, tmp_path, user_cache_dir):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DNNFFI_CACHE_DIR")
    monkeypatch.setattr(platformdirs, "user_cache_dir", user_cache_dir)
    Store("rnn").write(KEY, VALUE)
    assert list(tmp_path.iterdir()) == []


# Several at once


KEEP_WRITING = """
import json, sys
from dnnffi.execution.store import Store
key, value = json.loads(sys.argv[1])
one, seen = Store("rnn"), set()
for _ in range(40):
    one.write(key, value)
    seen.add(json.dumps(one.read(key)))
print("\\n".join(seen))
"""


def test_processes_that_write_at_once_leave_whole_files(folder):
    values = [[number] * 2000 for number in range(3)]
    commands = [[sys.executable, "-c", KEEP_WRITING, json.dumps([KEY, one])] for one in values]
    writers = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in commands]
    whole = set(map(json.dumps, values))
    for writer in writers:
        seen, _ = writer.communicate()
        assert writer.returncode == 0
        assert set(seen.split("\n")[:-1]) <= whole
    assert json.dumps(Store("rnn").read(KEY)) in whole
    path_of(folder)  # the only file


def test_threads_that_write_at_once_leave_whole_files(folder):
    one, wrong = Store("rnn"), []

    def use(number):
        for _ in range(40):
            one.write(KEY, [number] * 100)
            if len(set(one.read(KEY))) != 1:
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    path_of(folder)  # the only file
