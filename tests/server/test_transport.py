"""The wire: clients that vanish, dawdle or lie; sizes and deadlines; who may talk to the server; how it stops."""
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest
import requests
from conftest import BIN, MODEL, PATIENCE

CHAT = "/v1/chat/completions"


def request_bytes(server, body, headers="", path=CHAT, method="POST"):
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data


def ask(mark, **fields):
    return {"messages": [{"role": "user", "content": mark}], "reasoning_effort": "none", **fields}


def head(server, **headers):
    lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    return server.raw(f"GET /v1/models HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode()).split(b"\r\n")[0].decode()


# ---- clients that go away ----

@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["queue", "prefill", "decode"])
def test_vanished_client_is_noticed(start, stage, stream):
    s = start(env={"CALLA_PARALLEL": "1"})
    blocker = None
    if stage == "queue":
        blocker = s.connect()
        blocker.sendall(request_bytes(s, ask(s.script([{"hold": True}]))))
        s.wait(lambda: s.stats()["running"] == 1)
    items = [{"hold": True}] if stage != "decode" else [{"every_ms": 10}, {"text": "on and on " * 1000}]
    mark = s.script(items)
    client = s.connect()
    client.sendall(request_bytes(s, ask(mark, stream=stream)))
    s.wait(lambda: s.stats()["waiting" if stage == "queue" else "running"] == 1)
    if stage == "decode":
        time.sleep(0.1)
    client.close()
    s.wait(lambda: s.ended(mark))
    assert s.ended(mark)[0]["finish"] == 3
    if stage == "decode":
        assert 0 < s.ended(mark)[0]["generated"] < 2000  # of 3000
    if blocker:
        assert s.stats() == {"status": "ok", "running": 1, "waiting": 0}
        blocker.close()
    s.wait(lambda: s.stats() == {"status": "ok", "running": 0, "waiting": 0})


def test_half_closed_client_counts_as_gone(server):
    mark = server.script([{"hold": True}])
    with server.connect() as client:
        client.sendall(request_bytes(server, ask(mark)))
        server.wait(lambda: server.stats()["running"] == 1)
        client.shutdown(socket.SHUT_WR)
        server.wait(lambda: server.ended(mark))


def test_hundred_aborts_leak_nothing(start):
    s = start()
    s.chat(s.script([{"text": "warm"}]), reasoning_effort="none")
    s.wait(lambda: s.threads() <= 5)
    threads, descriptors = s.threads(), s.descriptors()
    marks = [s.script([{"hold": True}]), s.script([{"every_ms": 5}, {"text": "word " * 1000}])]
    for i in range(100):
        with s.connect() as client:
            client.sendall(request_bytes(s, ask(marks[i % 2], stream=i % 4 < 2)))
            s.wait(lambda: len(s.submitted()) == i + 2)
            if i % 3 == 0:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset instead of a farewell
    s.wait(lambda: s.stats() == {"status": "ok", "running": 0, "waiting": 0})
    s.wait(lambda: s.threads() <= threads and s.descriptors() <= descriptors)
    assert len([e for m in marks for e in s.ended(m)]) == 100


def test_slow_reader_holds_nothing(start):
    s = start(send_seconds=2)
    long = s.script([{"text": "word " * 20000}])
    with s.connect() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(request_bytes(s, ask(long, stream=True)))
        s.wait(lambda: s.ended(long))  # the engine is done although nobody reads
        assert s.ended(long)[0]["finish"] == 1
        assert s.chat(s.script([{"text": "quick"}]), reasoning_effort="none")["choices"][0]["message"]["content"] == "quick"
        s.wait(lambda: s.threads() <= 5, 50)  # and the connection is dropped, before the 60 seconds that are the rule


def test_aborted_upload(server):
    before = server.stats()
    for _ in range(20):
        with server.connect() as client:
            client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{{".encode())
    server.wait(lambda: server.stats() == before)


LONG_TEXT = ("The quick brown fox jumps over 13 lazy dogs. " * 700_000)[:31_000_000]


@pytest.mark.parametrize("path,body", [(CHAT, ask(LONG_TEXT)), ("/v1/completions", {"prompt": LONG_TEXT}), ("/v1/tokenize", {"text": LONG_TEXT}), ("/v1/tokenize", ask(LONG_TEXT))],
                         ids=["chat", "text", "tokenize", "tokenize-chat"])
def test_vanished_client_ends_the_encoding_of_its_text(start, path, body):
    s = start(log_json=1)
    with s.connect() as client:
        before = s.processor_seconds()
        client.sendall(request_bytes(s, body, "X-Request-Id: long\r\n", path))
        s.wait(lambda: s.processor_seconds() > before + 0.5)  # by the server's clock: this process may have to wait for a processor longer
    s.wait(lambda: '"long"' in s.log_path.read_text())
    line = next(json.loads(line) for line in s.log_path.read_text().splitlines() if '"long"' in line)
    assert line["client_gone"] and line["status"] is None, line
    assert s.processor_seconds() < 6  # the whole takes longer on any machine
    s.wait(lambda: s.threads() <= 5)


def test_stop_while_texts_are_encoded(start):
    s = start(grace=1)
    clients = [s.connect() for _ in range(6)]  # more than are read at once: some wait for their turn
    threads = [threading.Thread(target=lambda c=c: c.sendall(request_bytes(s, {"text": LONG_TEXT}, path="/v1/tokenize"))) for c in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    time.sleep(0.3)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(PATIENCE) == 0 and resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used < 12  # the whole takes three times that
    for c in clients:
        c.close()


def test_clients_that_wait_to_be_read_may_leave(start):
    """Bodies of more than 64 KiB are read four at a time; one that waits for its turn looks whether its client is still there."""
    s = start(log_json=1)
    clients = [s.connect() for _ in range(5)]
    for i, c in enumerate(clients):
        c.sendall(request_bytes(s, {"text": LONG_TEXT[:12_000_000]}, f"X-Request-Id: turn-{i}\r\n", "/v1/tokenize"))
    clients[4].close()
    s.wait(lambda: '"turn-4"' in s.log_path.read_text())
    for i, c in enumerate(clients[:4]):
        c.close()
    s.wait(lambda: all(f'"turn-{i}"' in s.log_path.read_text() for i in range(4)))
    assert re.findall('"turn-[0-9]"', s.log_path.read_text())[0] == '"turn-4"'  # it left first, while the others were being read


# ---- keep-alive ----

def test_comments_while_nothing_is_sent(start):
    s = start(keepalive_ms=200)
    mark = s.script([{"delay_ms": 4000}, {"text": "late"}])
    times, text = [], b""
    with requests.post(s.url + CHAT, json=ask(mark, stream=True), stream=True) as answer:
        assert answer.status_code == 200
        for piece in answer.iter_content(None):
            times.append(time.monotonic())
            text += piece
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert max(gaps) < 3 and text.count(b": keep-alive\n\n") >= 5 and b"late" in text
    got = s.client().chat.completions.create(model="m", messages=[{"role": "user", "content": mark}], stream=True, reasoning_effort="none")
    assert "".join(c.choices[0].delta.content or "" for c in got) == "late"


def test_comments_in_the_queue(start):
    s = start(keepalive_ms=200, env={"CALLA_PARALLEL": "1"})
    with s.connect() as blocker:
        blocker.sendall(request_bytes(s, ask(s.script([{"hold": True}]))))
        s.wait(lambda: s.stats()["running"] == 1)
        began = time.monotonic()
        with requests.post(s.url + CHAT, json=ask(s.script([{"text": "at last"}]), stream=True), stream=True) as answer:
            s.wait(lambda: s.stats()["waiting"] == 1)
            pieces = answer.iter_content(None)
            text = b""
            while text.count(b": keep-alive\n\n") < 4:
                text += next(pieces)
            assert 0.5 < time.monotonic() - began < 19 and s.stats()["waiting"] == 1
            blocker.close()
            rest = b"".join(pieces)
            assert b" last" in rest and rest.endswith(b"data: [DONE]\n\n")


def test_head_of_a_stream_comes_at_once(server):
    with requests.post(server.url + CHAT, json=ask(server.script([{"hold": True}]), stream=True), stream=True, timeout=PATIENCE) as answer:
        assert answer.status_code == 200 and next(answer.iter_lines()).startswith(b"data: ")  # before the comment of the fifth second


def test_tokens_come_one_by_one(server):
    mark = server.script([{"every_ms": 200}, {"text": "a b c d e f g h"}])
    times = [time.monotonic() for c in server.client().chat.completions.create(model="m", messages=[{"role": "user", "content": mark}], stream=True, reasoning_effort="none")]
    assert times[-1] - times[0] > 0.5 and max(b - a for a, b in zip(times, times[1:])) < 0.75 * (times[-1] - times[0])


def test_connection_is_reused(server):
    with requests.Session() as session:
        for _ in range(5):
            answer = session.post(server.url + CHAT, json=ask(server.script([{"text": "x"}])))
            assert answer.status_code == 200 and "close" not in answer.headers.get("Connection", "").lower()
    two = server.raw(request_bytes(server, ask(server.script([{"text": "first"}]))) + request_bytes(server, ask(server.script([{"text": "second"}])), "Connection: close\r\n"))
    assert two.count(b"HTTP/1.1 200") == 2 and two.index(b"first") < two.index(b"second")


def test_chunked_request(server):
    body = json.dumps(ask(server.script([{"text": "chunked"}]))).encode()
    answer = requests.post(server.url + CHAT, data=(body[i:i + 7] for i in range(0, len(body), 7)))
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "chunked"


# ---- sizes and deadlines ----

def test_large_body_is_read(server):
    mark = server.script([{"text": "read"}])
    body = json.dumps(ask(mark, metadata={"filler": "x" * (31 << 20)}))
    answer = server.post(body)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "read"


@pytest.mark.parametrize("how", ["length", "chunked", "expect", "absurd"])
def test_body_over_32_mib(server, how):
    size = (32 << 20) + 1
    if how == "length":
        answer = server.post(b"x" * size)
        status, body = answer.status_code, answer.text
    elif how == "chunked":
        answer = requests.post(server.url + CHAT, data=(b"x" * (1 << 20) for _ in range(33)))
        status, body = answer.status_code, answer.text
    else:
        length = size if how == "expect" else 10**15
        extra = "Expect: 100-continue\r\n" if how == "expect" else ""
        body = server.raw(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{extra}Content-Length: {length}\r\n\r\n".encode()).decode()
        status = int(body.split()[1])
    assert status == 413 and "body_too_large" in body
    assert server.chat(server.script([{"text": "alive"}]), reasoning_effort="none")["choices"][0]["message"]["content"] == "alive"


def test_header_limit(server):
    ok = server.raw(f"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: {'a' * (60 << 10)}\r\nConnection: close\r\n\r\n".encode())
    assert ok.startswith(b"HTTP/1.1 200")
    over = server.raw(f"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: {'a' * (100 << 10)}\r\nConnection: close\r\n\r\n".encode())
    assert over.startswith(b"HTTP/1.1 431") and b'"header_too_large"' in over
    far = server.raw(f"GET /{'a' * (90 << 10)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert far.startswith(b"HTTP/1.1 414") and b"longer than 64 KiB" in far
    assert requests.get(server.url + "/health").status_code == 200


def test_what_is_no_request_gets_the_librarys_page(server):
    for line in (f"GET /{'a' * (200 << 10)} HTTP/1.1\r\nHost: localhost", "GET /health HTTP/1.1\r\nHost: localhost\r\nno header",
                 f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: many"):
        got = server.raw(f"{line}\r\n\r\n".encode())
        assert got.split()[1] in (b"400", b"414") and b"<html>" in got and b"Connection: close" in got


def test_slow_head_and_body_end_in_408(start):
    s = start(read_seconds=1, idle_seconds=5)

    def dribble(first, byte):
        with s.connect() as client:
            client.sendall(first)
            got, began = b"", time.monotonic()
            client.settimeout(0.2)
            while time.monotonic() - began < 60:
                with contextlib.suppress(TimeoutError):
                    piece = client.recv(4096)
                    got += piece
                    if not piece:
                        return got
                with contextlib.suppress(OSError):
                    client.sendall(byte)
        raise AssertionError("never closed")

    got = dribble(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode(), b" ")
    assert got.startswith(b"HTTP/1.1 408 ") and b'"code":"timeout"' in got
    assert dribble(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n".encode(), b"X-A: b\r\n").startswith(b"HTTP/1.1 408 ")
    for path in ("/v1/messages", "/v1/messages?beta=true"):
        head, body = dribble(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode(), b" ").split(b"\r\n\r\n")
        assert json.loads(body)["type"] == "error" and re.search(rb"X-Request-Id: req-\w{24}\r", head)
    dribble(b"G", b"E")


def test_many_arguments_and_cookies_are_answered(server):
    """Each takes memory of a bounded pool of libmicrohttpd's; where that is too little it would close without a word."""
    get = lambda path, header="": server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n".encode())
    assert get("/health?" + "a=b&" * 200).startswith(b"HTTP/1.1 200")
    for path in ("/health?" + "a&" * 8000, "/v1/models?" + "&" * 20000):
        assert get(path).startswith(b"HTTP/1.1 414") and b'"error":{' in get(path)
    assert json.loads(get("/v1/messages?" + "x&" * 5000).split(b"\r\n\r\n")[1])["type"] == "error"
    full = "; ".join(f"name{i}=" + "v" * 240 for i in range(180))  # as many as a browser keeps for one host
    assert get("/", f"Cookie: {full}\r\n").startswith(b"HTTP/1.1 200")
    assert get("/health").startswith(b"HTTP/1.1 200")


def test_eight_stalled_readers_hold_up_nobody(start):
    """Eight streams that nobody reads take their turns at the engine as if they were read, and no more: a ninth is answered when the first places become free, while the others still wait or run."""
    s = start(program="calla-test-server", parallel=4, max_seq=2048)
    body = lambda user: {"messages": [{"role": "user", "content": "Tell me a long story."}], "user": user, "temperature": 1.5, "logit_bias": ends, "logprobs": True, "top_logprobs": 20}
    ends = {str(i): -100 for text in ("<|im_end|>", "<|endoftext|>") for i in s.post({"text": text, "special": True}, "/v1/tokenize").json()["tokens"]}
    left = lambda: s.stats()["running"] + s.stats()["waiting"]
    stalled = []
    for _ in range(8):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", s.port))
        client.sendall(request_bytes(s, {**body("stalled"), "max_tokens": 300, "stream": True}))
        stalled.append(client)
    s.wait(lambda: "calla_engine_requests_total 8\n" in requests.get(s.url + "/metrics").text)
    answer = s.post({**body("other"), "max_tokens": 20})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 20
    assert left() >= 8 - 4 - 1, "it waited for more than the four that ran when it came"
    s.wait(lambda: left() == 0, PATIENCE)  # their engine's part ends, though not a byte more is read
    for client in stalled:
        client.close()
    s.wait(lambda: s.stats() == {"status": "ok", "running": 0, "waiting": 0})


def test_many_idle_connections_do_not_starve(start):
    s = start(max_connections=16, read_seconds=2)
    idle = [s.connect() for _ in range(40)]
    s.wait(lambda: s_ok(s))
    for c in idle:
        c.close()


def s_ok(s):
    try:
        return requests.get(s.url + "/health", timeout=5).status_code == 200
    except requests.RequestException:
        return False


# ---- paths and methods ----

def test_unknown_paths_and_wrong_methods(server):
    for path in ("/v1", "/chat.html", "/v1/nothing", "/v1/chat/completions/", "/../etc/passwd"):
        answer = requests.get(server.url + path)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
    for method, path, allow in (("GET", CHAT, "POST"), ("POST", "/health", "GET, HEAD"), ("DELETE", "/v1/models", "GET, HEAD"), ("PUT", "/v1/tokenize", "POST"), ("OPTIONS", CHAT, "POST")):
        answer = requests.request(method, server.url + path)
        assert answer.status_code == 405 and answer.headers["Allow"] == allow and answer.json()["error"]["type"] == "invalid_request_error"
    assert requests.head(server.url + "/health").status_code == 200


# ---- who may talk ----

def test_host_must_be_loopback_or_allowed(server, start):
    s = start(allow_host=["my-box.example", "10.0.0.7"])
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:80", "[::1]:8080", f"127.0.0.1:{server.port}", "localhost."):
        assert head(server, Host=host).split()[1] == "200", host
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.7", "0.0.0.0", "127.0.0.1@evil", "[::2]", "localhost:99999999", "127.0.0.1:80:80"):
        assert head(server, Host=host).split()[1] == "403", host
    for host in ("my-box.example:8080", "10.0.0.7"):
        assert head(s, Host=host).split()[1] == "200" and head(server, Host=host).split()[1] == "403"
    assert server.raw(b"GET /v1/models HTTP/1.0\r\n\r\n").split()[1] == b"400"
    assert server.raw(b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").split()[1] == b"403"


def test_foreign_origin_is_refused_and_no_cors(server):
    for origin, status in (("http://evil.example", "403"), ("null", "403"), ("https://localhost.evil.example", "403"), ("http://localhost:3000", "200"), ("http://127.0.0.1", "200")):
        assert head(server, Host="localhost", Origin=origin).split()[1] == status, origin
    answer = requests.options(server.url + CHAT, headers={"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"})
    assert answer.status_code == 405
    for answer in (answer, requests.get(server.url + "/v1/models", headers={"Origin": "http://localhost:3000"})):
        assert not [h for h in answer.headers if h.lower().startswith("access-control")]


def test_api_key(start):
    s = start(api_key="correct horse")
    for key in (None, "", "correct hors", "correct horse!", "Correct horse", "correct horsecorrect horse"):
        answer = requests.get(s.url + "/v1/models", headers={"Authorization": f"Bearer {key}"} if key is not None else {})
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer" and answer.json()["error"]["code"] == "invalid_api_key"
    assert requests.get(s.url + "/v1/models", headers={"Authorization": "correct horse"}).status_code == 401
    assert s.post(b"x" * (2 << 20)).status_code == 401
    assert requests.get(s.url + "/metrics").status_code == 401 and requests.get(s.url + "/health").status_code == 200
    assert requests.get(s.url + "/v1/models", headers={"Authorization": "bearer correct horse"}).status_code == 200
    assert s.client(api_key="correct horse").models.list().data[0].id == "test-model"
    assert "correct horse" not in s.log_path.read_text()


def test_beyond_loopback_needs_a_key(start):
    refused = subprocess.run([BIN / "calla-scripted-server", "--model", MODEL, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=PATIENCE)
    assert refused.returncode == 2 and "--api-key" in refused.stderr and "listening" not in refused.stdout
    s = start(host="0.0.0.0", api_key="k")
    assert requests.get(f"http://127.0.0.1:{s.port}/v1/models", headers={"Authorization": "Bearer k"}).status_code == 200
    open_one = start(host="0.0.0.0", allow_unauthenticated=1)
    assert requests.get(f"http://127.0.0.1:{open_one.port}/v1/models").status_code == 200
    assert head(open_one, Host="192.168.1.5").split()[1] == "200" and head(open_one, Host="evil.example").split()[1] == "403"


def test_taken_port_is_an_error(server):
    second = subprocess.run([BIN / "calla-scripted-server", "--model", MODEL, "--port", str(server.port)], capture_output=True, text=True, timeout=PATIENCE)
    assert second.returncode == 4 and str(server.port) in second.stderr and "--port 0" in second.stderr


# ---- beginning and end ----

def test_loading(start):
    s = start(load_ms=1500)
    health = requests.get(s.url + "/health")
    assert health.status_code == 503 and health.json()["status"] == "loading" and "Retry-After" in health.headers
    answer = s.post(ask("x"))
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "loading" and int(answer.headers["Retry-After"]) > 0
    s.wait(lambda: s_ok(s), 60)
    assert s.chat(s.script([{"text": "x"}]), reasoning_effort="none")["choices"]


def test_stop_when_idle(start):
    s = start(grace=60)
    s.chat(s.script([{"text": "x"}]), reasoning_effort="none")
    with s.connect():
        began = time.monotonic()
        assert s.stop() == 0 and time.monotonic() - began < 50


@pytest.mark.parametrize("stream", [False, True])
def test_stop_lets_running_answers_end(start, stream):
    s = start(grace=60)
    mark = s.script([{"every_ms": 300}, {"text": "a b c d e f g h i j"}])
    got = {}
    thread = threading.Thread(target=lambda: got.update(answer=s.post(ask(mark, stream=stream))))
    thread.start()
    s.wait(lambda: s.stats()["running"] == 1)
    s.process.send_signal(signal.SIGTERM)
    s.wait(lambda: s.stats()["status"] == "stopping")
    late = s.post(ask("x"))
    assert late.status_code == 503 and late.json()["error"]["code"] == "stopping" and "Retry-After" in late.headers
    thread.join(PATIENCE)
    assert got["answer"].status_code == 200 and ("[DONE]" in got["answer"].text if stream else got["answer"].json()["choices"][0]["message"]["content"] == "a b c d e f g h i j")
    assert s.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("stage", ["queue", "prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_ends_what_does_not(start, stage, stream):
    s = start(grace=1, env={"CALLA_PARALLEL": "1"})
    if stage == "queue":
        blocker = s.connect()
        blocker.sendall(request_bytes(s, ask(s.script([{"hold": True}]))))
        s.wait(lambda: s.stats()["running"] == 1)
    mark = s.script([{"hold": True}] if stage != "decode" else [{"every_ms": 10}, {"text": "on and on " * 1000}])
    got = {}
    thread = threading.Thread(target=lambda: got.update(answer=s.post(ask(mark, stream=stream))))
    thread.start()
    s.wait(lambda: s.stats()["waiting" if stage == "queue" else "running"] == 1)
    began = time.monotonic()
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(PATIENCE) == 0 and time.monotonic() - began > 0.8
    thread.join(PATIENCE)
    if stream:
        assert "event: error\ndata: {\"error\"" in got["answer"].text and "[DONE]" not in got["answer"].text
    else:
        assert got["answer"].status_code == 503 and got["answer"].json()["error"]["code"] == "closed"
    assert s.ended(mark)[0]["finish"] == 3


def test_second_signal_stops_now(start):
    s = start(grace=60)
    with s.connect() as client:
        client.sendall(request_bytes(s, ask(s.script([{"hold": True}]), stream=True)))
        s.wait(lambda: s.stats()["running"] == 1)
        s.process.send_signal(signal.SIGTERM)
        s.wait(lambda: s.stats()["status"] == "stopping")
        began = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(PATIENCE) == 0 and time.monotonic() - began < 50


def test_stop_with_a_client_that_does_not_read(start):
    s = start(grace=1)
    with s.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mark = s.script([{"text": "word " * 20000}])
        client.sendall(request_bytes(s, ask(mark, stream=True)))
        s.wait(lambda: s.ended(mark))
        time.sleep(0.3)
        began = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(PATIENCE) == 0 and time.monotonic() - began < 50
