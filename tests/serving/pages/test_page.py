"""The page as a client without a browser sees it: who gets it, under which headers, and that it is complete."""

import json
import re
import subprocess
from html.parser import HTMLParser

import pytest
from fastapi.testclient import TestClient

from tests.cases.tiny import TINY, write_tiny
from tests.serving.pages.conftest import STATIC
from woolly import __version__
from woolly.sampling import SamplingParams, options_of
from woolly.serving import Settings, create_app
from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.sampling_parameters import Sampling
from woolly.serving.pages.web.assets import Assets
from woolly.serving.pages.web.page import is_public

ROOT = STATIC.parents[4]
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def client(folder, **settings):
    return TestClient(create_app(Settings(models_dir=folder, **settings)), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """One for all tests: the description of its routes alone takes two seconds."""
    return client(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def assets():
    return Assets()


def test_browser_gets_the_page(web):
    reply = web.get("/", headers={"accept": BROWSER})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Woolly</title>" in reply.text


@pytest.mark.parametrize(
    "accept",
    ["application/json", "application/json, text/plain, */*", "application/json, text/html;q=0.5"],
)
def test_api_client_gets_json(web, accept):
    reply = web.get("/", headers={"accept": accept})
    assert reply.json()["name"] == "woolly"
    assert reply.json()["version"] == __version__
    assert web.get(reply.json()["docs"]).status_code == 200
    assert "Accept" in reply.headers["vary"].split(", ")


def test_page_loads_nothing_external_and_runs_no_inline_text(web, assets):
    for path in ("/", f"/web/{assets.stamp}/js/app/main.js"):
        reply = web.get(path, headers={"accept": BROWSER})
        policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["img-src"] == "'self' data:" and policy["media-src"] == "data:"
        assert "microphone=(self)" in reply.headers["permissions-policy"]
        assert policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"


def test_files_are_cached_permanently_and_the_page_is_revalidated(web, assets):
    page = web.get("/", headers={"accept": BROWSER})
    assert page.headers["cache-control"] == "no-cache"
    again = web.get("/", headers={"accept": BROWSER, "if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "immutable" in web.get(f"/web/{assets.stamp}/css/base.css").headers["cache-control"]
    assert web.get("/web/0123456789ab/css/base.css").headers["cache-control"] == "no-cache"
    assert web.head("/", headers={"accept": BROWSER}).content == b""


@pytest.mark.parametrize(
    "path", ["js/none.js", "../page.py", "..%2fpage.py", "%2e%2e/assets.py", "js/../../page.py", "index.html", ""]
)
def test_only_page_files_are_served(web, assets, path):
    assert web.get(f"/web/{assets.stamp}/{path}").status_code == 404


def test_with_keys_only_the_page_and_the_reference_are_open(tmp_path, assets):
    web = client(tmp_path, api_key=("s3cret",), model=str(write_tiny(TINY["llama"], tmp_path / "private-name.gguf")))
    files = ("/", f"/web/{assets.stamp}/js/app/main.js", "/docs", "/openapi.json")
    for path in files:
        reply = web.get(path, headers={"accept": BROWSER})
        assert reply.status_code == 200, path
        # They tell nothing of this server that a stranger may not know.
        assert not re.search("s3cret|private-name", reply.text + str(reply.headers)), path
        assert web.head(path).status_code == 200
        assert web.post(path).status_code == 401, path
    closed = ("/api/v1/models", "/v1/models", "/props", "/web", "/slots", "/metrics", "/api/v1/performance/stats")
    for path in (*closed, "/docs/", "/docs/x", "/openapi.json/", "/v1/docs"):
        assert web.get(path).status_code == 401, path


def test_reference_counts_for_the_rate_like_other_requests(tmp_path):
    web = client(tmp_path, api_key=("s3cret",), rate_limit=2)
    assert [web.get("/docs").status_code for _ in range(4)] == [200, 200, 429, 429]


def test_reference_says_how_to_send_a_key(web):
    assert "Authorization: Bearer KEY" in web.get("/docs").text


@pytest.mark.parametrize("path", ["//", "/webx/a/b", "/web/a", "/web//v1/models", "/WEB/a/b", "/web/a/b?c"])
def test_only_page_addresses_are_public(path):
    assert not is_public("GET", path)


def test_rate_limit_does_not_count_page_files(tmp_path, assets):
    web = client(tmp_path, rate_limit=2)
    for name in set(assets.files) - {"index.html"}:
        assert web.get(f"/web/{assets.stamp}/{name}").status_code == 200


def test_foreign_host_cannot_impersonate_this_server(web):
    assert web.get("/", headers={"accept": BROWSER, "host": "evil.example"}).status_code == 403


def test_without_the_page_every_client_gets_json(tmp_path, assets):
    web = client(tmp_path, webui=False)
    reply = web.get("/", headers={"accept": BROWSER})
    assert reply.json()["page"] is None
    assert web.get(f"/web/{assets.stamp}/js/app/main.js").status_code == 404


class References(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.files, self.ids, self.inline = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.files += [named[name] for name in ("src", "href") if not named.get(name, "#").startswith("#")]
        self.ids += [named["id"]] if "id" in named else []
        self.inline += [name for name in named if name == "style" or name.startswith("on")]
        self.inline += [tag] if tag == "style" or (tag == "script" and "src" not in named) else []


def test_every_file_named_by_the_page_is_served(web):
    found = References(web.get("/", headers={"accept": BROWSER}).text)
    assert found.files.count("docs") == 2 and web.get("/docs").status_code == 200
    found.files = [file for file in found.files if file != "docs"]
    # Each is named, because what a module imports is otherwise found only when that module has come.
    named = {file.split("/", 2)[2] for file in found.files} | set(_named_by_files())
    assert named | {"fonts/OFL.txt"} == set(Assets().files) - {"index.html"}  # a licence is there to be read
    for file in found.files:
        assert web.get(f"/{file}").status_code == 200, file
    assert not found.inline  # the policy would refuse it
    assert len(found.ids) == len(set(found.ids))


def _named_by_files():
    """Yields the files that style sheets and the manifest name."""
    for sheet in STATIC.rglob("*.css"):
        for name in re.findall(r'url\("(.+?)"\)', sheet.read_text()):
            yield (sheet.parent / name).resolve().relative_to(STATIC).as_posix()
    manifest = json.loads((STATIC / "manifest.webmanifest").read_text())
    yield from (icon["src"] for icon in manifest["icons"])
    assert manifest["start_url"] == manifest["scope"] == "../../"  # the page, from /web/STAMP/


def scripts():
    return sorted(STATIC.rglob("*.js"))


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.name)
def test_every_imported_module_exports_the_name(path):
    text = path.read_text()
    for names, file in re.findall(r'^import (.+?) from "(.+?)";', text, re.MULTILINE):
        other = (path.parent / file).resolve()
        assert other.is_file(), file
        for name in re.findall(r"\w+", names) if names.startswith("{") else ():
            assert re.search(
                rf"^export (async )?(const|class|function\*?) {name}\b", other.read_text(), re.MULTILINE
            ), name


def test_every_element_used_by_a_script_is_in_the_page():
    ids = set(References((STATIC / "index.html").read_text()).ids)
    for path in scripts():
        for name in re.findall(r'byId\("([\w-]+)"\)', path.read_text()):
            assert name in ids, (path.name, name)


def test_no_script_creates_markup_from_text_and_no_file_names_another_host():
    binary = (".png", ".woff2", ".txt")  # and the licence of a font
    for path in (p for p in STATIC.rglob("*") if p.is_file() and p.suffix not in binary):
        text = path.read_text()
        assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|\beval\(|new Function", text), path
        hosts = set(re.findall(r"(?:https?:)?//([a-z0-9-]+\.[a-z0-9.-]+)", text))
        assert hosts <= {"www.w3.org"}, path
        assert len(text.splitlines()) <= 400, path


def test_every_page_file_has_a_content_type(assets):
    assert set(assets.files) == {p.relative_to(STATIC).as_posix() for p in STATIC.rglob("*") if p.is_file()}


def test_wheel_contains_the_page_files():
    # All of the package that git does not ignore goes into it.
    assert 'wheel.packages = ["woolly"]' in (ROOT / "pyproject.toml").read_text()
    files = [str(path) for path in STATIC.rglob("*") if path.is_file()]
    try:
        reported = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        pytest.skip("git is missing")
    if reported.returncode == 128:
        pytest.skip("this is no clone")
    assert reported.stdout == ""


def test_every_api_sampler_is_on_the_page():
    shown = {name for name, row in options_of(SamplingParams).items() if row.group}
    # Structures have one box for all; prefixes are always reused; ids of tokens, and which probabilities are reported,
    # are for programs.
    elsewhere = {"grammar", "json_schema", "regex", "choice", "lark", "cache_prompt", "stop_token_ids"}
    elsewhere |= {"post_sampling_probs", "reasoning_budget_message"}
    assert shown == (set(Sampling.model_fields) - elsewhere) | {"max_tokens"}
    assert {*shown, "response_format", "reasoning_effort", "grammar", "regex"} <= set(ChatBody.model_fields)
