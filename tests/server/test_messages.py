"""POST /v1/messages and count_tokens with Anthropic's client: every field, round trips of blocks, what is refused and how."""
import json
import re

import anthropic
import pytest
import requests
from conftest import WEATHER, call_text
from wires import BLOCK, ask, block_said

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
THOUGHT = "weighing it\n</think>\n\nIt is 4."
CALL = "I look.\n</think>\n\n" + call_text("get_weather", city="Paris", days=3)
ON = {"type": "enabled", "budget_tokens": 1024}


def client(server, **options):
    return anthropic.Anthropic(base_url=server.url, api_key=options.pop("api_key", "none"), max_retries=0, timeout=300, **options)


def user(content):
    return [{"role": "user", "content": content}]


def ok(server, **fields):
    r = server.post({"model": "m", "max_tokens": 100, "messages": user("hi"), **fields}, PATH)
    assert r.status_code == 200, r.text
    return r.json()


def refused(server, path=PATH, **fields):
    r = server.post({k: v for k, v in {"model": "m", "max_tokens": 100, "messages": user("hi"), **fields}.items() if v is not ...}, path)
    assert r.status_code == 400, r.text
    body = r.json()
    assert set(body) == {"type", "error"} and body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    return body["error"]["message"]


def count(server, chat):
    return server.post(chat, "/v1/tokenize").json()["count"]


def test_client_plain_and_streamed(server):
    mark = server.script([{"text": CALL}])
    fields = dict(model="m", max_tokens=200, messages=user(mark), tools=[BLOCK], thinking=ON)
    plain = client(server).messages.create(**fields)
    assert [b.type for b in plain.content] == ["thinking", "tool_use"] and plain.stop_reason == "tool_use" and plain.model == "m"
    assert plain.content[1].input == {"city": "Paris", "days": 3}
    with client(server).messages.stream(**fields) as stream:
        list(stream)
        final = stream.get_final_message()
    say = lambda m: [block_said(b.model_dump()) for b in m.content]
    assert say(final) == say(plain) and final.stop_reason == "tool_use"
    assert final.usage.output_tokens == plain.usage.output_tokens
    total = lambda u: u.input_tokens + u.cache_read_input_tokens
    assert total(final.usage) == total(plain.usage)


def test_tool_loop(server):
    mark = server.script([{"text": CALL}], [{"text": THOUGHT}])
    c, messages = client(server), user(mark)
    fields = dict(model="m", max_tokens=200, tools=[BLOCK], thinking=ON, system=[{"type": "text", "text": "A"}, {"type": "text", "text": "B", "cache_control": {"type": "ephemeral"}}])
    first = c.messages.create(messages=messages, **fields)
    use = first.content[-1]
    messages += [first.to_param(), {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "sunny"}]}, {"type": "text", "text": "and?"}]}]
    counted = c.messages.count_tokens(model="m", messages=messages, tools=[BLOCK], thinking=ON, system=fields["system"])
    second = c.messages.create(messages=messages, **fields)
    assert [b.type for b in second.content] == ["thinking", "text"] and second.content[1].text == "It is 4." and second.stop_reason == "end_turn"
    assert counted.input_tokens == second.usage.input_tokens + second.usage.cache_read_input_tokens
    chat = {"messages": [{"role": "system", "content": "A\n\nB"}, {"role": "user", "content": mark},
                         {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": use.input}}]},
                         {"role": "tool", "tool_call_id": "c", "content": "sunny"}, {"role": "user", "content": "and?"}], "tools": [WEATHER],
            "chat_template_kwargs": {"preserve_thinking": True}}  # said beside a result: no question that would end the loop
    assert count(server, chat) == counted.input_tokens


def test_thinking_blocks_come_back(server):
    """Within a tool loop the template shows the model what it thought; redacted thinking has nothing to show."""
    use = {"type": "tool_use", "id": "c", "name": "get_weather", "input": {}}
    tail = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}
    ask_count = lambda *blocks: server.post({"model": "m", "thinking": ON, "messages": user("hi") + [{"role": "assistant", "content": [*blocks, use]}, tail]}, COUNT).json()["input_tokens"]
    thinking = {"type": "thinking", "thinking": "a long thought about it", "signature": "unsigned"}
    assert ask_count(thinking) > ask_count() == ask_count({"type": "redacted_thinking", "data": "xyz"})
    assert ask_count({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}) == ask_count()
    assert ask_count({"type": "mcp_tool_use", "id": "s", "name": "x", "server_name": "y", "input": {}}, {"type": "mcp_tool_result", "tool_use_id": "s", "content": []}) == ask_count()


def test_a_prompt_that_is_too_long(start):
    """In the words at which clients of this API shorten a conversation."""
    s = start(max_seq=64)
    for more in ({}, {"stream": True}):
        answer = s.post({"model": "m", "max_tokens": 10, "messages": user("word " * 200), **more}, "/v1/messages")
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["type"] == "invalid_request_error"
        tokens, maximum = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", error["message"]).groups()
        assert int(tokens) > int(maximum) == 64


def test_results(server):
    chat = lambda text: count(server, {"reasoning_effort": "none", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "t", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]}, {"role": "tool", "content": text}]})
    for block, text in (({"content": "x y"}, "x y"), ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"), ({}, ""), ({"is_error": True}, "error"), ({"is_error": True, "content": "no"}, "no")):
        messages = user("hi") + [{"role": "assistant", "content": [{"type": "text", "text": "t"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", **block}]}]
        assert server.post({"model": "m", "messages": messages}, COUNT).json()["input_tokens"] == chat(text)


def test_system_texts(server):
    base = server.post({"model": "m", "messages": user("hi"), "system": "You are kind."}, COUNT).json()
    line = "x-anthropic-billing-header: cc_version=2.1; cch=%s;"
    for system in ([{"type": "text", "text": line % "aa"}, {"type": "text", "text": "You are kind."}], line % "bb" + "\nYou are kind.", [{"type": "text", "text": "You are kind."}]):
        assert server.post({"model": "m", "messages": user("hi"), "system": system}, COUNT).json() == base
    inside = user("hi") + [{"role": "system", "content": [{"type": "text", "text": "You are kind."}]}]
    assert server.post({"model": "m", "messages": inside}, COUNT).json() == base


def test_prefill_is_continued(server):
    mark = server.script([{"text": " is 4."}])
    m = client(server).messages.create(model="m", max_tokens=50, messages=user(mark) + [{"role": "assistant", "content": "It"}])
    assert m.content[0].text == " is 4."


def test_no_thinking_unless_asked(server):
    mark = server.script([{"text": "It is 4."}])
    for thinking in (None, {"type": "disabled"}):
        m = ok(server, messages=user(mark), thinking=thinking)
        assert m["content"] == [{"type": "text", "text": "It is 4."}]
    thought = server.script([{"text": THOUGHT}])
    for thinking in (ON, {"type": "adaptive"}, {"type": "adaptive", "display": "summarized"}):
        assert [b["type"] for b in ok(server, messages=user(thought), thinking=thinking)["content"]] == ["thinking", "text"]


def test_sampling_and_limits_reach_the_engine(server):
    ok(server, temperature=0.5, top_p=0.25, top_k=7, max_tokens=11)
    got = server.submitted()[-1]
    assert (got["temperature"], got["top_p"], got["top_k"], got["max_tokens"]) == (0.5, 0.25, 7, 11)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_reasons(server, start, stream):
    text = server.script([{"text": "one two three"}])
    assert ask(server, "messages", text, stream, tools=False, thinking=None)["stop_reason"] == "end_turn"
    assert ask(server, "messages", text, stream, tools=False, thinking=None, limit=1)["stop_reason"] == "max_tokens"
    m = ask(server, "messages", text, stream, tools=False, thinking=None, stop_sequences=["two"])
    assert (m["stop_reason"], m["stop_sequence"], m["content"][0]["text"]) == ("stop_sequence", "two", "one ")
    small = start(max_seq=64)
    mark = small.script([{"text": "word " * 100}])
    assert ask(small, "messages", mark, stream, tools=False, thinking=None, limit=4000)["stop_reason"] == "model_context_window_exceeded"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_forced_call(server, choice):
    mark = server.script([{"text": "<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"}])
    m = ok(server, messages=user(mark), tools=[BLOCK], tool_choice=choice)
    assert m["content"][0]["input"] == {"city": "Rome"} and m["stop_reason"] == "tool_use"
    counted = server.post({"model": "m", "messages": user(mark), "tools": [BLOCK], "tool_choice": choice}, COUNT).json()
    assert counted["input_tokens"] == m["usage"]["input_tokens"] + m["usage"]["cache_read_input_tokens"]


def test_one_call_only(server):
    mark = server.script([{"text": call_text("get_weather", city="A") + "\n" + call_text("get_weather", city="B")}])
    m = ok(server, messages=user(mark), tools=[BLOCK], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [b["input"] for b in m["content"]] == [{"city": "A"}]
    m = ok(server, messages=user(mark), tools=[BLOCK])
    assert [b["input"]["city"] for b in m["content"]] == ["A", "B"]
    m = ok(server, messages=user(mark), tools=[BLOCK], tool_choice={"type": "none"})
    assert m["stop_reason"] == "end_turn" and "<tool_call>" in m["content"][0]["text"]


ACCEPTED = [
    {"metadata": {"user_id": "u"}}, {"metadata": {"user_id": None}}, {"stop_sequences": []}, {"service_tier": "auto"}, {"cache_control": {"type": "ephemeral"}}, {"inference_geo": "eu"},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {"type": "custom", **BLOCK}]}, {"tools": [{**BLOCK, "cache_control": {"type": "ephemeral"}, "strict": False, "defer_loading": True}]},
    {"output_config": {"effort": "low"}}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, {"something_new": 1}, {"mcp_servers": []}, {"cache_salt": "s"}, {"seed": 3},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_accepted(server, fields):
    anthropic.types.Message.model_validate(ok(server, **fields))


USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
REFUSED = [
    ({"model": ...}, "model"), ({"max_tokens": ...}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "9"}, "max_tokens"), ({"messages": []}, "messages"), ({"messages": ...}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"), ({"messages": [{"role": "user"}]}, "messages[0].content"), ({"messages": user([{"text": "x"}])}, "messages[0].content[0]"),
    ({"messages": user([{"type": "image", "source": {}}])}, "messages[0].content[0].type"), ({"messages": user([{"type": "document", "source": {}}])}, "messages[0].content[0].type"),
    ({"messages": user([{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}])}, "messages[0].content[0].content[0].type"),
    ({"messages": user([{"type": "tool_result"}])}, "messages[0].content[0].tool_use_id"), ({"messages": user([USE])}, "messages[0].content[0].type"),
    ({"messages": user("x") + [{"role": "assistant", "content": [{**USE, "input": "x"}]}]}, "messages[1].content[0].input"),
    ({"messages": user("x") + [{"role": "assistant", "content": [{**USE, "name": ""}]}]}, "messages[1].content[0].name"),
    ({"system": 1}, "system"), ({"system": [{"type": "image"}]}, "system[0]"), ({"stop_sequences": "x"}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences"), ({"temperature": -1}, "temperature"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"), ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"), ({"tools": [{"type": "text_editor_20250728", "name": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "computer_20250124", "name": "x"}]}, "tools[0].type"), ({"tools": 1}, "tools"), ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
    ({"tools": [BLOCK], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"), ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"), ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"thinking": 3}, "thinking"), ({"output_config": {"effort": "great"}}, "output_config.effort"), ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"), ({"metadata": {"user_id": 1}}, "metadata.user_id"),
    ({"container": "x"}, "container"), ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"), ({"stream": "yes"}, "stream"), ({"messages": user("a" * 400000)}, "prompt is too long: "), ({"tools": [BLOCK, BLOCK]}, "tools[1].name"), ({"tools": [{**BLOCK, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{**BLOCK, "description": 1}]}, "tools[0].description"), ({"tools": [{**BLOCK, "name": f"f{i}"} for i in range(513)]}, "tools"),
]


@pytest.mark.parametrize("fields,what", REFUSED, ids=lambda x: str(x)[:60])
def test_refused(server, fields, what):
    message = refused(server, **fields)
    assert message.startswith(what), message


def test_count_needs_no_limit_and_refuses_alike(server):
    assert refused(server, COUNT, max_tokens=..., messages=...).startswith("messages")
    assert refused(server, COUNT, max_tokens=..., tools=[{"name": "f"}]).startswith("tools[0].input_schema")


def test_errors_have_its_shape(server, start):
    with pytest.raises(anthropic.BadRequestError) as e:
        client(server).messages.create(model="m", max_tokens=10, messages=user([{"type": "image", "source": {"type": "url", "url": "x"}}]))
    assert e.value.body["error"]["type"] == "invalid_request_error"
    shapes = [(requests.get(server.url + PATH), 405, "invalid_request_error"), (requests.post(server.url + PATH + "/batches", json={}), 404, "not_found_error"), (requests.post(server.url + PATH, data="{"), 400, "invalid_request_error"),
              (requests.post(server.url + PATH, data=b"x" * (33 << 20)), 413, "request_too_large")]
    s = start(api_key="secret")
    body = {"model": "m", "max_tokens": 9, "messages": user("hi")}
    shapes.append((requests.post(s.url + PATH, json=body), 401, "authentication_error"))
    shapes.append((requests.post(s.url + PATH, json=body, headers={"x-api-key": "secre"}), 401, "authentication_error"))
    for answer, status, kind in shapes:
        assert answer.status_code == status and answer.json()["type"] == "error" and answer.json()["error"]["type"] == kind, answer.text
    with pytest.raises(anthropic.AuthenticationError):
        client(s, api_key="wrong").messages.create(**body)
    assert client(s, api_key="secret").messages.create(**body).type == "message"
    assert anthropic.Anthropic(base_url=s.url, auth_token="secret", max_retries=0).messages.create(**body).type == "message"
    busy = s.script([{"busy": 1}], [{"text": "x"}])
    headers = {"x-api-key": "secret"}
    requests.post(s.url + PATH, json={**body, "messages": user(busy)}, headers=headers)
    answer = requests.post(s.url + PATH, json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error") and answer.headers["retry-after"]


def test_models_by_its_client(server):
    models = client(server).models.list()
    assert models.data[0].type == "model" and not models.has_more
    assert client(server).models.retrieve(models.data[0].id).display_name == models.data[0].id


def test_error_in_a_stream(server):
    mark = server.script([{"text": "o"}, {"fail": "injected"}])
    with pytest.raises(anthropic.APIStatusError) as e:
        list(client(server).messages.create(model="m", max_tokens=10, messages=user(mark), stream=True))
    assert "injected" in str(e.value.body)
    assert json.loads(json.dumps(e.value.body))["error"]["type"] == "api_error"
