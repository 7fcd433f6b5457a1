"""Several processes share one folder of pages: no page is ever read as another, and the bound holds."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.cases.fork_server import Ready
from woolly.cache.page_folder import PageFolder, stored_pages

# Each process writes and reads pages of all, in an order of its own; the bound makes them remove each other's.
PROCESS = """
import hashlib, random, sys
from pathlib import Path
import numpy as np
from woolly.cache.page_folder import PageFolder

folder, number = Path(sys.argv[1]), int(sys.argv[2])
rng = random.Random(number)
pages, n_read = PageFolder(folder, f"identity-{number % 2}", 400_000), 0
for i in range(100):
    text = f"{number % 2} {rng.randrange(60)}"
    digest = hashlib.blake2b(text.encode(), digest_size=20).digest()
    page = np.frombuffer(digest * 500, np.uint8)
    found = pages.read("page", digest)
    if found is None:
        pages.write("page", digest, page, depth=rng.randrange(3))
    else:
        assert (found == page).all(), text
        n_read += 1
assert pages.n_damaged == 0
print(n_read)
"""


def test_four_processes_share_a_folder(tmp_path):
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    running = [Ready([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(4)]
    n_read = [int(one.communicate(timeout=60)[0]) for one in running]
    assert [one.returncode for one in running] == [0] * 4 and sum(n_read) > 0
    left = list(stored_pages(tmp_path))
    assert left and not [page.fault() for page in left if page.fault()]
    assert not list(tmp_path.rglob("*.tmp"))
    # Each process knows of the others' writes a sixteenth of the bound late.
    assert sum(page.n_bytes for page in left) < 2 * 400_000
    again = PageFolder(tmp_path, "identity-0", 400_000)
    texts = {hashlib.blake2b(f"0 {i}".encode(), digest_size=20).digest() for i in range(60)}
    for page in left:
        if page.identity == "identity-0":
            digest = bytes.fromhex(page.digest)
            assert digest in texts
            np.testing.assert_array_equal(again.read("page", digest), np.frombuffer(digest * 500, np.uint8))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes among files")
def test_fifo_in_place_of_a_page_is_a_miss(tmp_path):
    pages, digest = PageFolder(tmp_path, "identity", 400_000), bytes(20)
    page = np.frombuffer(b"page" * 100, np.uint8)
    assert pages.write("page", digest, page)
    (file,) = stored_pages(tmp_path)
    file.path.unlink()
    os.mkfifo(file.path)
    assert "is not a regular file" in next(stored_pages(tmp_path)).fault()
    assert pages.read("page", digest) is None and pages.n_damaged == 1
    assert pages.write("page", digest, page) and (pages.read("page", digest) == page).all()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from woolly.cache.page_folder import PageFolder

pages = PageFolder(Path(sys.argv[1]), "identity", 10**9)
print("ready", flush=True)
for i in range(10**6):
    pages.write("page", i.to_bytes(20, "big"), np.full(200_000, i % 251, np.uint8))
"""


def test_killed_writer_leaves_only_complete_pages(tmp_path):
    for n_before in (0, 1, 5):
        writer = Ready([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline() == "ready\n"
        n_start = len(list(stored_pages(tmp_path)))
        while len(list(stored_pages(tmp_path))) < n_start + n_before:
            assert writer.poll() is None
        writer.kill()
        writer.wait()
        writer.stdout.close()
        assert not [page.fault() for page in stored_pages(tmp_path) if page.fault()]
        pages = PageFolder(tmp_path, "identity", 10**9)
        for page in stored_pages(tmp_path):
            number = int(page.digest, 16)
            np.testing.assert_array_equal(pages.read("page", bytes.fromhex(page.digest)), number % 251)
        assert pages.n_damaged == 0
