"""Ten turns of a conversation with tools over the mini model, sent back as they came: how much of each turn's prompt is not computed again, and
that the answers are those of a server without a cache. In memory, from disk after restarts, and with eight other conversations at the same time."""
import functools
import json
import threading

import pytest
import requests
from conftest import WEATHER, Server

CITIES = ["Paris", "Rome", "Oslo", "Lima", "Cairo"]
FORCED = {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
PAGE = 64


def result(call, i):
    return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"city": CITIES[i % 5], "weather": ["sunny", "rainy"][i % 2], "temperature": 11 + i})}


def one_query(turn, last):
    """A question and its ten turns: calls one after the other, the first and the answer with thinking."""
    if turn == 0:
        return [{"role": "user", "content": "What is the weather in Paris?"}], {}
    return [result(last["tool_calls"][0], turn)], FORCED if turn < 9 else {}


def queries(cities, turn, last):
    """Questions, each a call and then an answer with thinking; the first calls come with thinking of their own, the others are asked for."""
    if last and last.get("tool_calls"):
        return [result(last["tool_calls"][0], turn)], {}
    return [{"role": "user", "content": f"What is the weather in {cities[turn // 2 % len(cities)]}?"}], {} if turn < 4 else FORCED


class Talk:
    """A conversation that a client keeps: it sends all of it each turn, answers exactly as the server gave them."""

    def __init__(self, script, preserve, user="main"):
        self.script, self.preserve, self.user = script, preserve, user
        self.messages, self.turn = [], 0
        self.fields = {}

    def body(self):
        kwargs = {"chat_template_kwargs": {"enable_thinking": True, "preserve_thinking": self.preserve}}
        return {"messages": self.messages, "tools": [WEATHER], "temperature": 0, "max_tokens": 60, "user": self.user, **kwargs, **self.fields}

    def go_on(self, server):
        more, self.fields = self.script(self.turn, self.messages[-1] if self.messages else None)
        self.messages = self.messages + more
        answer = requests.post(server.url + "/v1/chat/completions", json=self.body(), timeout=900)  # however busy the machine
        assert answer.status_code == 200, answer.text
        choice, usage = answer.json()["choices"][0], answer.json()["usage"]
        assert choice["finish_reason"] in ("tool_calls", "stop")
        self.messages = self.messages + [choice["message"]]
        self.turn += 1
        return usage

    def ids(self, server):
        """The prompt of the turn to come or just asked, without its answer."""
        answer = requests.post(server.url + "/v1/tokenize", json=self.body(), timeout=900)
        assert answer.status_code == 200, answer.text
        return answer.json()["tokens"]


KINDS = {"one_query": (one_query, False), "preserved": (functools.partial(queries, CITIES), True), "dropped": (functools.partial(queries, CITIES), False)}


def said(messages):
    """What was said, without the ids of calls."""
    plain = json.loads(json.dumps(messages))
    for m in plain:
        m.pop("tool_call_id", None)
        for call in m.get("tool_calls", []):
            del call["id"]
    return plain


def real(folder, **options):
    return Server(folder, program="calla-test-server", max_seq=4096, threads=2, **options)


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """What is answered without a cache: a function of the kind."""
    @functools.cache
    def answers(kind):
        server, talk = real(tmp_path_factory.mktemp("cold"), cache_off=1), Talk(*KINDS[kind])
        for _ in range(10):
            assert talk.go_on(server)["prompt_tokens_details"]["cached_tokens"] == 0
        assert server.stop() == 0
        thoughts, calls = (sum(bool(m.get(what)) for m in talk.messages) for what in ("reasoning_content", "tool_calls"))
        assert (thoughts == 2 and calls == 9) if kind == "one_query" else (thoughts >= 6 and calls >= 4), (thoughts, calls)
        return said(talk.messages)

    return answers


def in_common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def ten_turns(kind, server, before_turn=lambda server, turn: server):
    """All ten, each turn's prompt cached as promised. Returns what was said."""
    talk = Talk(*KINDS[kind])
    old, old_ids = 0, []
    for turn in range(10):
        server = before_turn(server, turn)
        usage = talk.go_on(server)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        now = talk.messages.pop()
        ids = talk.ids(server)
        talk.messages.append(now)
        assert len(ids) == usage["prompt_tokens"] and cached < len(ids)
        if kind == "dropped" and turn and talk.messages[-2]["role"] == "user":  # the last question's think blocks are not in the prompt any more
            same = in_common(old_ids, ids)
            assert same < len(old_ids) and same - PAGE <= cached <= same, (turn, cached, same)
        else:
            assert cached >= 0.95 * old, (turn, cached, old)
        old, old_ids = usage["prompt_tokens"] + usage["completion_tokens"], ids
    return server, said(talk.messages)


@pytest.mark.parametrize("kind", KINDS)
def test_in_memory(kind, cold, tmp_path):
    server = real(tmp_path)
    _, messages = ten_turns(kind, server)
    assert server.stop() == 0
    assert messages == cold(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_from_disk_after_restarts(kind, cold, tmp_path):
    def restart(server, turn):
        if turn not in (3, 6, 7):
            return server
        assert server.stop() == 0
        return real(tmp_path, cache_dir=tmp_path / "cache")

    server, messages = ten_turns(kind, real(tmp_path, cache_dir=tmp_path / "cache"), restart)
    assert server.stop() == 0
    assert messages == cold(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_with_eight_others(kind, cold, tmp_path):
    server, done, failures = real(tmp_path), threading.Event(), []

    def other(i):
        cities = CITIES[i % 5:] + CITIES[:i % 5]
        try:
            while not done.is_set():
                talk = Talk(functools.partial(queries, cities), i % 2 == 0, f"other {i}")
                while talk.turn < 10 and not done.is_set():
                    talk.go_on(server)
        except Exception as e:  # told by the main thread
            failures.append(e)

    others = [threading.Thread(target=other, args=(i,)) for i in range(8)]
    for t in others:
        t.start()
    try:
        _, messages = ten_turns(kind, server)
    finally:
        done.set()
        for t in others:
            t.join()
    assert server.stop() == 0
    assert not failures, failures
    assert messages == cold(kind)
