"""A stand-in for the hub, on loopback: the routes `calla pull` asks for, and every misbehaviour its tests want.

One Hub listens on two ports: the hub itself, and the store that large files are redirected to. What it is to do wrong is set on its
fields before a pull; what it was asked is in `seen`, a list of Request. Files are served by commit, like the real one.
"""
import hashlib
import http.server
import json
import random
import socket
import threading
import time
import urllib.parse
from dataclasses import dataclass, field

COMMIT = "38740b847e4cb78f352aba30aa41c76e08e6eb46"


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Request:
    port: str  # "hub" or "store"
    path: str
    headers: dict
    status: int = 0
    sent: int = 0


@dataclass
class File:
    data: bytes
    large: bool = False  # by LFS: hashed with SHA-256, redirected to the store
    blob: str = ""
    size: int = -1

    def __post_init__(self):
        self.blob = self.blob or (hashlib.sha256(self.data).hexdigest() if self.large else git_hash(self.data))
        self.size = len(self.data) if self.size < 0 else self.size


@dataclass
class Hub:
    files: dict  # name -> File
    repo: str = "org/name"
    more_repos: tuple = ()     # that hold the same files
    commit: str = COMMIT
    branches: dict = field(default_factory=lambda: {"main": COMMIT})
    token: str = ""            # asked for when set
    # ---- misbehaviour ----
    cut_after: object = None   # callable(request number) -> bytes after which the connection is cut, or None
    ignore_range: bool = False
    wrong_range: bool = False  # 206 with another part than asked for
    rate: int = 0              # bytes a second
    refuse: list = field(default_factory=list)  # (where, status, headers, body) taken by the next matching requests
    redirects: object = None   # callable(name) -> Location, over the store's own
    no_length: bool = False    # no Content-Length: the end of the connection is the end of the file
    serve: dict = field(default_factory=dict)   # name -> bytes sent instead of the file's
    serve_once: dict = field(default_factory=dict)
    words: dict = field(default_factory=dict)   # headers over those of resolve answers
    listing: object = None     # callable(list) -> what to send as the tree
    tree_body: bytes = None
    page_size: int = 0
    hang: bool = False
    chatty: bool = True        # X-Linked-* and X-Repo-Commit are sent

    def __post_init__(self):
        self.seen, self.lock, self.random = [], threading.Lock(), random.Random(5)
        self.on_request = None
        self.servers = {}
        for port in ("hub", "store"):
            server = Server(("127.0.0.1", 0), Handler)
            server.world, server.role, server.daemon_threads = self, port, True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            self.servers[port] = server

    def url(self, port="hub"):
        return f"http://127.0.0.1:{self.servers[port].server_port}"

    def close(self):
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def asked(self, part, port=None):
        return [r for r in self.seen if part in r.path and port in (None, r.port)]

    def tree(self):
        out = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "assets"}]
        for name, f in self.files.items():
            entry = {"type": "file", "oid": f.blob if not f.large else git_hash(b"pointer"), "size": f.size, "path": name}
            if f.large:
                entry["lfs"] = {"oid": f.blob, "size": f.size, "pointerSize": 135}
                entry["xetHash"] = "1" * 64
            out.append(entry)
        return self.listing(out) if self.listing else out


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request, client):
        pass  # cut connections are what this is for


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_GET(self):
        world, role = self.server.world, self.server.role
        request = Request(role, self.path, {k.lower(): v for k, v in self.headers.items()})
        with world.lock:
            world.seen.append(request)
            number = len(world.seen)
        if world.on_request:
            world.on_request(request)
        self.seen, self.number = request, number
        if world.hang:
            time.sleep(20)
        for i, (where, status, headers, body) in enumerate(world.refuse):
            if where in f"{role}:{self.path}":
                del world.refuse[i]
                return self.answer(status, body, headers)
        path = urllib.parse.urlsplit(self.path).path  # also of a whole address, as a proxy is asked
        if role == "store":
            return self.send_file(urllib.parse.unquote(path.removeprefix("/bytes/")), {})
        if world.token and request.headers.get("authorization") != f"Bearer {world.token}":
            return self.answer(401, b"<html>no</html>", {"X-Error-Code": "RepoNotFound", "Content-Type": "text/html"})
        repo = next((r for r in (world.repo, *world.more_repos) if f"/{r}/" in path), world.repo)
        api, pages = f"/api/models/{repo}/", f"/{repo}/resolve/"
        if path.startswith(api + "revision/"):
            return self.revision(urllib.parse.unquote(path[len(api) + 9:]))
        if path.startswith(api + "tree/"):
            return self.tree(urllib.parse.unquote(path[len(api) + 5:]))
        if path.startswith(pages):
            commit, _, name = urllib.parse.unquote(path[len(pages):]).partition("/")
            return self.resolve(commit, name)
        return self.answer(404, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    def answer(self, status, body, headers=None):
        self.seen.status = status
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def revision(self, name):
        world = self.server.world
        commit = world.branches.get(name, name if name == world.commit else None)
        if commit is None:
            return self.answer(404, b'{"error":"Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
        return self.answer(200, json.dumps({"id": world.repo, "sha": commit, "siblings": [{"rfilename": n} for n in world.files]}).encode())

    def tree(self, commit):
        world = self.server.world
        if commit != world.commit:
            return self.answer(404, b'{"error":"Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
        if world.tree_body is not None:
            return self.answer(200, world.tree_body)
        entries, headers = world.tree(), {}
        if world.page_size:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            at = int(query.get("cursor", ["0"])[0])
            if at + world.page_size < len(entries):
                headers["Link"] = f'<{world.url()}/api/models/{world.repo}/tree/{commit}?recursive=1&cursor={at + world.page_size}>; rel="next"'
            entries = entries[at:at + world.page_size]
        return self.answer(200, json.dumps(entries).encode(), headers)

    def resolve(self, commit, name):
        world = self.server.world
        file = world.files.get(name)
        if file is None or commit != world.commit:
            return self.answer(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
        words = {"X-Repo-Commit": commit, "ETag": f'"{file.blob}"'} if world.chatty else {}
        if file.large and world.chatty:
            words |= {"X-Linked-Size": str(file.size), "X-Linked-Etag": f'"{file.blob}"', "ETag": '"not-the-hash"'}
        words |= world.words
        if file.large or world.redirects:
            where = world.redirects(name) if world.redirects else f"{world.url('store')}/bytes/{urllib.parse.quote(name)}?signature=secret"
            return self.answer(302, b"", words | {"Location": where})
        return self.send_file(name, words)

    def send_file(self, name, words):
        world = self.server.world
        data = world.serve_once.pop(name, None)
        if data is None:
            data = world.serve.get(name, world.files[name].data)
        start, status = 0, 200
        wanted = self.headers.get("Range")
        if wanted and not world.ignore_range:
            start, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
            if world.wrong_range:
                start += 7
            if start >= len(data):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        body = memoryview(data)[start:]
        self.seen.status = status
        self.send_response(status)
        for key, value in words.items():
            self.send_header(key, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if world.no_length:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        limit = world.cut_after(self.number) if world.cut_after else None
        cut = limit is not None and limit < len(body)
        self.send_slowly(body[:limit] if cut else body)
        if cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def send_slowly(self, body):
        rate, step = self.server.world.rate, 65536
        if rate:
            step = max(1, rate // 20)
        for at in range(0, len(body), step):
            self.wfile.write(body[at:at + step])
            self.seen.sent += len(body[at:at + step])
            if rate:
                time.sleep(0.05)
