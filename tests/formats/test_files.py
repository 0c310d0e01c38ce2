"""Files of weights: there and back, whole or not at all, and which files are refused."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import RNNSpec, RNNWeights, testing

SUFFIXES = (".npz", ".safetensors")
SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, bidirectional=True)


def weights_of(spec=SPEC, backend="cudnn"):
    return RNNWeights.pack(testing.weights(spec, 0), spec, backend=backend)


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path):
    if request.param == ".safetensors":
        pytest.importorskip("safetensors")
    return tmp_path / f"net{request.param}"


def safetensors_numpy():
    return pytest.importorskip("safetensors.numpy")


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(testing.specs(), st.sampled_from(["cudnn", "torch"]))
def test_there_and_back(suffix, spec, backend):
    if suffix == ".safetensors":
        safetensors_numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"net{suffix}")
        weights_of(spec, backend).save(path)
        loaded = RNNWeights.load(str(path), backend=backend)
    assert (loaded.spec, loaded.backend) == (spec, backend)
    found, expected = loaded.flat, weights_of(spec, backend).flat
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert found.flags.writeable


def test_the_names_in_a_file_are_pytorchs(path):
    weights_of().save(path)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files if "." not in name}
    else:
        found = safetensors_numpy().load_file(path)
    assert set(found) == set(weights_of().to_torch())
    np.testing.assert_array_equal(
        RNNWeights.from_torch(found, "lstm").to("cudnn").flat, weights_of().flat
    )


def test_a_file_is_replaced_whole_and_nothing_else_is_left(path):
    weights_of().save(path)
    other = RNNSpec(mode="gru", input_size=2, hidden_size=3)
    weights_of(other).save(path)
    assert RNNWeights.load(path).spec == other
    assert list(path.parent.iterdir()) == [path]


def test_the_file_of_a_link_is_replaced_and_keeps_its_permissions(path):
    weights_of().save(path)
    path.chmod(0o600)
    link = path.with_name(f"link{path.suffix}")
    link.symlink_to(path.name)
    other = weights_of(RNNSpec(mode="gru", input_size=2, hidden_size=3))
    other.save(link)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    assert RNNWeights.load(path).spec == other.spec
    assert sorted(one.name for one in path.parent.iterdir()) == sorted([path.name, link.name])


def test_a_failed_write_leaves_what_was_there(path, monkeypatch):
    weights_of().save(path)

    def fail(self, target):
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"^no space$"):
        weights_of(RNNSpec(mode="gru", input_size=2, hidden_size=3)).save(path)
    assert RNNWeights.load(path).spec == SPEC
    assert list(path.parent.iterdir()) == [path]


def test_every_truncated_file_is_refused_by_name(path):
    weights_of().save(path)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 37), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"^{path} is not a whole {path.suffix[1:]} file"):
            RNNWeights.load(path)


def test_a_flipped_bit_in_an_npz_is_noticed_or_harmless(tmp_path):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    whole, expected = path.read_bytes(), weights_of(backend="torch").flat
    refused = 0
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            found = RNNWeights.load(path).flat
        except ValueError as error:
            assert str(error).startswith(str(path))  # noqa: PT017 - either is right
            refused += 1
        else:
            np.testing.assert_array_equal(found, expected)
    assert refused > 100


def test_pickles_are_refused(tmp_path):
    path = tmp_path / "net.npz"
    np.savez(path, allow_pickle=True, weight_ih_l0=np.array([print, None], dtype=object))
    with pytest.raises(ValueError, match=rf"^{path} is not a whole npz file of plain arrays: Obj"):
        RNNWeights.load(path)


def test_a_bare_pickle_is_refused(tmp_path):
    path = tmp_path / "net.npz"
    path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ValueError, match=r"it is no zip archive$"):
        RNNWeights.load(path)


def test_a_foreign_file_is_refused_with_the_way_to_read_it(path):
    arrays = weights_of().to_torch()
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        safetensors_numpy().save_file(arrays, path)
    with pytest.raises(
        ValueError, match=rf"^{path} was not written by RNNWeights.save: .*from_tor"
    ):
        RNNWeights.load(path)


def rewritten(path, change):
    """The file with its spec, a dict, and its arrays changed in place by ``change``."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    spec = json.loads(str(arrays.pop("dnnffi.RNNSpec")))
    change(spec, arrays)
    np.savez(path, **{"dnnffi.RNNSpec": np.array(json.dumps(spec))}, **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec, arrays: spec.update(mode="x"), "mode must be one of"),
        (lambda spec, arrays: spec.update(input_size=9), "its arrays are those of .*; it says "),
        (lambda spec, arrays: spec.update(mode="gru"), "weight_ih_l0 must have 3 times 4 rows"),
        (lambda spec, arrays: spec.pop("bias"), "dnnffi.RNNSpec must have the entries bias, "),
        (lambda spec, arrays: arrays.pop("bias_ih_l1"), "state_dict: missing: bias_ih_l1$"),
        (lambda spec, arrays: arrays.update(a=np.zeros(1)), "state_dict: unexpected: a$"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, change, message):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=rf"^{path}: {message}"):
        RNNWeights.load(path)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 10_000, '"lstm"'])
def test_a_spec_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "net.npz"
    np.savez(path, **{"dnnffi.RNNSpec": np.array(text)}, **weights_of().to_torch())
    with pytest.raises(ValueError, match=rf"^{path}: dnnffi.RNNSpec (is not JSON|must have)"):
        RNNWeights.load(path)


def test_an_array_of_a_claimed_size_that_is_not_there(tmp_path):
    path = tmp_path / "net.npz"
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", header.getvalue())
    with pytest.raises(ValueError, match=rf"^{path} is not a whole npz file"):
        RNNWeights.load(path)


def test_tensors_of_another_dtype_are_refused(tmp_path):
    path = tmp_path / "net.safetensors"
    safetensors_numpy().save_file({"step": np.zeros(2, "int64")}, path)
    with pytest.raises(ValueError, match=rf"^{path} is not a whole .*: step has dtype I64$"):
        RNNWeights.load(path)


@pytest.mark.parametrize("name", ["net.pt", "net", "net.npz.gz"])
def test_the_suffix_names_the_format(tmp_path, name):
    for call in (weights_of().save, RNNWeights.load):
        with pytest.raises(ValueError, match=r"^path must end in \.npz or \.safetensors; got '"):
            call(tmp_path / name)


def test_a_path_is_text_or_a_path():
    for call in (weights_of().save, RNNWeights.load):
        with pytest.raises(TypeError, match=r"^path must be a str or a path; got int$"):
            call(3)


def test_no_file_is_said_as_python_says_it(path):
    with pytest.raises(FileNotFoundError, match=path.name):
        RNNWeights.load(path)


def test_without_safetensors_npz_still_works(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    weights_of().save(tmp_path / "net.npz")
    assert RNNWeights.load(tmp_path / "net.npz").spec == SPEC
    with pytest.raises(ImportError, match=r"pip install 'dnnffi\[weights\]'; \.npz needs NumPy"):
        weights_of().save(tmp_path / "net.safetensors")
