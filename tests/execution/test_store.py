"""Results on disk: whole or not there, and never in the way of a call."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

from dnnffi.errors import PerformanceWarning
from dnnffi.execution import store
from dnnffi.execution.store import Store

KEY = {"device": "some GPU", "problem": [1, 2, None], "training": False}
VALUE = {"times": {"standard": [1.5, None]}, "refused": {}}


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

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with said_once("Permission denied"):
        assert one.read(KEY) is None
        assert one.read(KEY) is None


# A folder that cannot be written


def test_a_file_in_the_place_of_the_folder_is_said_once(folder):
    folder.write_text("in the way")
    one = Store("rnn")
    with said_once("Not a directory"):
        for _ in range(3):
            assert one.read(KEY) is None
            one.write(KEY, VALUE)
    assert folder.read_text() == "in the way"


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_said_once(folder):
    folder.mkdir()
    folder.chmod(0o500)
    one = Store("rnn")
    try:
        with said_once("cannot be kept"):
            for _ in range(3):
                assert one.read(KEY) is None
                one.write(KEY, VALUE)
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize(("where", "function"), [(Path, "mkdir"), (json, "dump"), (os, "replace")])
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

    monkeypatch.setattr(json, "dump", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Store("rnn").write(KEY, VALUE)
    assert [path for path in folder.rglob("*") if path.is_file()] == []


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
    platformdirs = pytest.importorskip("platformdirs")
    if named is None:
        monkeypatch.delenv("DNNFFI_CACHE_DIR")
    else:
        monkeypatch.setenv("DNNFFI_CACHE_DIR", named)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    Store("rnn").write(KEY, VALUE)
    assert path_of(tmp_path).parent == tmp_path / "dnnffi" / "rnn"


def test_without_platformdirs_nothing_is_kept(monkeypatch):
    monkeypatch.delenv("DNNFFI_CACHE_DIR")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert store.folder() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = Store("rnn")
        one.write(KEY, VALUE)
        assert one.read(KEY) is None


# Several at once


def keep_writing(number, rounds):
    """Another process: writes and reads one key; the values that it saw."""
    one = Store("rnn")
    seen = set()
    for _ in range(rounds):
        one.write(KEY, [number] * 2000)
        seen.add(tuple(one.read(KEY)))
    return seen


def test_processes_that_write_at_once_leave_whole_files(folder):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.starmap(keep_writing, [(number, 40) for number in range(3)])
    whole = {(number,) * 2000 for number in range(3)}
    for seen in found:
        assert seen
        assert seen <= whole
    assert tuple(Store("rnn").read(KEY)) in whole
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
