"""HDF5 files and archives of Keras: what is refused before data is read, and what is damaged."""

from __future__ import annotations

import io
import sys
import zipfile
from functools import partialmethod

import numpy as np
import pytest

from dnnffi import RNNSpec, RNNWeights, testing
from dnnffi.formats.hdf5 import HDF5Reader

h5py = pytest.importorskip("h5py")

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4)


def arrays():
    return RNNWeights.pack(testing.weights(SPEC, 0), SPEC).to_torch()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.h5"


def write(path, arrays, **options):
    with h5py.File(path, "w") as file:
        for name, one in arrays.items():
            file.create_dataset(name, data=one, **options)


def write_without(path, name):
    """Write the network but for one of its arrays."""
    write(path, {one: array for one, array in arrays().items() if one != name})


def test_names_of_pytorch_in_hdf5_are_read(path):
    write(path, {f"encoder/{name}": one for name, one in arrays().items()})
    found = RNNWeights.load(path)
    np.testing.assert_array_equal(found.flat, RNNWeights.from_torch(arrays()).flat)


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4"])
def test_other_dtypes_are_read(path, dtype):
    write(path, {name: one.astype(dtype) for name, one in arrays().items()})
    found = RNNWeights.load(path)
    assert found.spec.dtype == np.dtype(dtype).name
    expected = RNNWeights.from_torch(
        {n: one.astype(found.spec.dtype) for n, one in arrays().items()}
    )
    np.testing.assert_array_equal(found.flat, expected.flat)


def test_other_datasets_do_not_matter(path):
    write(path, arrays() | {"text": "a", "list": np.array([b"a"]), "x": np.zeros((), "complex64")})
    assert RNNWeights.load(path).spec == SPEC


@pytest.mark.parametrize(
    "options", [{"compression": "gzip"}, {"shuffle": True}, {"fletcher32": True}]
)
def test_filters_are_refused(path, options):
    write(path, arrays(), chunks=True, **options)
    with pytest.raises(
        ValueError, match=rf"^{path} is .*: \S+ is compressed or filtered, and noth"
    ):
        RNNWeights.load(path)


@pytest.mark.parametrize("chunks", [(16, 1024), None])
def test_data_that_is_not_in_the_file_is_refused(path, chunks):
    write_without(path, "weight_ih_l0")
    with h5py.File(path, "a") as file:
        file.create_dataset("weight_ih_l0", (16, 2**30), "f4", chunks=chunks)
    assert path.stat().st_size < 2**16
    with pytest.raises(ValueError, match=rf"^{path} is .*: weight_ih_l0 is not whole"):
        RNNWeights.load(path)


def test_an_empty_dataset_is_no_array(path):
    write_without(path, "bias_hh_l0")
    with h5py.File(path, "a") as file:
        file["bias_hh_l0"] = h5py.Empty("f4")
    with pytest.raises(ValueError, match=rf"^{path}: .*missing: bias_hh_l0"):
        RNNWeights.load(path)


OTHERS = {
    "empty": lambda file: file.create_dataset("head/a", data=h5py.Empty("f4")),
    "never written": lambda file: file.create_dataset("head/a", (2**40,), "f4"),
    "compressed": lambda file: file.create_dataset("head/a", data=np.ones(9), compression="gzip"),
    "elsewhere": lambda file: file.create_dataset(
        "head/a", (4,), "f4", external=[("a.bin", 0, 16)]
    ),
    "of a dtype that NumPy lacks": lambda file: h5py.h5d.create(
        file.create_group("head").id, b"a", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((4,))
    ),
}


@pytest.mark.parametrize("add", OTHERS.values(), ids=list(OTHERS))
def test_other_datasets_may_be_stored_in_any_way(path, add):
    write(path, arrays())
    with h5py.File(path, "a") as file:
        add(file)
    assert RNNWeights.load(path).spec == SPEC


def test_datasets_that_claim_more_than_the_file_are_refused(path, monkeypatch):
    write(path, arrays())
    monkeypatch.setattr(HDF5Reader, "__init__", partialmethod(HDF5Reader.__init__, num_bytes=9))
    with pytest.raises(ValueError, match=r"its datasets claim more bytes than the 9 of it$"):
        RNNWeights.load(path)


def test_data_in_other_files_is_refused(path):
    other = path.with_name("other.bin")
    other.write_bytes(bytes(64))
    write_without(path, "bias_ih_l0")
    with h5py.File(path, "a") as file:
        file.create_dataset("bias_ih_l0", (16,), "f4", external=[(str(other), 0, 64)])
    with pytest.raises(ValueError, match=rf"^{path} is .*: bias_ih_l0 is stored in another file$"):
        RNNWeights.load(path)


def test_virtual_datasets_are_refused(path):
    source = path.with_name("source.h5")
    write(source, {"a": np.zeros(16, "f")})
    layout = h5py.VirtualLayout((16,), "f4")
    layout[:] = h5py.VirtualSource(source, "a", shape=(16,))
    write_without(path, "bias_ih_l0")
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset("bias_ih_l0", layout)
    with pytest.raises(ValueError, match=rf"^{path} is .*: bias_ih_l0 is stored in another file$"):
        RNNWeights.load(path)


def test_links_are_not_followed(path):
    other = path.with_name("other.h5")
    write(other, arrays())
    with h5py.File(path, "w") as file:
        file["all"] = h5py.ExternalLink(str(other), "/")
        file["weight_ih_l0"] = h5py.SoftLink("/nowhere")
        file["group/itself"] = file
    with pytest.raises(ValueError, match=rf"^{path}: no weights of an RNN .*; its names are none$"):
        RNNWeights.load(path)


def test_no_attribute_that_is_an_array_is_read(path):
    write(path, {"lstm/kernel:0": np.zeros((3, 16)), "lstm/recurrent_kernel:0": np.zeros((4, 16))})
    with h5py.File(path, "a") as file:
        file.attrs["keras_version"] = ["2.1.5"]
    assert RNNWeights.load(path).spec.hidden_size == 4


@pytest.mark.parametrize("text", ["{", "[" * 10_000, '{"a": 1, "a": 2}'])
def test_a_config_that_is_not_json_is_refused(path, text):
    write(path, arrays())
    with h5py.File(path, "a") as file:
        file.attrs["model_config"] = text
    with pytest.raises(ValueError, match=rf"^{path} is not a readable h5 file"):
        RNNWeights.load(path)


@pytest.mark.parametrize("text", ["[]", "3", '{"config": {"layers": [3, {}, {"config": 3}]}}'])
def test_a_config_without_layers_says_nothing(path, text):
    write(path, arrays())
    with h5py.File(path, "a") as file:
        file.attrs["model_config"] = text
    assert RNNWeights.load(path).spec == SPEC


def test_truncated_files_are_refused_by_name(path):
    write(path, arrays())
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 97), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"^{path} is not a readable h5 file"):
            RNNWeights.load(path)


def archive_with(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def hdf5_bytes():
    file = io.BytesIO()
    write(file, {f"layers/net/{name}": one for name, one in arrays().items()})
    return file.getvalue()


def test_an_archive_of_keras_needs_its_weights_only(tmp_path):
    path = tmp_path / "net.keras"
    archive_with(path, {"model.weights.h5": hdf5_bytes()})
    assert RNNWeights.load(path).spec == SPEC


def test_an_archive_without_weights_is_refused(tmp_path):
    path = tmp_path / "net.keras"
    archive_with(path, {"config.json": "{}"})
    with pytest.raises(ValueError, match=rf"^{path} is .*: it has no member model.weights.h5$"):
        RNNWeights.load(path)


def test_a_compressed_archive_is_refused(tmp_path):
    path = tmp_path / "net.keras"
    archive_with(path, {"model.weights.h5": hdf5_bytes()}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=rf"^{path} is .*: model.weights.h5 is compressed, and"):
        RNNWeights.load(path)


@pytest.mark.parametrize("suffix", [".h5", ".hdf5", ".keras"])
def test_another_file_of_this_suffix_is_refused(tmp_path, suffix):
    path = tmp_path / f"net{suffix}"
    path.write_bytes(b"something else")
    with pytest.raises(
        ValueError, match=rf"^{path} is not a readable {suffix[1:]} file of plain arr"
    ):
        RNNWeights.load(path)


@pytest.mark.parametrize("suffix", [".h5", ".keras"])
def test_without_h5py_the_message_says_what_to_install(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"net{suffix}"
    path.write_bytes(hdf5_bytes())
    if suffix == ".keras":
        archive_with(path, {"model.weights.h5": hdf5_bytes()})
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        ImportError, match=r"\.keras needs the package h5py\. Install: pip install h5"
    ):
        RNNWeights.load(path)
