"""The whole way over the mini model: the real engine behind the same server."""
import json
import signal
import threading
import time

import pytest
import requests
from conftest import WEATHER, Server, join, without_ids

OFF = {"reasoning_effort": "none"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("real"), program="calla-test-server", max_seq=1024, threads=2)
    yield s
    assert s.stop() == 0, s.log_path.read_text()


def test_plain_and_streamed_by_the_client(server):
    client = server.client()
    fields = dict(model="mini", messages=[{"role": "user", "content": "What is 2 + 3?"}], temperature=0, max_tokens=40, reasoning_effort="none")
    plain = client.chat.completions.create(**fields)
    assert plain.choices[0].finish_reason == "stop" and "5" in plain.choices[0].message.content
    assert plain.usage.prompt_tokens > 5 and plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
    streamed = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **fields)
    chunks = list(streamed)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == plain.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens


@pytest.mark.parametrize("question", ["What is the capital of France?", "Who are you?", "Repeat: apple, pear, plum."])
@pytest.mark.parametrize("fields", [{}, OFF, {"logprobs": True, "top_logprobs": 4}, {"temperature": 0.8, "seed": 3}, {"stop": ["a"]}], ids=str)
def test_stream_says_the_same(server, question, fields):
    choice = server.both(question, max_tokens=60, **fields)[0]
    assert choice["message"]["content"] or choice["message"].get("reasoning_content") or choice["finish_reason"] == "stop"


def test_thinking(server):
    choice = server.both("What is 4 + 4?", max_tokens=200)[0]
    assert choice["message"]["reasoning_content"] and "<think>" not in json.dumps(choice) and "</think>" not in json.dumps(choice)


def test_tools_round_trip(server):
    client = server.client()
    fields = dict(model="mini", tools=[WEATHER], temperature=0, max_tokens=120, reasoning_effort="none")
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat.completions.create(messages=messages, **fields)
    assert first.choices[0].finish_reason == "tool_calls", first
    call = first.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] == "Paris"
    chunks, _ = server.stream(messages[0]["content"], tools=[WEATHER], temperature=0, max_tokens=120, **OFF)
    assert without_ids(join(chunks)[0])["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": call.function.arguments}
    messages += [first.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"city": "Paris", "weather": "sunny", "temperature": 21})}]
    second = client.chat.completions.create(messages=messages, **fields)
    assert second.choices[0].finish_reason == "stop" and second.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_call(server, choice):
    other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    got = server.both("What is the weather in Rome?", tools=[WEATHER, other], tool_choice=choice, max_tokens=120)[0]
    assert got["finish_reason"] == "tool_calls" and got["message"]["tool_calls"][0]["function"]["name"] in ("get_weather", "get_time")


def test_prefix_cache(server):
    """A conversation that goes on is computed from its last turn only; its answers are those of a cold one; another salt sees nothing of it."""
    def ask(messages, **fields):
        answer = server.post({"messages": messages, "max_tokens": 30, "temperature": 0, **OFF, **fields}).json()
        return answer["choices"][0]["message"]["content"], answer["usage"]

    def hits():
        lines = requests.get(server.url + "/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("calla_cache_hits_total "))

    before = hits()
    messages = [{"role": "user", "content": "Here is a list for you to keep: " + ", ".join(f"thing {i}" for i in range(60)) + ". What is 2 + 3?"}]
    text, usage = ask(messages, cache_salt="one")
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "What is 4 + 4?"}]
    warm, warm_usage = ask(messages, cache_salt="one")
    assert usage["prompt_tokens"] // 2 < warm_usage["prompt_tokens_details"]["cached_tokens"] < warm_usage["prompt_tokens"]
    cold, cold_usage = ask(messages, cache_salt="two")
    assert cold_usage["prompt_tokens_details"]["cached_tokens"] == 0 and cold_usage["prompt_tokens"] == warm_usage["prompt_tokens"] and cold == warm
    server.wait(lambda: hits() > before)


def test_max_tokens_and_seed(server):
    assert server.chat("Tell me a story.", max_tokens=7, **OFF)["usage"]["completion_tokens"] == 7
    ask = lambda seed: server.chat("Tell me a story.", max_tokens=30, temperature=1.5, seed=seed, **OFF)["choices"][0]["message"]["content"]
    assert ask(1) == ask(1) and len({ask(i) for i in range(5)}) > 1


def test_choices_of_one_request_equal_single_ones(server):
    three = server.chat("Tell me a story.", n=3, max_tokens=20, temperature=1, seed=5, **OFF)["choices"]
    for i, choice in enumerate(three):
        single = server.chat("Tell me a story.", max_tokens=20, temperature=1, seed=5 + i, **OFF)["choices"][0]
        assert choice["message"] == single["message"]


def test_logit_bias_and_logprobs(server):
    first = server.chat("Say yes.", max_tokens=1, logprobs=True, top_logprobs=5, **OFF)["choices"][0]["logprobs"]["content"][0]
    assert first["logprob"] == first["top_logprobs"][0]["logprob"] <= 0
    token = server.post({"text": first["token"]}, "/v1/tokenize").json()["tokens"][0]
    banned = server.chat("Say yes.", max_tokens=1, logprobs=True, logit_bias={str(token): -100}, **OFF)["choices"][0]["logprobs"]["content"][0]
    assert banned["token"] != first["token"]


def test_text_completion(server):
    answer = server.post({"prompt": "Once upon a time", "max_tokens": 12, "echo": True}, "/v1/completions").json()
    assert answer["choices"][0]["text"].startswith("Once upon a time") and answer["usage"]["completion_tokens"] <= 12


def test_vanished_clients_free_the_engine(server):
    body = {"messages": [{"role": "user", "content": "Tell me a very long story."}], "stream": True, "temperature": 1, "logit_bias": {}, **OFF}
    data = json.dumps(body).encode()
    for i in range(12):
        with server.connect() as client:
            client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            if i % 2:
                client.recv(400)
            time.sleep(0.01 * (i % 4))
    server.wait(lambda: server.stats() == {"status": "ok", "running": 0, "waiting": 0})
    assert "5" in server.chat("What is 2 + 3?", max_tokens=40, **OFF)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_ends_what_ran_and_nothing_else(server, stream):
    """The device fails in one step: the requests in it end with an error, the engine and the server live."""
    fields = {"messages": [{"role": "user", "content": "Tell me a very long story."}], "temperature": 1, "logit_bias": {str(i): -100 for i in server_stops(server)}, **OFF}
    for _ in range(20):  # an answer may be over before the signal comes
        with requests.post(server.url + "/v1/chat/completions", json={**fields, "stream": True}, stream=True, timeout=300) as running:
            pieces = running.iter_content(None)
            text = next(pieces)
            if stream:
                server.process.send_signal(signal.SIGUSR1)
                text += b"".join(pieces)
                if b"event: error" in text:
                    assert b"[DONE]" not in text and b'"code":"backend"' in text
                    break
                continue
        plain = {}
        thread = threading.Thread(target=lambda: plain.update(answer=server.post(fields)))
        thread.start()
        server.wait(lambda: server.stats()["running"] == 1)
        server.process.send_signal(signal.SIGUSR1)
        thread.join(300)
        if plain["answer"].status_code != 200:
            assert plain["answer"].status_code == 500 and plain["answer"].json()["error"]["code"] == "backend"
            break
    else:
        raise AssertionError("no answer was hit by the fault")
    assert server.stats()["status"] == "ok" and "5" in server.chat("What is 2 + 3?", max_tokens=40, **OFF)["choices"][0]["message"]["content"]


def server_stops(server):
    """The ids that end an answer, to be kept from it."""
    return [server.post({"text": text, "special": True}, "/v1/tokenize").json()["tokens"][0] for text in ("<|im_end|>", "<|endoftext|>")]


def test_many_at_once_answer_as_alone(server):
    from concurrent.futures import ThreadPoolExecutor
    sums = [(a, b) for a in range(1, 5) for b in range(1, 5)]
    ask = lambda s: server.chat(f"What is {s[0]} + {s[1]}?", max_tokens=40, **OFF)["choices"][0]["message"]["content"]
    alone = [ask(s) for s in sums]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, sums)) == alone
