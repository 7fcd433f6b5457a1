"""The archive of kernels: what is damaged, missing or of other sources is one sentence."""

import json
import lzma
import zlib

import pytest

from woolly.errors import DeviceError
from woolly.runtime.vulkan import kernel_archive
from woolly.runtime.vulkan.kernel_archive import SpirvArchive


def test_missing_or_damaged_archive_gives_a_one_line_error(tmp_path):
    with pytest.raises(DeviceError, match="has no Vulkan kernels: in the clone `pip install slangpy`"):
        SpirvArchive(tmp_path / "kernels.bin")
    for data in (b"", b"woollyv1\xff\xff\0\0{}", b"else" * 9):
        (tmp_path / "kernels.bin").write_bytes(data)
        with pytest.raises(DeviceError, match="is damaged: install Woolly again"):
            SpirvArchive(tmp_path / "kernels.bin")


def test_damaged_pack_gives_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_archive, "_SOURCES", tmp_path)
    pack = lzma.compress(b"code" * 9)
    path = tmp_path / "kernels.bin"
    whole, damaged = {"good": [0, 36]}, {"far": [30, 36], "before": [-4, 4], "odd": "a", "none": None, "empty": [0, 0]}
    for kernels, packed in ((whole, pack[:20] + b"\0" * 8 + pack[28:]), (whole, pack[:-4]), (damaged, pack)):
        one = {"at": 0, "bytes": len(packed), "kernels": kernels}
        index = json.dumps({"sources": "", "weights": {}, "variants": {"plain": one}}).encode()
        path.write_bytes(b"woollyv1" + len(index).to_bytes(4, "little") + index + packed)
        for name in kernels:
            with pytest.raises(DeviceError, match="is damaged: install Woolly again"):
                SpirvArchive(path).kernel("plain", name)


@pytest.mark.parametrize(("length", "is_opened"), [("Infinity", False), (str(2**70), True)])
def test_impossible_length_gives_a_one_line_error(length, is_opened, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_archive, "_SOURCES", tmp_path)
    path, pack = tmp_path / "kernels.bin", lzma.compress(b"code" * 9)
    one = {"at": 0, "bytes": len(pack), "kernels": {"good": [0, 36]}, "length": 0, "check": 0}
    text = json.dumps({"sources": "", "weights": {}, "variants": {"plain": one}})
    index = text.replace('"length": 0', f'"length": {length}').encode()
    path.write_bytes(b"woollyv1" + len(index).to_bytes(4, "little") + index + pack)
    found = SpirvArchive(path) if is_opened else None
    with pytest.raises(DeviceError, match="is damaged: install Woolly again"):
        (found or SpirvArchive(path)).kernel("plain", "good")


def test_variants_share_a_pack_and_only_the_first_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_archive, "_SOURCES", tmp_path)
    path, pack = tmp_path / "kernels.bin", lzma.compress(b"code" * 9 + b"more")
    for check in (zlib.crc32(b"code" * 9), 0):
        one = {"at": 0, "bytes": len(pack), "kernels": {"good": [32, 4]}, "length": 36, "check": check}
        two = {"at": 0, "bytes": len(pack), "kernels": {"good": [36, 4]}}
        index = json.dumps({"sources": "", "weights": {}, "variants": {"plain": one, "double": two}}).encode()
        path.write_bytes(b"woollyv1" + len(index).to_bytes(4, "little") + index + pack)
        assert SpirvArchive(path).kernel("double", "good") == b"more"
        if check:
            assert SpirvArchive(path).kernel("plain", "good") == b"code"
    with pytest.raises(DeviceError, match="is damaged: install Woolly again"):
        SpirvArchive(path).kernel("plain", "good")


def test_archive_of_other_sources_is_rejected_with_the_command(tmp_path, monkeypatch):
    index = b'{"sources": "old", "weights": {}, "variants": {}}'
    path = tmp_path / "kernels.bin"
    path.write_bytes(b"woollyv1" + len(index).to_bytes(4, "little") + index)
    with pytest.raises(DeviceError, match=r"of other sources than .*: .*`python native/gpu/compile.py`") as caught:
        SpirvArchive(path)
    assert caught.value.code == "no_kernels"
    monkeypatch.setattr(kernel_archive, "_SOURCES", tmp_path)  # an installation has no sources
    assert SpirvArchive(path).sources == "old"
