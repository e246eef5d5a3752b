"""Every documented field: honoured, or refused by its name; and what is not a request at all."""
import json
import pathlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import WEATHER

TEXT = "/v1/completions"

# field, a value that cannot be honoured, the param of the error
REFUSED = [
    ("messages", [], "messages"), ("messages", "hi", "messages"), ("messages", None, "messages"), ("messages", [1], "messages[0]"),
    ("messages", [{"role": "user", "content": 1}], "messages[0].content"), ("messages", [{"role": "wizard", "content": "x"}], "messages[0].role"),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}]}], "messages[0].content[1].type"),
    ("messages", [{"role": "user", "content": "x"}, {"role": "tool", "content": [{"type": "input_audio"}]}], "messages[1].content[0].type"),
    ("model", 3, "model"), ("stream", "yes", "stream"), ("stream", 1, "stream"), ("stream_options", {"include_usage": True}, "stream_options"),
    ("max_tokens", 0, "max_tokens"), ("max_tokens", -1, "max_tokens"), ("max_tokens", 1.5, "max_tokens"), ("max_tokens", "9", "max_tokens"),
    ("max_completion_tokens", 0, "max_completion_tokens"), ("temperature", -0.1, "temperature"), ("temperature", 2.1, "temperature"), ("temperature", "hot", "temperature"),
    ("top_p", 1.1, "top_p"), ("top_p", -1, "top_p"), ("top_k", -2, "top_k"), ("top_k", 0.5, "top_k"), ("min_p", 2, "min_p"),
    ("presence_penalty", 3, "presence_penalty"), ("frequency_penalty", -3, "frequency_penalty"), ("repetition_penalty", 0, "repetition_penalty"),
    ("seed", 1.5, "seed"), ("seed", "x", "seed"), ("stop", "", "stop"), ("stop", [""], "stop"), ("stop", [1], "stop"), ("stop", ["a"] * 17, "stop"), ("stop", {}, "stop"), ("stop", "x" * 1025, "stop"), ("model", "x" * 1025, "model"),
    ("n", 0, "n"), ("n", 17, "n"), ("logprobs", 1, "logprobs"), ("top_logprobs", 2, "top_logprobs"), ("logit_bias", {"x": 1}, "logit_bias"),
    ("logit_bias", {"999999": 1}, "logit_bias"), ("logit_bias", {"5": 101}, "logit_bias"), ("logit_bias", {"05": 1}, "logit_bias"), ("logit_bias", [], "logit_bias"),
    ("tools", {}, "tools"), ("tools", [1], "tools[0]"), ("tools", [{}], "tools[0].type"), ("tools", [{"type": "function"}], "tools[0].function"),
    ("tools", [{"type": "function", "function": {}}], "tools[0].function.name"), ("tools", [{"type": "function", "function": {"name": "a>b"}}], "tools[0].function.name"),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": 3}}], "tools[0].function.parameters"), ("tools", [{"type": "custom"}], "tools[0].type"),
    ("tools", [{"type": "computer_use_preview"}], "tools[0].type"), ("tools", [WEATHER, WEATHER], "tools[1].function.name"),
    ("tools", [{"type": "function", "function": {"name": f"f{i}"}} for i in range(513)], "tools"),
    ("tool_choice", "always", "tool_choice"), ("tool_choice", "required", "tool_choice"), ("tool_choice", 1, "tool_choice"),
    ("tool_choice", {"type": "function", "function": {"name": "nobody"}}, "tool_choice.function.name"), ("tool_choice", {"type": "allowed_tools"}, "tool_choice.type"),
    ("parallel_tool_calls", "no", "parallel_tool_calls"), ("response_format", {"type": "xml"}, "response_format.type"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema"), ("response_format", "text", "response_format"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}, "response_format.json_schema.schema"),
    ("thinking_budget", -2, "thinking_budget"), ("thinking_budget", "long", "thinking_budget"),
    ("chat_template_kwargs", {"thinking_budget": 1.5}, "chat_template_kwargs.thinking_budget"),
    ("reasoning_effort", "enormous", "reasoning_effort"), ("reasoning_effort", 1, "reasoning_effort"), ("chat_template_kwargs", [], "chat_template_kwargs"),
    ("chat_template_kwargs", {"enable_thinking": "yes"}, "chat_template_kwargs.enable_thinking"), ("cache_salt", 1, "cache_salt"), ("user", 1, "user"), ("metadata", "x", "metadata"),
    ("store", "x", "store"), ("functions", [{"name": "f"}], "functions"), ("function_call", "auto", "function_call"), ("audio", {"voice": "a"}, "audio"),
    ("modalities", ["text", "audio"], "modalities"), ("web_search_options", {}, "web_search_options"), ("verbosity", "low", "verbosity"),
]


@pytest.mark.parametrize("field,value,param", REFUSED, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(REFUSED)])
def test_refused(server, field, value, param):
    for more in ({}, {"stream": True}) if not field.startswith("stream") else ({},):
        error = server.refuse(400, **more, **{field: value})
        assert error["param"] == param and error["type"] == "invalid_request_error" and error["code"] == "invalid_request"


def test_image_error_names_the_type(server):
    error = server.refuse(400, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    assert "image_url" in error["message"]


def test_null_is_absent(server):
    fields = ["model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
              "repetition_penalty", "seed", "stop", "n", "logprobs", "top_logprobs", "logit_bias", "tools", "tool_choice", "parallel_tool_calls", "response_format",
              "thinking_budget", "reasoning_effort", "chat_template_kwargs", "cache_salt", "user", "metadata", "store", "functions", "function_call", "audio", "modalities", "verbosity"]
    answer = server.chat(server.script([{"text": "</think>ok"}]), **dict.fromkeys(fields))
    assert answer["choices"][0]["message"]["content"] == "ok"


def test_unknown_and_harmless_fields_are_ignored(server):
    mark = server.script([{"text": "</think>ok"}])
    body = {"messages": [{"role": "user", "content": mark, "id": "m1", "cache_control": {"type": "ephemeral"}, "name": "me"}], "store": True, "metadata": {"a": "b"}, "user": "me",
            "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s", "prediction": {"type": "content", "content": "x"}, "made_up": {"deep": [1, {"er": None}]},
            "response_format": {"type": "text", "extra": 1}, "modalities": ["text"], "verbosity": "medium", "cache_salt": "pepper", "stop": [], "tools": [],
            "tool_choice": "auto", "logit_bias": {}}
    answer = server.post(body)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize("body", ["", "{", "[]", "3", "{\"messages\":[}", "{\"a\":1,\"a\":2}", "{} x", "\x00", "{'a':1}", "{\"a\":NaN}", "\"\\ud800\"", "[" * 100000,
                                  "{\"x\":" + "[" * 5000 + "]" * 5000 + "}", "{\"tools\":" + "{\"a\":" * 3000 + "1" + "}" * 3000 + "}"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", TEXT, "/v1/tokenize", "/v1/detokenize"])
def test_not_a_request(server, body, path):
    answer = server.post(body.encode("utf-8", "surrogatepass"), path)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_invalid_utf8(server):
    assert server.post(b'{"messages":[{"role":"user","content":"\xff"}]}').status_code == 400


def test_too_long_a_prompt(start):
    s = start(max_seq=64)
    error = s.refuse(400, messages=[{"role": "user", "content": "word " * 200}])
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
    assert s.refuse(400, TEXT, prompt="word " * 200)["param"] == "prompt"
    assert s.chat(s.script([{"text": "x " * 500}]), reasoning_effort="none")["choices"][0]["finish_reason"] == "length"


def test_full_queue_is_429(start):
    s = start(env={"CALLA_PARALLEL": "1", "CALLA_QUEUE": "1"})
    hold = s.script([{"hold": True}])
    streams = [requests.post(s.url + "/v1/chat/completions", json={"messages": [{"role": "user", "content": hold}], "stream": True}, stream=True) for _ in range(2)]
    answer = s.post({"messages": [{"role": "user", "content": "x"}]})
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) >= 1 and answer.json()["error"]["code"] == "busy"
    streams[0].close()
    streams[1].close()
    s.wait(lambda: s.stats()["running"] == 0)
    assert s.post({"messages": [{"role": "user", "content": hold}], "n": 3}).status_code == 429  # the two that fit are given back
    s.wait(lambda: s.stats() == {"status": "ok", "running": 0, "waiting": 0})


def test_most_tools_that_are_allowed(server):
    tools = [{"type": "function", "function": {"name": f"do_thing_number_{i}"}} for i in range(512)]
    answer = server.chat(server.script([{"text": "9>\n</function>\n</tool_call>"}]), tools=tools, tool_choice="required")
    assert server.submitted()[-1]["has_mask"] == 1 and answer["choices"][0]["finish_reason"] in ("tool_calls", "stop")


def memory(server):
    """Resident bytes of the server."""
    return int(next(line for line in open(f"/proc/{server.process.pid}/status") if line.startswith("VmRSS")).split()[1]) << 10


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="no /proc")
def test_waiting_requests_keep_little(start):
    s = start(env={"CALLA_PARALLEL": "1", "ASAN_OPTIONS": "quarantine_size_mb=8"})
    hold = s.script([{"hold": True}])
    numbers = "[" + "0," * 1_000_000 + "0]"  # 2 MB that make a tree of 100 MB
    before = memory(s)
    clients = []
    for i in range(8):
        path, prompt = (("/v1/chat/completions", '"messages":[{"role":"user","content":"%s"}]'), (TEXT, '"prompt":"%s"'))[i % 2]
        body = b"{" + (prompt % hold).encode() + b',"n":2,"stop":"END","other":' + numbers.encode() + b"}"
        clients.append(s.connect())
        clients[-1].sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        s.wait(lambda: s.stats()["running"] + s.stats()["waiting"] == 2 * i + 2)
    assert memory(s) - before < 100 << 20, f"{(memory(s) - before) >> 20} MiB"
    for c in clients:
        c.close()
    s.wait(lambda: s.stats() == {"status": "ok", "running": 0, "waiting": 0})


# ---- text completions, tokens, metrics ----

def test_text_completion(server):
    mark = server.script([{"text": " in a land. <think>kept</think> STOP here"}])
    answer = server.post({"prompt": "Once upon a time " + mark, "max_tokens": 100, "stop": "STOP", "logprobs": 2}, TEXT).json()
    choice = answer["choices"][0]
    assert answer["object"] == "text_completion" and choice["text"] == " in a land. <think>kept</think> " and choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["text_offset"]) == len(choice["logprobs"]["top_logprobs"])
    assert server.submitted()[-1]["prompt"].startswith("Once upon") and choice["logprobs"]["text_offset"][0] == 0
    chunks, _ = server.stream(path=TEXT, prompt="Once upon a time " + mark, max_tokens=100, stop="STOP", logprobs=2, stream_options={"include_usage": True})
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == choice["text"] and chunks[-1]["usage"] == answer["usage"]
    assert [t for c in chunks if c["choices"] for t in c["choices"][0]["logprobs"]["tokens"]] == choice["logprobs"]["tokens"]


def test_text_completion_prompts(server):
    mark = server.script([{"text": "x"}])
    ids = server.post({"text": "a list " + mark}, "/v1/tokenize").json()["tokens"]
    answer = server.post({"prompt": ["one " + mark, ids], "n": 2, "echo": True}, TEXT)
    if answer.status_code == 400:  # a mixed list is allowed, one by one
        raise AssertionError(answer.text)
    answer = answer.json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == ["one " + mark + "x"] * 2 + ["a list " + mark + "x"] * 2
    assert server.post({"prompt": ids}, TEXT).json()["choices"][0]["text"] == "x"
    assert server.post({"prompt": "six " + mark}, TEXT).json()["usage"]["prompt_tokens"] == server.submitted()[-1]["n_prompt"]


@pytest.mark.parametrize("fields,param", [({}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": [1, -1]}, "prompt"), ({"prompt": [10**9]}, "prompt"),
                                          ({"prompt": "x", "suffix": "y"}, "suffix"), ({"prompt": "x", "best_of": 2}, "best_of"), ({"prompt": ["x"] * 17}, "prompt"),
                                          ({"prompt": ["x"] * 9, "n": 2}, "n"), ({"prompt": "x", "logprobs": 21}, "logprobs"), ({"prompt": "x", "max_tokens": 0}, "max_tokens")])
def test_text_refused(server, fields, param):
    assert server.refuse(400, TEXT, **fields)["param"] == param


def test_tokenize_and_back(server):
    text = "Hello <|im_end|> 漢字 🙂"
    plain = server.post({"text": text}, "/v1/tokenize").json()
    special = server.post({"text": text, "special": True}, "/v1/tokenize").json()
    assert plain["count"] == len(plain["tokens"]) > special["count"]
    for tokens in (plain["tokens"], special["tokens"]):
        assert server.post({"tokens": tokens}, "/v1/detokenize").json() == {"text": text}
    chat = server.post({"messages": [{"role": "user", "content": "hi"}]}, "/v1/tokenize").json()
    assert server.post({"tokens": chat["tokens"]}, "/v1/detokenize").json()["text"].startswith("<|im_start|>user\nhi<|im_end|>")
    for path, body in (("/v1/tokenize", {}), ("/v1/tokenize", {"text": 1}), ("/v1/detokenize", {"tokens": [-1]}), ("/v1/detokenize", {"tokens": ["a"]}), ("/v1/detokenize", {})):
        assert server.refuse(400, path, **body)["param"] in ("text", "tokens")


@pytest.mark.parametrize("fields", [{}, {"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"preserve_thinking": True}},
                                    {"tools": [WEATHER, {"type": "web_search"}]}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": [WEATHER], "tool_choice": "required"},
                                    {"cache_salt": "x"}], ids=str)
def test_tokenize_gives_the_ids_of_a_chat(server, fields):
    mark = server.script([{"text": "thought</think>word", }])
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "c"}, {"role": "user", "content": mark}]
    tokens = server.post({"messages": messages, **fields}, "/v1/tokenize").json()["tokens"]
    assert server.post({"messages": messages, **fields}).status_code == 200
    assert tokens == server.submitted()[-1]["ids"]


def test_tokenize_remembers_as_a_chat_does(server):
    """Ids that the tokenizer would not choose come back with their text, here and there."""
    ids = [server.post({"text": letter}, "/v1/tokenize").json()["tokens"][0] for letter in "the weather"]
    mark = server.script([{"ids": ids}])
    messages = [{"role": "user", "content": mark}]
    assert server.post({"messages": messages, "reasoning_effort": "none"}).json()["choices"][0]["message"]["content"] == "the weather"
    messages += [{"role": "assistant", "content": "the weather"}, {"role": "user", "content": mark}]
    body = {"messages": messages, "reasoning_effort": "none", "chat_template_kwargs": {"preserve_thinking": True}}
    tokens = server.post(body, "/v1/tokenize").json()["tokens"]
    assert server.post(body).status_code == 200 and tokens == server.submitted()[-1]["ids"]
    assert any(tokens[i:i + len(ids)] == ids for i in range(len(tokens)))


def test_tokenize_refuses_what_a_chat_refuses(server):
    for fields, param in (({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"), ({"tool_choice": "required"}, "tool_choice"), ({"messages": []}, "messages")):
        assert server.refuse(400, "/v1/tokenize", **{"messages": [{"role": "user", "content": "x"}], **fields})["param"] == param


def test_health_answers_while_a_long_prompt_is_read(server):
    text = "The quick brown fox jumps over 13 lazy dogs. " * (5_000_000 // 45)
    with ThreadPoolExecutor(2) as pool:
        long = [pool.submit(server.post, {"text": text}, "/v1/tokenize"), pool.submit(server.post, {"messages": [{"role": "user", "content": text}]})]
        times, first = [], time.monotonic()
        while not all(f.done() for f in long):
            began = time.monotonic()
            assert requests.get(server.url + "/health", timeout=300).status_code == 200
            times.append(time.monotonic() - began)
        assert long[0].result().json()["count"] > 500_000 and long[1].result().json()["error"]["code"] == "context_length_exceeded"
    assert len(times) > 5 and max(times) < 0.5 * (time.monotonic() - first)  # none waited for a text


def test_models(server):
    answer = requests.get(server.url + "/v1/models").json()
    assert answer["object"] == "list" and answer["data"][0]["id"] == "test-model" and answer["data"][0]["context_length"] == 32768
    assert server.client().models.list().data[0].id == "test-model"


def test_metrics(server):
    def read():
        answer = requests.get(server.url + "/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
        assert all(len(line.split(" ")) == 2 and float(line.split(" ")[1]) >= 0 for line in lines)
        return {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines}

    before = read()
    usage = server.chat(server.script([{"text": "one two"}]), reasoning_effort="none")["usage"]
    server.wait(lambda: read()["calla_completion_tokens_total"] > before["calla_completion_tokens_total"])
    after = read()
    assert after["calla_completion_tokens_total"] - before["calla_completion_tokens_total"] == usage["completion_tokens"]
    assert after['calla_completions_total{finish="stop"}'] - before['calla_completions_total{finish="stop"}'] == 1
    assert after["calla_time_to_first_token_seconds_count"] - before["calla_time_to_first_token_seconds_count"] == 1 and after["calla_engine_up"] == 1
    assert after["calla_cache_block_bytes"] == 4096 and after["calla_cache_hits_total"] == 7 and after["calla_cache_misses_total"] == 3
    assert [after['calla_cache_blocks{use="%s"}' % use] for use in ("free", "running", "pages", "snapshots")] == [40, 30, 20, 10]
    assert after["calla_cache_prompt_tokens_total"] == 1234 and after["calla_cache_disk_bytes"] == 2**33
