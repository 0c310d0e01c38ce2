"""Files of weights: there and back, whole or not at all, and which files are refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import traceback
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import bounded
import irregular
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import RNNSpec, RNNWeights, testing
from dnnffi.formats import safetensors
from dnnffi.installing import install_extra

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

    def fail(part, target):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=r"^no space$"):
        weights_of(RNNSpec(mode="gru", input_size=2, hidden_size=3)).save(path)
    assert RNNWeights.load(path).spec == SPEC
    assert list(path.parent.iterdir()) == [path]


def test_every_truncated_file_is_refused_by_name(path):
    weights_of().save(path)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 37), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"^{path} is not a readable {path.suffix[1:]} file"):
            RNNWeights.load(path)


def test_a_flipped_bit_in_an_npz_is_noticed_or_harmless(tmp_path):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    whole, expected = path.read_bytes(), weights_of().flat
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
    message = rf"^{path} is not a readable npz file of plain arrays: \S+ has Python objects, not n"
    with pytest.raises(ValueError, match=message):
        RNNWeights.load(path)


def test_a_bare_pickle_is_refused(tmp_path):
    path = tmp_path / "net.npz"
    path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ValueError, match=r"it is no zip archive$"):
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
        (lambda spec, arrays: arrays.pop("bias_ih_l1"), "missing: bias_ih_l1$"),
        (lambda spec, arrays: arrays.update(a=np.zeros(1)), "unexpected: a$"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, change, message):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=rf"^{path}: {message}"):
        RNNWeights.load(path)


def test_a_mode_that_a_saved_file_contradicts_is_refused(path):
    weights_of().save(path)
    assert RNNWeights.load(path, "lstm").spec == SPEC
    with pytest.raises(
        ValueError, match=rf"^{path}: mode is 'gru'; the file has weights of 'lstm'$"
    ):
        RNNWeights.load(path, "gru")


def test_a_saved_file_has_one_network(path):
    weights_of().save(path)
    with pytest.raises(ValueError, match=rf"^{path}: no network with prefix 'x'; pass prefix=''$"):
        RNNWeights.load(path, prefix="x")


@pytest.mark.parametrize("prefix", ["encoder.", "net/"])
def test_files_of_other_programs_are_read(path, prefix):
    arrays = {prefix + name: one for name, one in weights_of().to_torch().items()}
    arrays |= {f"{prefix}steps.count": np.ones(3, "int64"), "head.weight": np.ones((2, 8), "f")}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        safetensors_numpy().save_file(arrays, path)
    loaded = RNNWeights.load(path)
    assert loaded.spec == SPEC
    np.testing.assert_array_equal(loaded.flat, weights_of().flat)


def test_only_the_arrays_of_the_network_are_read(path):
    arrays = {f"net.{name}": one for name, one in weights_of().to_torch().items()}
    arrays["other.weight"] = np.zeros(LARGE, "f")
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        safetensors_numpy().save_file(arrays, path)
    with little_memory():
        assert RNNWeights.load(path).spec == SPEC


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
    with pytest.raises(ValueError, match=rf"^{path} is not a readable npz file"):
        RNNWeights.load(path)


def test_weights_of_another_dtype_are_refused(tmp_path):
    path = tmp_path / "net.safetensors"
    arrays = {name: array.astype("int64") for name, array in weights_of().to_torch().items()}
    safetensors_numpy().save_file(arrays, path)
    with pytest.raises(ValueError, match=rf"^{path}: weight_ih_l0 must have .*; got int64$"):
        RNNWeights.load(path)


def header_of(arrays):
    """The entries of a header of safetensors, for arrays one after the other."""
    end, entries = 0, {}
    for name, (dtype, shape, num_bytes) in arrays.items():
        entries[name] = tensor(end, end + num_bytes, dtype=dtype, shape=shape)
        end += num_bytes
    return entries


WEIGHTS = {"weight_ih_l0": ("F32", [12, 3], 144), "weight_hh_l0": ("F32", [12, 4], 192)}


def test_an_empty_tensor_may_stand_after_the_one_behind_it(tmp_path):
    path = tmp_path / "net.safetensors"
    header = header_of(WEIGHTS) | {"zz.zz": tensor(0, 0, shape=[0])}
    path.write_bytes(safetensors_bytes(header, bytes(336)))
    assert RNNWeights.load(path).spec.mode == "gru"


@pytest.mark.parametrize("dtype", ["F8_E8M0", "F8_E4M3FNUZ", "F4", "F6_E2M3", "F7"])
def test_other_tensors_may_have_dtypes_that_numpy_lacks(tmp_path, dtype):
    path = tmp_path / "net.safetensors"
    header = header_of(WEIGHTS | {"head.scale": (dtype, [16], 8)})
    path.write_bytes(safetensors_bytes(header, bytes(344)))
    assert RNNWeights.load(path).spec.mode == "gru"


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F4", "F7"])
def test_weights_of_a_dtype_that_numpy_lacks_are_refused_by_its_name(tmp_path, dtype):
    path = tmp_path / "net.safetensors"
    header = header_of(WEIGHTS | {"weight_ih_l0": (dtype, [12, 3], 18)})
    path.write_bytes(safetensors_bytes(header, bytes(210)))
    with pytest.raises(ValueError, match=rf"^{path}: weight_ih_l0 must have .*; got {dtype}$"):
        RNNWeights.load(path)


def test_other_tensors_of_bfloat16_do_not_need_ml_dtypes(tmp_path, monkeypatch):
    path = tmp_path / "net.safetensors"
    header = header_of(WEIGHTS | {"head.scale": ("BF16", [4], 8)})
    path.write_bytes(safetensors_bytes(header, bytes(344)))
    monkeypatch.setattr(safetensors, "dtype_object", {"float32": np.dtype("float32")}.__getitem__)
    assert RNNWeights.load(path).spec.mode == "gru"


@pytest.mark.parametrize("name", ["net.pt", "net", "net.npz.gz"])
def test_the_suffix_of_a_saved_file_is_npz_or_safetensors(tmp_path, name):
    with pytest.raises(ValueError, match=r"^path must end in \.npz or \.safetensors; got '"):
        weights_of().save(tmp_path / name)


@pytest.mark.parametrize("name", ["net.bin", "net", "net.npz.gz"])
def test_the_suffix_names_the_format(tmp_path, name):
    message = r"^path must end in \.npz, \.safetensors, \.pt, \.pth, \.h5, \.hdf5 or \.keras; got '"
    with pytest.raises(ValueError, match=message):
        RNNWeights.load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("model.onnx", "RNNWeights.all_from_onnx reads ONNX models"),
        ("model.jit", "If you trust it, pass torch.jit.load(path).state_dict() to RNNWeights.from"),
    ],
)
def test_a_file_that_another_method_reads_is_named(name, advice):
    with pytest.raises(ValueError, match=rf"{name}'\. {re.escape(advice)}"):
        RNNWeights.load(name)


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
    with pytest.raises(
        ImportError, match=re.escape(f"{install_extra('weights')}; .npz needs NumPy")
    ):
        weights_of().save(tmp_path / "net.safetensors")


def test_safetensors_are_read_without_their_package(tmp_path, monkeypatch):
    safetensors_numpy()
    weights_of().save(tmp_path / "net.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    loaded = RNNWeights.load(tmp_path / "net.safetensors", backend="cudnn")
    np.testing.assert_array_equal(loaded.flat, weights_of().flat)


# Paths that are not regular files

LOAD = """
import sys
import dnnffi
for load in (dnnffi.RNNWeights.load, dnnffi.load_rnn):
    try:
        load(sys.argv[1])
    except OSError as error:
        print(error)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["folder", "FIFO", "character device"])
def test_only_regular_files_are_loaded_and_replaced(tmp_path, suffix, kind):
    path = tmp_path / f"net{suffix}"
    irregular.make(path, kind)
    before = os.lstat(path).st_ino
    message = f"is not a regular file but a {kind}: "
    told = bounded.run(LOAD, path).splitlines()
    assert len(told) == 2
    assert all(line.endswith(f"{message}'{path}'") for line in told)
    if suffix == ".safetensors":
        safetensors_numpy()
    with pytest.raises(OSError, match=message):
        weights_of().save(path)
    assert os.lstat(path).st_ino == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_device_that_never_ends_is_not_loaded(tmp_path, suffix):
    path = tmp_path / f"net{suffix}"
    path.symlink_to("/dev/zero")
    told = bounded.run(LOAD, path).splitlines()
    assert told == 2 * [f"[Errno 22] is not a regular file but a character device: '{path}'"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".h5", ".hdf5", ".keras"])
@pytest.mark.parametrize("kind", ["folder", "FIFO", "character device"])
def test_only_regular_files_of_other_programs_are_loaded(tmp_path, suffix, kind):
    path = tmp_path / f"net{suffix}"
    irregular.make(path, kind)
    told = bounded.run(LOAD, path).splitlines()
    assert len(told) == 2
    assert all(line.endswith(f"is not a regular file but a {kind}: '{path}'") for line in told)


# Files that claim more than they are


@contextlib.contextmanager
def little_memory():
    """Fail if more memory is allocated than a small part of what the files here claim."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


LARGE = 2**24
"""Elements: 64 MiB of float32."""


def spec_text(spec):
    """The spec as `save` writes it."""
    names = ("mode", "input_size", "hidden_size", "num_layers", "bidirectional", "bias")
    return json.dumps({name: getattr(spec, name) for name in (*names, "proj_size", "dtype")})


LARGE_SPEC = RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=4096, bias=False)


@pytest.mark.parametrize(
    "arrays",
    [
        {"weight_ih_l0": np.zeros((4096, 1), "f"), "weight_hh_l0": np.zeros((4096, 4096), "f")},
        {"other": np.zeros(LARGE, "f")},
    ],
    ids=["weights", "other"],
)
def test_compressed_members_are_never_expanded(tmp_path, arrays):
    path = tmp_path / "net.npz"
    np.savez_compressed(path, **{"dnnffi.RNNSpec": np.array(spec_text(LARGE_SPEC))}, **arrays)
    assert path.stat().st_size < 2**17
    with little_memory(), pytest.raises(ValueError, match=rf"^{path} .*: \S+ is compressed, and"):
        RNNWeights.load(path)


def overlapping(path, spec):
    """Write an npz whose weights, all of one shape, overlap: each begins within the one before."""
    shape = (spec.hidden_size, spec.hidden_size)
    header = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    header, count = header.getvalue(), 4 * shape[0] * shape[1]
    names = [
        f"weight_{kind}_l{layer}.npy" for layer in range(spec.num_layers) for kind in ("ih", "hh")
    ]
    np.savez(path, **{"dnnffi.RNNSpec": np.array(spec_text(spec))})
    with zipfile.ZipFile(path, "a") as archive:
        begin = archive.start_dir
        infos = [zipfile.ZipInfo(name) for name in names]
        content = b"\0" * count
        for info in reversed(infos):
            content = header + content
            info.file_size = info.compress_size = len(header) + count
            info.CRC = zlib.crc32(content[: info.file_size])
            content = info.FileHeader() + content
        for info in infos:
            info.header_offset = begin + content.index(info.FileHeader())
        archive.fp.seek(begin)
        archive.fp.write(content)
        archive.start_dir = archive.fp.tell()
        archive.filelist += infos
        archive.NameToInfo |= dict(zip(names, infos, strict=True))
        archive._didModify = True


def test_members_that_overlap_are_refused_before_they_are_read(tmp_path):
    spec = RNNSpec(mode="rnn_tanh", input_size=256, hidden_size=256, num_layers=20, bias=False)
    path = tmp_path / "net.npz"
    overlapping(path, spec)
    assert path.stat().st_size < 2**19
    with little_memory(), pytest.raises(ValueError, match=rf"^{path} .* members claim more bytes"):
        RNNWeights.load(path)


def test_no_data_is_read_before_shapes_are_compared_with_the_spec(path):
    arrays = weights_of().to_torch() | {"weight_hh_l0": np.zeros((16, LARGE // 16), "f")}
    if path.suffix == ".npz":
        np.savez(path, **{"dnnffi.RNNSpec": np.array(spec_text(SPEC))}, **arrays)
    else:
        metadata = {"dnnffi.RNNSpec": spec_text(SPEC)}
        safetensors_numpy().save_file(arrays, path, metadata=metadata)
    with little_memory(), pytest.raises(ValueError, match=rf"^{path}: weight_ih_l0 must have "):
        RNNWeights.load(path)


@pytest.mark.parametrize("length", [2**63 - 1, 2**40, 200_000_000])
def test_a_header_of_safetensors_that_is_longer_than_the_file(tmp_path, length):
    path = tmp_path / "net.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with (
        little_memory(),
        pytest.raises(
            ValueError,
            match=rf"^{path} is not a readable safetensors .*: its header has {length:,} bytes",
        ),
    ):
        RNNWeights.load(path)


def safetensors_bytes(header, data=b""):
    text = header if isinstance(header, str) else json.dumps(header)
    return len(text).to_bytes(8, "little") + text.encode() + data


def tensor(begin=0, end=8, **changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [begin, end]} | changes


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": tensor(4, 12)}, "a begins at byte 4 instead of 0"),
        ({"a": tensor(), "b": tensor(4, 12)}, "b begins at byte 4 instead of 8"),
        ({"a": tensor(), "b": tensor()}, "begins at byte 0 instead of 8"),
        ({"a": tensor()}, "its tensors have 8 bytes, its data 12"),
        ({"a": tensor(end=12)}, "a has 12 bytes; F32 of shape .2. has 8"),
        ({"a": tensor(8, 0)}, "a has shape .2. and data_offsets .8, 0."),
        ({"a": tensor(shape=[-2])}, "a has shape .-2."),
        ({"a": tensor(shape=[2.0])}, "a has shape .2.0."),
        ({"a": tensor(shape=[True, 2])}, "a has shape .True, 2."),
        ({"a": tensor(shape=[2**62, 2**62])}, "a has 8 bytes; F32 of shape "),
        ({"a": tensor(dtype=["F32"])}, "a has dtype "),
        ({"a": tensor(8, 0, dtype="F4")}, "a has shape .2. and data_offsets .8, 0."),
        ({"a": tensor(shape=[1] * 65)}, "a has shape .1, .* and data_offsets .0, 8."),
        ({"a": tensor(data_offsets=[0])}, "a has shape .2. and data_offsets .0."),
        ({"a": tensor(strides=[1])}, "the header of a must have dtype, shape and data_offsets"),
        ({"a": 1}, "the header of a must have dtype, shape and data_offsets"),
        ([], "its header is not a JSON object"),
        ({"__metadata__": 1}, "its tensors have 0 bytes, its data 12"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_header_of_safetensors_that_does_not_describe_the_data(tmp_path, header, message):
    path = tmp_path / "net.safetensors"
    path.write_bytes(safetensors_bytes(header, bytes(12)))
    with pytest.raises(ValueError, match=rf"^{path} is not a readable safetensors .*: .*{message}"):
        RNNWeights.load(path)


@pytest.mark.parametrize(
    "header",
    [
        {"a" * 10**6: tensor(4, 12)},
        {"a" * 10**6: 1},
        {"a": tensor(shape=[2] * 10**5)},
        {"a": tensor(dtype=["F32"] * 10**5)},
    ],
)
def test_a_message_about_a_long_header_of_safetensors_is_short(tmp_path, header):
    path = tmp_path / "net.safetensors"
    path.write_bytes(safetensors_bytes(header, bytes(12)))
    with pytest.raises(ValueError, match=re.escape(str(path))) as raised:
        RNNWeights.load(path)
    assert len(str(raised.value)) < 4_000


@pytest.mark.parametrize("metadata", [[], {"dnnffi.RNNSpec": {}}])
def test_metadata_of_safetensors_that_are_no_texts(tmp_path, metadata):
    path = tmp_path / "net.safetensors"
    path.write_bytes(safetensors_bytes({"__metadata__": metadata}))
    with pytest.raises(ValueError, match=rf"^{path} is not a readable safetensors file"):
        RNNWeights.load(path)


def test_a_flipped_bit_in_a_header_of_safetensors_is_refused_or_harmless(tmp_path):
    safetensors_numpy()
    path = tmp_path / "net.safetensors"
    weights_of().save(path)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, 8 + int.from_bytes(whole[:8], "little"), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
        try:
            found = RNNWeights.load(path)
        except ValueError as error:
            assert str(error).startswith(str(path))  # noqa: PT017 - either is right
            refused += 1
        else:
            assert found.spec == SPEC
    assert refused > 200


def test_a_message_about_a_long_name_in_an_npz_is_short(tmp_path):
    path = tmp_path / "net.npz"
    np.savez_compressed(path, **{"w" * 60_000: np.zeros(100)})
    with pytest.raises(ValueError, match="is compressed") as raised:
        RNNWeights.load(path)
    assert len(str(raised.value)) < 4_000


# One name twice: readers differ in which of the two they take


def test_two_members_of_one_name_are_refused(tmp_path):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    with np.load(path, allow_pickle=False) as file:
        other = file["weight_ih_l0"] + 1
    with (
        zipfile.ZipFile(path, "a") as file,
        pytest.warns(UserWarning, match="Duplicate name"),
        file.open("weight_ih_l0.npy", "w") as member,
    ):
        np.lib.format.write_array(member, other)
    with pytest.raises(
        ValueError,
        match=rf"^{path} is not a readable npz .*: it has 2 members of the name weight_ih_l0",
    ):
        RNNWeights.load(path)


def test_a_member_without_a_suffix_is_refused(tmp_path):
    # NumPy would know "a" and "a.npy" by the same name.
    path = tmp_path / "net.npz"
    weights_of().save(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("weight_ih_l0", b"")
    with pytest.raises(ValueError, match=rf"^{path} is .*: its member weight_ih_l0 is not an arr"):
        RNNWeights.load(path)


def test_two_tensors_of_one_name_are_refused(tmp_path):
    safetensors_numpy()
    path = tmp_path / "net.safetensors"
    weights_of().save(path)
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:begin])
    entry = json.dumps(header["bias_hh_l0"])
    text = f'{{"bias_hh_l0": {entry}, {json.dumps(header)[1:]}'
    path.write_bytes(safetensors_bytes(text, whole[begin:]))
    with pytest.raises(
        ValueError, match=rf"^{path} is not a readable .*: the name 'bias_hh_l0' occurs twice"
    ):
        RNNWeights.load(path)


@pytest.mark.parametrize("name", ["mode", "dtype", "hidden_size"])
def test_a_spec_that_says_something_twice_is_refused(path, name):
    entries = json.loads(spec_text(SPEC))
    text = f'{{"{name}": {json.dumps(entries[name])}, {json.dumps(entries)[1:]}'
    arrays = weights_of().to_torch()
    if path.suffix == ".npz":
        np.savez(path, **{"dnnffi.RNNSpec": np.array(text)}, **arrays)
    else:
        safetensors_numpy().save_file(arrays, path, metadata={"dnnffi.RNNSpec": text})
    with pytest.raises(
        ValueError, match=rf"^{path}: dnnffi.RNNSpec is not JSON: the name '{name}' occurs twice"
    ):
        RNNWeights.load(path)


# Other members of an npz


@pytest.mark.parametrize("change", ["long header", "objects", "object spec", "version 3"])
def test_no_error_recommends_unpickling(tmp_path, change):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    objects = np.array([print, None], dtype=object)
    if change == "long header":
        arrays["a"] = np.zeros(1, [(f"field {number}", "f4") for number in range(600)])
    elif change == "version 3":
        arrays["a"] = np.zeros(1, [("\N{GREEK SMALL LETTER ALPHA}", "f4")])
    else:
        arrays["a" if change == "objects" else "dnnffi.RNNSpec"] = objects
    with contextlib.ExitStack() as stack:
        if change == "version 3":
            stack.enter_context(pytest.warns(UserWarning, match="NumPy"))
        np.savez(path, allow_pickle=True, **arrays)
    with pytest.raises(ValueError, match=rf"^{path} is not a readable npz file") as caught:
        RNNWeights.load(path)
    assert "pickle" not in "".join(traceback.format_exception(caught.value))
    reason = "has Python objects" if "object" in change else "the header of a.npy is not that of an"
    assert reason in str(caught.value)


def with_header(path, shape, content):
    """Add a member ``a`` whose header says ``shape``."""
    file = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.npy", file.getvalue() + content)


@pytest.mark.parametrize("shape", [(-4,), (-2, -2), (2**40, 2**40), (4.0,), (True, 4)])
def test_a_shape_that_no_array_has_is_refused(tmp_path, shape):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    with_header(path, shape, bytes(16))
    with pytest.raises(ValueError, match=rf"^{path}(: unexpected: a$| is not a readable)"):
        RNNWeights.load(path)


def test_an_encrypted_member_is_refused(tmp_path):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.infolist()[3].flag_bits |= 1
        archive._didModify = True
    with pytest.raises(ValueError, match=rf"^{path} is not a readable npz file .*: .*encrypted"):
        RNNWeights.load(path)


def test_arrays_in_other_orders_of_memory_and_bytes_are_read(tmp_path):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    rewritten(
        path,
        lambda spec, arrays: arrays.update(
            {name: np.asfortranarray(array).astype(">f4") for name, array in arrays.items()}
        ),
    )
    np.testing.assert_array_equal(RNNWeights.load(path, backend="cudnn").flat, weights_of().flat)


@pytest.mark.parametrize("text", [np.array(1.0), np.array(["{}"]), np.array("{" + " " * 2**14)])
def test_a_spec_that_is_no_short_text_is_refused(tmp_path, text):
    path = tmp_path / "net.npz"
    np.savez(path, **{"dnnffi.RNNSpec": text}, **weights_of().to_torch())
    with pytest.raises(ValueError, match=rf"^{path} is .*: dnnffi.RNNSpec is not a text of at mo"):
        RNNWeights.load(path)


def test_an_array_of_another_size_than_its_header_says_is_refused(tmp_path):
    path = tmp_path / "net.npz"
    weights_of().save(path)
    with_header(path, (3,), bytes(16))
    with pytest.raises(ValueError, match=rf"^{path} is .*: a.npy has 144 bytes; its header descr"):
        RNNWeights.load(path)


# Writing


@pytest.mark.parametrize("length", [230, 250, 255])
def test_a_file_may_have_a_long_name(path, length):
    path = path.with_name("n" * (length - len(path.suffix)) + path.suffix)
    weights_of().save(path)
    assert RNNWeights.load(path).spec == SPEC
    assert list(path.parent.iterdir()) == [path]


KILLED = """
import os, signal, sys
import numpy as np
import dnnffi
end = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
os.replace = os.rename = end
spec = dnnffi.RNNSpec(mode="gru", input_size=2, hidden_size=3)
dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).save(sys.argv[1])
"""


def test_what_a_killed_save_left_is_removed_by_a_later_one(path):
    with pytest.raises(AssertionError):
        bounded.run(KILLED, path)
    (left,) = path.parent.iterdir()
    then = left.stat().st_mtime - 2 * 3600
    os.utime(left, (then, then))
    weights_of().save(path)
    assert list(path.parent.iterdir()) == [path]
