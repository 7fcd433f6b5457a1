"""A plugin for llama.cpp's tests: nothing is downloaded, and each case says how it ended in one line of JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from pathlib import Path

import pytest
from requests.structures import CaseInsensitiveDict

# Cases that need the network, a container or another model, or that are about what only llama-server has, by a part of
# their name.
NEEDS = {
    "presets in llama.cpp's INI files": r"remote_preset|reload_models|dedup_cache_models",
    "the words of a model that cannot be had": r"test_infill_without_input_extra|test_infill_with_input_extra",
    "tools that llama-server runs itself": r"test_tools_builtin\.py|test_mcp_servers\.py|with_tools_enabled",
    "llama-server's own page": r"static_assets",
    "llama.cpp's file of a slot": r"legacy_token_list",
    "a delay that llama-server has for its tests": r"client_disconnect_keeps_model",
    "a proxy for other servers": r"test_proxy\.py|cors_proxy",
    "lines of llama-server's log": r"test_kv_keep_only_active\.py",
    "the words of a model of images that cannot be had": r"test_vision_\w+\[.*\((cat|frog)\)\+",
    "slots that keep images": r"test_slot_save.*(mmproj|multimodal|image)",
    "files of the server's machine, which clients cannot read": r"local_media_file",
    "the vocabulary of a model that cannot be had": r"test_rerank_usage|test_slot_ctx_not_exceeded|test_with_ctx_shift",
    "the words of an adapter that cannot be had": r"test_lora\.py",
    "the words of a larger model": r"test_speculative\.py::test_multi_requests_parallel",
    "a larger model": r"real_model|test_hello_world|with_qwen_model|test_weather|test_calc_result|test_thoughts|"
    r"openai_library_stops|with_big_model|thinking_with_reasoning_model|test_completion_without_tool_call_slow|"
    r"test_load_split_model",
    "the network": r"test_mcp_proxy\b|downloaded_model|router_download|router_delete_model",
    "a container": r"runtime_header\[|docker_runtime",
}

# Images of 8 x 8 pixels, red and blue.
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR42mO4o6GBFTEMLQkAe3tLAYZNzu4AAAAASUVORK5CYII="
_OTHER = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR42mPQ0LiDFTEMLQkAIXtLAVOaztEAAAAASUVORK5CYII="

_lines = Path(os.environ["WOOLLY_LLAMA_RESULTS"]).open("a", encoding="utf-8")  # noqa: SIM115 - until the process ends

sys.modules["wget"] = types.ModuleType("wget")  # utils.py imports it to download


def pytest_collection_modifyitems(items):
    """Marks the cases that cannot run here, and keeps presets from starting a server each."""
    utils = sys.modules["utils"]
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.dict = _without_case
    for item in items:
        if hasattr(item.module, "download_file"):
            item.module.download_file = _downloaded
        if hasattr(item.module, "get_img_url"):
            item.module.get_img_url = _image
        if hasattr(item.module, "get_test_image_base64"):
            item.module.get_test_image_base64 = lambda: _PIXEL
        for reason, names in NEEDS.items():
            if re.search(names, item.nodeid):
                item.add_marker(pytest.mark.skip(reason=f"needs {reason}"))
                break


def _without_case(*given, **named):
    """Makes a dict; one of headers keeps looking names up without regard to case, which HTTP does not know."""
    if given and isinstance(given[0], CaseInsensitiveDict):
        return CaseInsensitiveDict(given[0])
    return dict(*given, **named)


def _downloaded(url, output_file_path=None):
    """Returns the local file in place of one of the network."""
    file = Path(os.environ["WOOLLY_LLAMA_TESTS"], "downloads", url.rpartition("/")[2])
    if not file.is_file():
        pytest.skip(f"needs {file.name}, which cannot be had")
    return str(file)


def _image(name):
    """Returns a made image in place of one of the network: as a data: URL, or as base64 if the tests ask for that."""
    if not name.startswith("IMG_"):
        return name
    base64 = _PIXEL if name.endswith("0") else _OTHER
    return base64 if name.startswith("IMG_BASE64_") and "URI" not in name else f"data:image/png;base64,{base64}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Writes how a case ended."""
    report = yield
    if report.when == "call" or (report.when == "setup" and not report.passed):
        reason = ""
        if report.skipped:
            reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "skipped"
        elif report.failed:
            reason = call.excinfo.exconly().replace("\n", " ")[:300]
        line = {"case": item.nodeid.replace("unit/", ""), "outcome": report.outcome, "reason": reason}
        print(json.dumps(line), file=_lines, flush=True)
    return report
