"""The identity of bits: equal where answers are, other where anything that decides a bit is."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, _native
from woolly.llm import bit_identity
from woolly.plan import Rope, rope_frequencies
from woolly.store.file_digest import digest_of


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def identity_in(path, **options):
    with LLM(path, ctx=64, threads=1, **options) as llm:
        return llm.identity()


def test_every_isa_with_fused_multiply_add_has_one_identity(tiny_model, monkeypatch):
    found = {}
    for level in _native.kernel_levels():
        monkeypatch.setenv("WOOLLY_ISA", level)
        found[level] = identity_in(tiny_model).id
    fused = {level: id for level, id in found.items() if level != "scalar"}
    assert len(set(fused.values())) <= 1, fused


def test_identity_covers_cache_and_backend_but_not_threads_and_chunks(tiny_model):
    plain = identity_in(tiny_model)
    assert identity_in(tiny_model, chunk=8) == plain
    others = [identity_in(tiny_model, kv_type="q8_0"), identity_in(tiny_model, backend="reference")]
    assert len({plain.id, *(one.id for one in others)}) == 3
    assert plain.id.startswith(f"w{bit_identity.ARITHMETIC_VERSION}-")


def test_identity_is_the_same_in_another_process_with_any_numpy(tiny_model, home):
    code = "import sys; from woolly import LLM\nwith LLM(sys.argv[1], ctx=64) as llm: print(llm.identity().id)"
    # NumPy's own kernels for this CPU off: rope tables and samplers must not show it. NumPy's own cosines would.
    core = getattr(np, "_core", None) or np.core
    env = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(core._multiarray_umath.__cpu_dispatch__)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tiny_model)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == identity_in(tiny_model).id


def test_one_changed_weight_byte_changes_the_identity_even_with_the_same_mtime(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    before, status = identity_in(path), path.stat()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert identity_in(path).model != before.model


def test_digest_is_cached_until_the_file_changes(tmp_path, home, monkeypatch):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"wool")
    first = digest_of([path])
    monkeypatch.setattr("woolly.store.file_digest.sha256_of", lambda path: pytest.fail("read again"))
    assert digest_of([path]) == first
    (note,) = (home / "digests").iterdir()
    note.write_text("{")  # a torn note is not a note
    monkeypatch.undo()
    monkeypatch.setenv("WOOLLY_HOME", str(home))
    assert digest_of([path]) == first


def test_embedding_model_has_an_identity_without_a_probe(tmp_path):
    from tests.cases.encoders import ENCODERS

    name = next(iter(ENCODERS))
    path = write_tiny(ENCODERS[name], tmp_path / "bert.gguf")
    with LLM(path, threads=1) as llm:
        assert llm.identity().probe == "" and llm.known_identity == llm.identity()


def test_rope_angles_are_correct_to_the_last_bit():
    frequencies, _ = rope_frequencies(Rope(64, 64, 10000.0, "neox"))
    tables = [np.empty((1000, 32), np.float32) for _ in range(2)]
    _native.rope_tables(np.ascontiguousarray(frequencies), np.ones(32), *tables)
    for position in (0, 1, 31, 512, 999):
        for pair in range(32):
            angle = position * frequencies[pair]
            assert tables[0][position, pair] == pytest.approx(math.cos(angle), rel=1e-7, abs=1e-12)
            assert tables[1][position, pair] == pytest.approx(math.sin(angle), rel=1e-7, abs=1e-12)
    far = [np.empty((1, 1), np.float32) for _ in range(2)]
    with pytest.raises(ValueError, match="column"):
        _native.rope_tables(np.ones(2), np.ones(2), *far)
