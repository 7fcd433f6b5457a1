"""Models split over several files."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.gguf.build import write_sample
from woolly.errors import GGUFError
from woolly.gguf import GGUFWriter, copy_gguf, open_gguf
from woolly.gguf.values import ValueType
from woolly.quant import GGMLType


def write_shards(
    folder: Path, count: int = 3, *, total: int | None = None, numbers: dict[int, int] | None = None
) -> list[Path]:
    """Shards of two vectors each; `numbers` lies about the split.no of some."""
    paths = []
    for i in range(count):
        writer = GGUFWriter(folder / f"model-{i + 1:05}-of-{count:05}.gguf")
        if i == 0:
            writer.add("general.architecture", "llama")
        writer.add("split.no", (numbers or {}).get(i, i), ValueType.UINT16)
        writer.add("split.count", count, ValueType.UINT16)
        writer.add("split.tensors.count", 2 * count if total is None else total, ValueType.INT32)
        for name in "ab":
            writer.add_tensor(f"blk.{i}.{name}", np.full(8, i, np.float32))
        writer.write()
        paths.append(writer.path)
    return paths


def test_first_shard_opens_all(tmp_path):
    paths = write_shards(tmp_path)
    with open_gguf(paths[0]) as file:
        assert file.paths == tuple(paths)
        assert file.path == paths[0]
        assert file.n_bytes == sum(path.stat().st_size for path in paths)
        assert list(file.tensors) == [f"blk.{i}.{name}" for i in range(3) for name in "ab"]
        assert file.tensors["blk.2.b"].path == paths[2]
        assert file.tensors["blk.2.b"].dequantize().tolist() == [2] * 8
        assert file.metadata["general.architecture"] == "llama"


def test_symlinked_shards_are_found_by_the_name_of_the_link(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "links").mkdir()
    for i, path in enumerate(write_shards(tmp_path)):
        path.rename(tmp_path / "blobs" / f"{i}")
        (tmp_path / "links" / path.name).symlink_to(tmp_path / "blobs" / f"{i}")
    assert len(open_gguf(tmp_path / "links" / "model-00001-of-00003.gguf").tensors) == 6


def test_split_into_one_is_a_plain_file(tmp_path):
    (path,) = write_shards(tmp_path, 1)
    assert len(open_gguf(path).tensors) == 2


def test_opening_a_later_shard_names_the_first(tmp_path):
    paths = write_shards(tmp_path)
    with pytest.raises(GGUFError, match=r"shard 2 of 3; open the first shard, model-00001-of-00003\.gguf"):
        open_gguf(paths[1])


def test_missing_shard_is_named(tmp_path):
    paths = write_shards(tmp_path)
    paths[1].unlink()
    with pytest.raises(GGUFError, match=r"model-00002-of-00003\.gguf: this shard .* is missing"):
        open_gguf(paths[0])


def test_misnamed_first_shard_is_rejected(tmp_path):
    path = write_shards(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(GGUFError, match=r"named NAME-00001-of-00003\.gguf"):
        open_gguf(path)


def test_shard_with_another_number_is_rejected(tmp_path):
    paths = write_shards(tmp_path, numbers={1: 2, 2: 1})
    with pytest.raises(GGUFError, match=r"00002.*expected a shard with 'split.no' = 1, found 2"):
        open_gguf(paths[0])


def test_shard_of_another_split_is_rejected(tmp_path):
    paths = write_shards(tmp_path)
    (tmp_path / "other").mkdir()
    write_shards(tmp_path / "other", 4)[1].replace(paths[1])
    with pytest.raises(GGUFError, match=r"'split.count' = 3, found 4"):
        open_gguf(paths[0])


def test_plain_file_in_place_of_a_shard_is_rejected(tmp_path):
    paths = write_shards(tmp_path)
    write_sample(paths[2])
    with pytest.raises(GGUFError, match=r"00003.*expected a shard with 'split.no' = 2, found no such key"):
        open_gguf(paths[0])


def test_duplicate_shard_is_rejected(tmp_path):
    paths = write_shards(tmp_path)
    paths[1].unlink()
    os.link(paths[0], paths[1])
    with pytest.raises(GGUFError, match="the same file as another shard"):
        open_gguf(paths[0])
    paths[1].unlink()
    paths[1].symlink_to(paths[2])
    with pytest.raises(GGUFError, match=r"expected a shard with 'split.no' = 1, found 2"):
        open_gguf(paths[0])


def test_tensor_in_two_shards_is_rejected(tmp_path):
    paths = write_shards(tmp_path, 2)
    writer = GGUFWriter(paths[1])
    writer.add("split.no", 1)
    writer.add("split.count", 2)
    writer.add_tensor("blk.0.b", np.zeros(8, np.float32))
    writer.add_tensor("blk.1.b", np.zeros(8, np.float32))
    writer.write()
    with pytest.raises(GGUFError, match=r"'blk\.0\.b' is also in .*00001"):
        open_gguf(paths[0])


def test_wrong_total_is_rejected(tmp_path):
    paths = write_shards(tmp_path, total=7)
    with pytest.raises(GGUFError, match=r"expected 7 tensors in 3 shards .*found 6"):
        open_gguf(paths[0])


@pytest.mark.parametrize("value", ["three", -1, True, 2.0, [3]])
def test_invalid_split_count_is_rejected(tmp_path, value):
    writer = GGUFWriter(tmp_path / "model-00001-of-00003.gguf")
    writer.add("split.count", value)
    writer.write()
    with pytest.raises(GGUFError, match=r"expected 'split.count' to be a count"):
        open_gguf(writer.path)


def test_tensor_count_covers_all_shards(tmp_path):
    paths = []
    for i in range(2):
        writer = GGUFWriter(tmp_path / f"model-0000{i + 1}-of-00002.gguf")
        writer.add("split.no", i)
        writer.add("split.count", 2)
        for k in range(8193):
            writer.add_raw_tensor(f"{i}.{k}", GGMLType.I8, (1,), b"\0")
        writer.write()
        paths.append(writer.path)
    with pytest.raises(GGUFError, match=r"00002.*at most 16384 tensors in all shards together, found 16386"):
        open_gguf(paths[0])


def test_opening_keeps_the_keys_of_few_shards_in_memory(tmp_path):
    def peak(count: int) -> int:
        folder = tmp_path / f"{count}"
        folder.mkdir()
        for i in range(count):
            writer = GGUFWriter(folder / f"model-{i + 1:05}-of-{count:05}.gguf")
            writer.add("split.no", i)
            writer.add("split.count", count)
            for k in range(4000):
                writer.add(f"{k}", 1)
            writer.write()
        tracemalloc.start()
        assert len(open_gguf(writer.path.with_name(f"model-00001-of-{count:05}.gguf")).paths) == count
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak(8) < 1.2 * peak(4)


def test_split_into_too_many_files_is_rejected(tmp_path):
    writer = GGUFWriter(tmp_path / "model-00001-of-01025.gguf")
    writer.add("split.count", 1025)
    writer.write()
    with pytest.raises(GGUFError, match=r"expected at most 1024 shards .*found 1025"):
        open_gguf(writer.path)


def test_huge_split_count_is_rejected_by_name(tmp_path):
    writer = GGUFWriter(tmp_path / "model-00001-of-00003.gguf")
    writer.add("split.count", 2**64 - 1)
    writer.write()
    with pytest.raises(GGUFError, match="expected it to be named"):
        open_gguf(writer.path)


def test_copying_shards_merges_them(tmp_path):
    file = open_gguf(write_shards(tmp_path)[0])
    copy_gguf(file, tmp_path / "merged.gguf")
    merged = open_gguf(tmp_path / "merged.gguf")
    assert list(merged.metadata) == ["general.architecture"]
    assert list(merged.tensors) == list(file.tensors)
    assert all((merged.tensors[name].data == tensor.data).all() for name, tensor in file.tensors.items())
