"""What an operator sees: the line that each request leaves, request ids, /metrics."""
import json
import re
import time

import pytest
import requests
from conftest import WEATHER
from exposition import read, value

CHAT = "/v1/chat/completions"
OFF = {"reasoning_effort": "none"}
KEYS = ["time", "id", "client", "method", "path", "status", "duration_ms", "model", "prompt_tokens", "cached_tokens", "completion_tokens", "queue_ms", "prefill_ms",
        "first_token_ms", "tokens_per_second", "loose_tools", "finish_reason", "error", "client_gone"]


@pytest.fixture
def logged(start):
    return start(log_json=1)


def lines(s):
    return [json.loads(line) for line in s.log_path.read_text().splitlines() if line.startswith("{")]


def line_of(s, name):
    """The line of the request with this id, once it has ended; there must be one only."""
    s.wait(lambda: [line for line in lines(s) if line["id"] == name])
    found = [line for line in lines(s) if line["id"] == name]
    assert len(found) == 1 and list(found[0]) == KEYS
    return found[0]


def post(s, body, name, path=CHAT, **options):
    return s.post(body, path, headers={"X-Request-Id": name}, **options)


def ask(mark, **fields):
    return {"messages": [{"role": "user", "content": mark}], **OFF, **fields}


# ---- the log ----

@pytest.mark.parametrize("stream", [False, True])
def test_line_of_an_answer(logged, stream):
    mark = logged.script([{"delay_ms": 60}, {"every_ms": 10}, {"text": "one two three four five"}])
    answer = post(logged, ask(mark, model="my model\n", stream=stream, stream_options={"include_usage": True} if stream else None), "a-1")
    assert answer.status_code == 200 and answer.headers["X-Request-Id"] == "a-1"
    line = line_of(logged, "a-1")
    usage = answer.json()["usage"] if not stream else json.loads(answer.text.split("data: ")[-2])["usage"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert (line["client"], line["method"], line["path"], line["status"], line["model"]) == ("127.0.0.1", "POST", CHAT, 200, "my?model?")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert 55 < line["prefill_ms"] <= line["first_token_ms"] + 1 <= line["duration_ms"] + 1 and line["queue_ms"] + line["prefill_ms"] <= line["first_token_ms"] + 1
    # five ids after the first, four of them ten milliseconds apart; how late the connection saw the first, and the last, is the machine's matter
    seconds = (line["duration_ms"] - line["first_token_ms"]) / 1000
    assert line["tokens_per_second"] > 0.95 * 5 / (seconds + 0.001)
    assert line["first_token_ms"] > 95 or line["tokens_per_second"] < 1.05 * 5 / (0.099 - line["first_token_ms"] / 1000)
    assert (line["finish_reason"], line["error"], line["client_gone"]) == ("stop", None, False)


def test_lines_of_everything_else(logged):
    requests.get(logged.url + "/health", headers={"X-Request-Id": "h"})
    line = line_of(logged, "h")
    assert line["status"] == 200 and line["path"] == "/health" and line["model"] is None and line["prompt_tokens"] is None and line["finish_reason"] is None
    post(logged, {"messages": []}, "bad")
    assert (line_of(logged, "bad")["status"], line_of(logged, "bad")["error"]) == (400, "invalid_request")
    requests.get(logged.url + "/no%20such%0Apath/" + "x" * 500, headers={"X-Request-Id": "lost"})
    line = line_of(logged, "lost")
    assert (line["status"], line["error"]) == (404, "not_found") and line["path"].startswith("/no?such?path/xxx") and len(line["path"]) == 64
    post(logged, ask(logged.script([{"text": "half"}, {"fail": "the device burnt"}])), "burnt")
    assert (line_of(logged, "burnt")["status"], line_of(logged, "burnt")["error"]) == (500, "backend")
    post(logged, ask(logged.script([{"text": "half"}, {"fail": "the device burnt"}]), stream=True), "burnt-stream")
    line = line_of(logged, "burnt-stream")
    assert (line["status"], line["error"], line["finish_reason"], line["client_gone"]) == (200, "backend", None, False)
    post(logged, ask(logged.script([{"text": "one two three"}]), max_tokens=2), "cut")
    assert line_of(logged, "cut")["finish_reason"] == "length"
    post(logged, ask(logged.script([{"text": "one"}], [{"text": "one two three four"}]), max_tokens=3, n=2), "mixed")
    assert line_of(logged, "mixed")["finish_reason"] == "mixed"


@pytest.mark.parametrize("stream", [False, True])
def test_line_of_a_client_that_went_away(logged, stream):
    mark = logged.script([{"every_ms": 20}, {"text": "on and on " * 200}])
    data = json.dumps(ask(mark, stream=stream)).encode()
    with logged.connect() as client:
        client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: away\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        logged.wait(lambda: logged.stats()["running"] == 1)
        time.sleep(0.1)
    line = line_of(logged, "away")
    assert line["client_gone"] and line["finish_reason"] is None and 0 < line["completion_tokens"] < 500
    assert line["status"] == (200 if stream else None)


def test_line_of_an_upload_that_never_ends(start):
    s = start(log_json=1, read_seconds=1)
    with s.connect() as client:
        client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: late\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 408")
        line = line_of(s, "late")
    assert (line["status"], line["error"]) == (408, "timeout")
    with s.connect() as client:
        client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: cut\r\nContent-Length: 100\r\n\r\n{{".encode())
        time.sleep(0.1)
    assert line_of(s, "cut")["client_gone"]


def test_no_content_in_the_log(start):
    secret = "xyzzy-plugh-31337"
    for options in ({}, {"log_json": 1}):
        s = start(api_key=secret, **options)
        key = {"Authorization": f"Bearer {secret}"}
        mark = s.script([{"text": f"</think>{secret} {secret}"}])
        body = {"messages": [{"role": "system", "content": secret}, {"role": "user", "content": secret + mark}], "user": secret, "cache_salt": secret, "stop": [secret + "!"], "tools": [WEATHER]}
        for stream in (False, True):
            assert secret in s.post({**body, "stream": stream}, headers=key).text.replace('"},"logprobs"', "") or stream
        s.post({"prompt": secret, "seed": secret}, "/v1/completions", headers=key)
        s.post({"messages": [{"role": secret, "content": "x"}]}, headers=key)
        s.post({"text": secret}, "/v1/tokenize", headers=key)
        requests.get(s.url + "/v1/models?key=" + secret, headers={**key, "Cookie": secret, "User-Agent": secret})
        s.stop()
        text = s.log_path.read_text()
        assert secret not in text and text.count("/v1/") == 6


def test_text_lines(start):
    s = start()
    mark = s.script([{"delay_ms": 20}, {"every_ms": 5}, {"text": "one two three"}])
    s.post(ask(mark), headers={"X-Request-Id": "t-1"})
    s.wait(lambda: " t-1 " in s.log_path.read_text())
    line = next(line for line in s.log_path.read_text().splitlines() if " t-1 " in line)
    assert re.fullmatch(r"\S+Z t-1 127\.0\.0\.1 POST /v1/chat/completions 200 [\d.]+ms model=test-model prompt=\d+ cached=\d+ generated=\d+ queue=[\d.]+ms prefill=[\d.]+ms "
                        r"first=[\d.]+ms speed=[\d.]+/s finish=stop", line), line


# ---- request ids ----

def test_request_ids(server):
    for good in ("x", "0b8e7a54-1c1e-4b43-9e0e-0f3a4b8e7a54", "Root=1-67891233-abcdef", "a" * 128, "A.b_c:d/e+f=g@h-i"):
        assert requests.get(server.url + "/v1/models", headers={"X-Request-Id": good}).headers["X-Request-Id"] == good
    made = set()
    for bad in ("", " ", "a b", "a" * 129, "é", 'a"b', "a,b", "<script>", "%0a"):
        head = server.raw(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {bad}\r\nConnection: close\r\n\r\n".encode()).split(b"\r\n\r\n")[0].decode()
        got = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])["X-Request-Id"]
        assert re.fullmatch(r"req-[A-Za-z0-9]{24}", got), (bad, got)
        made.add(got)
    assert len(made) == 9
    for answer in (requests.get(server.url + "/nothing"), requests.put(server.url + CHAT), server.post({}), server.post(ask("", stream=True)), requests.get(server.url + "/health")):
        assert re.fullmatch(r"req-[A-Za-z0-9]{24}", answer.headers["X-Request-Id"])


# ---- metrics ----

def scrape(s):
    answer = requests.get(s.url + "/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(answer.text)


def test_metrics_add_up(start):
    s = start()
    before = scrape(s)
    quick, slow = s.script([{"text": "one two three"}]), s.script([{"delay_ms": 300}, {"every_ms": 30}, {"text": "a b c d e f"}])
    usage = [s.chat(quick, **OFF)["usage"], s.chat(slow, **OFF)["usage"]]
    s.stream(quick, **OFF)
    s.refuse(400, n=99)
    requests.get(s.url + "/nothing")
    wanted = {("chat", 200): 3, ("chat", 400): 1}
    count = lambda m, status, route=CHAT: value(m, "calla_http_requests_total", route=route, status=str(status))
    s.wait(lambda: count(scrape(s), 200) == 3 and count(scrape(s), 400) == 1 and count(scrape(s), 404, "other") == 1)
    after = scrape(s)
    tokens = value(after, "calla_completion_tokens_total")
    assert tokens == usage[0]["completion_tokens"] * 2 + usage[1]["completion_tokens"]
    assert value(after, "calla_prompt_tokens_total") == usage[0]["prompt_tokens"] * 2 + usage[1]["prompt_tokens"]
    assert value(after, "calla_cached_tokens_total") > 0
    assert value(after, "calla_completions_total", finish="stop") == 3 == value(after, "calla_queue_seconds_count")
    first, between = "calla_time_to_first_token_seconds", "calla_time_between_tokens_seconds"
    assert value(after, first + "_count") == 3 and value(after, first + "_bucket", le="0.25") <= 2 and value(after, first + "_sum") > 0.3
    assert value(after, between + "_count") == tokens - 3 and value(after, between + "_sum") > 0.1
    assert value(after, "calla_http_request_duration_seconds_count", route=CHAT) == len(wanted) + 2
    assert value(after, "calla_http_request_duration_seconds_sum", route=CHAT) > 0.45
    assert value(after, "calla_http_requests_running") == 1 and value(after, "calla_http_connections") >= 1
    for name, (kind, samples) in before.items():
        if kind != "gauge":
            assert all(after[name][1][key] >= v for key, v in samples.items()), name


def test_gauges(start):
    s = start(env={"CALLA_PARALLEL": "2"})
    held = []
    hold = s.script([{"hold": True}])
    for _ in range(3):
        held.append(requests.post(s.url + CHAT, json=ask(hold, stream=True), stream=True))
    m = scrape(s)
    assert value(m, "calla_engine_running") == 2 and value(m, "calla_engine_waiting") == 1 and value(m, "calla_engine_up") == 1
    assert value(m, "calla_http_requests_running") == 4 and value(m, "calla_http_connections") >= 4
    for answer in held:
        answer.close()
    s.wait(lambda: value(scrape(s), "calla_engine_running") == 0)
    s.wait(lambda: value(scrape(s), "calla_completions_total", finish="client_gone") == 3)
    s.wait(lambda: value(scrape(s), "calla_http_requests_total", route=CHAT, status="200") == 3)


def test_client_that_left_before_its_answer(start):
    s = start()
    data = json.dumps(ask(s.script([{"hold": True}]))).encode()
    with s.connect() as client:
        client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        s.wait(lambda: s.stats()["running"] == 1)
    s.wait(lambda: value(scrape(s), "calla_http_requests_total", route=CHAT, status="499") == 1)


def test_metrics_while_loading_and_when_dead(start):
    s = start(load_ms=1500)
    m = scrape(s)
    assert value(m, "calla_engine_up") == 0 and "calla_engine_running" not in m
    s.wait(lambda: s.stats()["status"] == "ok", 60)
    s.post(ask(s.script([{"die": True}])))
    assert value(scrape(s), "calla_engine_up") == 0


def test_connections_over_the_limit_are_told(start):
    s = start(max_connections=4, log_json=1)
    hold = s.script([{"hold": True}])
    held = []
    for i in range(4):
        held.append(s.connect())
        data = json.dumps(ask(hold)).encode()
        held[-1].sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        s.wait(lambda: len(s.submitted()) == i + 1)
    for _ in range(3):
        answer = requests.get(s.url + "/v1/models")
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "busy" and answer.headers["Retry-After"] and answer.headers["Connection"] == "close"
    held.pop().close()
    metrics = []

    def scraped():
        answer = requests.get(s.url + "/metrics")
        metrics.append(answer.text)
        return answer.status_code == 200

    s.wait(scraped)
    assert value(read(metrics[-1]), "calla_http_connections_refused_total") >= 3
    for c in held:
        c.close()


def test_idle_connection_makes_room(start):
    s = start(max_connections=3)
    idle = [s.connect() for _ in range(3)]
    time.sleep(1.1)
    assert requests.get(s.url + "/health").status_code == 200
    assert idle[0].recv(1) == b""  # the one that was idle longest
    idle[2].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert idle[2].recv(4096).startswith(b"HTTP/1.1 200")
    for c in idle:
        c.close()
