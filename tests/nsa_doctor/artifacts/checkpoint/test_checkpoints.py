"""What is read of a checkpoint is what torch reads, whatever its dtype, strides and container."""

import zipfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._weights_only_unpickler
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import save

from nsa_doctor.artifacts.checkpoint import symbols
from nsa_doctor.artifacts.checkpoint.contents import Contents, Divided, Piece, Stored
from nsa_doctor.artifacts.checkpoint.dtypes import BYTES, decoded, elements, is_float, unfinite
from nsa_doctor.artifacts.checkpoint.fault import FaultError
from nsa_doctor.artifacts.checkpoint.limits import Deadline
from nsa_doctor.artifacts.checkpoint.open_checkpoint import open_checkpoint
from nsa_doctor.artifacts.checkpoint.scan import scan
from nsa_doctor.artifacts.checkpoint.values import CHUNK_BYTES, read_values, stretches

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")
WHOLE = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "bool")
MOST = 2**24
SAFE = {
    *("int", "float", "str", "bool", "bytes", "bytearray", "complex", "list", "dict", "tuple", "set", "frozenset"),
    *("range", "slice", "object"),
}


def contents_of(path: Path, stack: ExitStack) -> Contents:
    return open_checkpoint(str(path), stack, Deadline(30))


def differences(path: Path, expected: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are missing, or not bit for bit what they should be."""
    with ExitStack() as stack:
        found = {tensor.name: tensor for tensor in contents_of(path, stack).tensors}
        return [
            name
            for name, tensor in expected.items()
            if name not in found
            or found[name].shape != tuple(tensor.shape)
            or found[name].dtype != str(tensor.dtype).removeprefix("torch.")
            or not np.array_equal(read_values(found[name], MOST), tensor.to(torch.float64).numpy(), equal_nan=True)
        ]


def drawn(dtype: str, *shape: int) -> Tensor:
    return (torch.randn(shape) * 3).to(getattr(torch, dtype))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_a_dtype_is_read_as_torch_reads_it(dtype: str, protocol: int, tmp_path: Path) -> None:
    tensors = {"matrix": drawn(dtype, 3, 5), "number": drawn(dtype), "none": drawn(dtype, 0, 4), "row": drawn(dtype, 7)}
    torch.save(tensors, tmp_path / "x.pt", pickle_protocol=protocol)
    assert differences(tmp_path / "x.pt", tensors) == []


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_every_pattern_of_eight_bits_means_what_it_means_to_torch(dtype: str) -> None:
    patterns = torch.arange(256, dtype=torch.uint8)
    expected = patterns.view(getattr(torch, dtype)).to(torch.float64).numpy()
    values = elements(bytes(range(256)), dtype)
    assert np.array_equal(decoded(values, dtype), expected, equal_nan=True)
    assert unfinite(values, dtype).total == int((~np.isfinite(expected)).sum())


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_of_sixteen_bits_means_what_it_means_to_torch(dtype: str, is_swapped: bool) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    expected = torch.from_numpy(patterns).view(getattr(torch, dtype)).to(torch.float64).numpy()
    values = elements((patterns.byteswap() if is_swapped else patterns).tobytes(), dtype, is_swapped)
    assert np.array_equal(decoded(values, dtype), expected, equal_nan=True)
    counted = unfinite(values, dtype)
    assert (counted.num_nan, counted.num_inf, counted.num_minus_inf) == (
        int(np.isnan(expected).sum()),
        int(np.isposinf(expected).sum()),
        int(np.isneginf(expected).sum()),
    )


def test_views_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    base = torch.randn(4, 6, 5)
    tensors = {
        "whole": base,
        "turned": base.permute(2, 0, 1),
        "stepped": base[::2, 1::3],
        "far": torch.randn(5000)[::1000],
        "far_rows": torch.randn(40, 1000)[::13, ::500],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "repeated": torch.randn(1).expand(2, 3, 4),
        "overlapping": torch.randn(9).as_strided((4, 3), (2, 1)),
        "part": base[1, 2:5],
        "last": base[-1, -1, -1],
    }
    torch.save(tensors, tmp_path / "x.pt")
    assert differences(tmp_path / "x.pt", tensors) == []


@pytest.mark.parametrize("seed", range(20))
def test_stretches_hold_every_value_of_any_view(seed: int, tmp_path: Path) -> None:
    """NaN in any place of a view is found, and none that lies outside of it."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.randint(1, 6, (3,), generator=generator).tolist()
    base = torch.zeros([2 * size + 1 for size in shape])
    view = base[1 : 1 + shape[0], : 2 * shape[1] : 2, shape[2] :][..., : shape[2]]
    view = view.permute(torch.randperm(3, generator=generator).tolist())
    place = tuple(int(torch.randint(size, (1,), generator=generator)) for size in view.shape)
    base[0] = torch.nan
    torch.save({"sound": view}, tmp_path / "sound.pt")
    view[place] = torch.nan
    torch.save({"faulty": view}, tmp_path / "faulty.pt")
    with ExitStack() as stack:
        seen = [
            scan(contents_of(tmp_path / f"{name}.pt", stack), Deadline(30)).num_not_finite
            for name in ("sound", "faulty")
        ]
    assert seen == [0, 1]


def test_a_tensor_longer_than_a_chunk_is_read_to_its_end(tmp_path: Path) -> None:
    count = CHUNK_BYTES // 4 + 3
    torch.save({"long": torch.arange(count, dtype=torch.float32)}, tmp_path / "x.pt")
    with ExitStack() as stack:
        (tensor,) = contents_of(tmp_path / "x.pt", stack).tensors
        assert isinstance(tensor, Stored)
        chunks = [chunk for stretch in stretches(tensor) for chunk in stretch.chunks()]
        assert [len(chunk) for chunk in chunks] == [count - 3, 3]
        assert float(chunks[-1][-1]) == count - 1


def test_safetensors_are_read_as_their_library_wrote_them(tmp_path: Path) -> None:
    dtypes = [dtype for dtype in (*FLOATS, *WHOLE) if dtype != "float8_e4m3fnuz"]
    tensors = {dtype: drawn(dtype, 3, 4) for dtype in dtypes}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    assert differences(tmp_path / "x.safetensors", tensors) == []


def test_a_distributed_checkpoint_is_put_together_from_its_pieces(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(4, 3), "b": {"c": torch.randn(5).bfloat16()}, "n": torch.tensor(2.0)}
    with pytest.warns(UserWarning, match="single process"):
        save(tensors, checkpoint_id=tmp_path / "x", no_dist=True)
    expected = {"a": tensors["a"], "b.c": tensors["b"]["c"], "n": tensors["n"]}
    assert differences(tmp_path / "x", expected) == []


def test_a_tensor_of_several_pieces_is_put_together(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(4, 3)
    for name, part in (("top", whole[:1]), ("rest", whole[1:])):
        torch.save(part.clone(), tmp_path / f"{name}.pt")
    with ExitStack() as stack:
        opening = [lambda name=name: contents_of(tmp_path / f"{name}.pt", stack) for name in ("top", "rest")]
        pieces = (
            Piece(offsets=(0, 0), shape=(1, 3), open=opening[0]),
            Piece(offsets=(1, 0), shape=(3, 3), open=opening[1]),
        )
        tensor = Divided(name="x", dtype="float32", shape=(4, 3), pieces=pieces)
        assert np.array_equal(read_values(tensor, MOST), whole.numpy())
        with pytest.raises(FaultError, match="9 of its values are in no file"):
            read_values(Divided(name="x", dtype="float32", shape=(4, 3), pieces=pieces[:1]), MOST)


@pytest.mark.full
def test_more_entries_than_sixteen_bits_count_are_read(tmp_path: Path) -> None:
    numbers = torch.arange(66_000.0)
    path = tmp_path / "many.pt"
    torch.save([numbers[index].clone() for index in range(len(numbers))], path)
    with zipfile.ZipFile(path) as file:
        assert len(file.infolist()) > 2**16
    with ExitStack() as stack:
        tensors = contents_of(path, stack).tensors
        assert [float(read_values(tensors[index], MOST)) for index in (0, 65_999)] == [0, 65_999]


def test_a_file_of_a_machine_of_the_other_byte_order_is_read(tmp_path: Path) -> None:
    values = torch.arange(6.0).view(2, 3)
    torch.save({"w": values}, tmp_path / "little.pt")
    with zipfile.ZipFile(tmp_path / "little.pt") as source, zipfile.ZipFile(tmp_path / "big.pt", "w") as target:
        for info in source.infolist():
            content = source.read(info)
            content = b"big" if info.filename.endswith("byteorder") else content
            content = np.frombuffer(content, "<f4").byteswap().tobytes() if "/data/" in info.filename else content
            target.writestr(info.filename, content)
    assert differences(tmp_path / "big.pt", {"w": values}) == []


def test_the_list_of_names_is_that_of_torch() -> None:
    allowed = set(torch._weights_only_unpickler._get_allowed_globals())
    assert allowed == symbols.WEIGHTS_ONLY
    assert not symbols.HOLDS_DATA & allowed


def test_what_torch_allows_once_a_module_is_imported_is_on_the_list() -> None:
    late = set(torch._weights_only_unpickler._get_user_allowed_globals())
    assert late  # torch.distributed is imported here
    assert late <= symbols.IMPORTED_LATE


def test_no_name_on_the_list_leads_to_a_module_that_runs_things() -> None:
    names = symbols.WEIGHTS_ONLY | symbols.HOLDS_DATA | symbols.DISTRIBUTED_METADATA
    modules = {name.rpartition(".")[0] for name in names}
    assert not modules & {"os", "posix", "nt", "sys", "subprocess", "pkgutil", "importlib", "functools", "operator"}
    assert {name.removeprefix("builtins.") for name in names if name.startswith("builtins.")} <= SAFE


def test_every_dtype_of_torch_has_its_size() -> None:
    dtypes = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    named = {str(dtype).removeprefix("torch."): dtype for dtype in dtypes}
    assert {name: BYTES.get(name) for name in named} == {name: dtype.itemsize for name, dtype in named.items()}
    finite = {"float4_e2m1fn_x2"}  # none of its patterns is NaN or infinite
    floats = {name for name, dtype in named.items() if dtype.is_floating_point or dtype.is_complex}
    assert floats == {name for name in named if is_float(name)} | finite


def test_what_there_was_no_time_for_is_counted(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "b": torch.full((2,), torch.nan)}, tmp_path / "x.pt")
    with ExitStack() as stack:
        contents, deadline = contents_of(tmp_path / "x.pt", stack), Deadline(0)
        seen = scan(contents, deadline)
        assert (seen.num_left, seen.num_not_finite) == (2, 0)
        assert seen.unseen(deadline) == "2 of them: there was no time in 0 s; --timeout allows more"


def test_one_tensor_that_is_longer_than_the_time_is_left(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[274877906944],"data_offsets":[0,1099511627776]}}'
    with (tmp_path / "x.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**40)  # of which nothing takes room on the disk
    with ExitStack() as stack:
        contents = contents_of(tmp_path / "x.safetensors", stack)
        assert scan(contents, Deadline(0.1)).num_left == 1
