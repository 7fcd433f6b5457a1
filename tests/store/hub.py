"""A stand-in for the Hugging Face hub on 127.0.0.1: its API, its redirect to a content server, ranges, and faults."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "a" * 40


class Hub:
    """Repositories by name, each a dict of file names to bytes."""

    def __init__(self):
        self.repos = {}
        self.cuts = 0  # so many downloads end half-way
        self.token = None  # what repositories ask for
        self.ranges = True
        self.shift = 0  # so far behind what was asked for do parts begin
        self.changed = False  # whether the file has another tag than before
        self.log = []  # (path, Range, Authorization) of each GET
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # a client that goes away

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def sent(self, part):
        return [entry for entry in self.log if part in entry[0]]

    def answer(self, request):
        path = request.path.split("?")[0].lstrip("/")
        authorization = request.headers.get("Authorization")
        self.log.append((path, request.headers.get("Range"), authorization))
        if path.startswith("cdn/"):
            _, org, name, file = path.split("/", 3)
            self.file(request, self.repos[f"{org}/{name}"][unquote(file)])
            return
        if self.token is not None and authorization != f"Bearer {self.token}":
            self.json(request, {"error": "no"}, 401, {"X-Error-Code": "GatedRepo"})
        elif path.startswith("api/models/"):
            repo = path.removeprefix("api/models/").split("/revision/")[0]
            if repo not in self.repos:
                self.json(request, {"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                return
            siblings = [
                {
                    "rfilename": file,
                    "size": len(data),
                    "blobId": "b" * 40,
                    "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130},
                }
                for file, data in self.repos[repo].items()
            ]
            self.json(request, {"id": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
        elif f"/resolve/{COMMIT}/" in path:
            repo, file = path.split(f"/resolve/{COMMIT}/")
            request.send_response(302)
            request.send_header("Location", f"{self.url}/cdn/{repo}/{file}")
            request.send_header("Content-Length", "0")
            request.end_headers()
        else:
            self.json(request, {"error": "no such page"}, 404)

    def json(self, request, value, code=200, headers=()):
        data = json.dumps(value).encode()
        request.send_response(code)
        for name, text in dict(headers).items():
            request.send_header(name, text)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def file(self, request, data):
        wanted, tag = request.headers.get("Range"), f'"{hashlib.md5(data).hexdigest()}{self.changed}"'
        asked = request.headers.get("If-Range")
        first, last = 0, len(data) - 1
        if wanted and self.ranges and asked in (None, tag):
            start, _, stop = wanted.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(stop or last), last)
            if first >= len(data):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(data)}")
                request.send_header("Content-Length", "0")
                request.end_headers()
                return
            first += self.shift
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        else:
            request.send_response(200)
        part = data[first : last + 1]
        request.send_header("ETag", tag)
        request.send_header("Content-Length", str(len(part)))
        request.end_headers()
        if self.cuts > 0:
            self.cuts -= 1
            request.wfile.write(part[: len(part) // 2])
            request.wfile.flush()
            request.close_connection = True
            request.connection.shutdown(2)
        else:
            request.wfile.write(part)
