"""POST /v1/responses with the official client: every field, round trips of items, what is refused and how."""
import json

import openai
import pytest
from conftest import call_text
from wires import FLAT, ask

PATH = "/v1/responses"
THOUGHT = "weighing it\n</think>\n\nIt is 4."
CALL = "I look.\n</think>\n\n" + call_text("get_weather", city="Paris", days=3)


def submitted(server, **fields):
    """What reached the engine; the request must be a success."""
    answer = server.post(fields, PATH)
    assert answer.status_code == 200, answer.text
    return server.submitted()[-1]


def test_client_plain_and_streamed(server):
    client = server.client()
    mark = server.script([{"text": CALL}])
    fields = dict(model="m", input=mark, tools=[FLAT], instructions="Be brief.", metadata={"a": "b"})
    plain = client.responses.create(**fields)
    assert [item.type for item in plain.output] == ["reasoning", "function_call"] and plain.status == "completed"
    assert plain.instructions == "Be brief." and plain.metadata == {"a": "b"} and plain.tools[0].name == "get_weather" and plain.model == "m"
    with client.responses.stream(**fields) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    say = lambda r: [(i.type, getattr(i, "arguments", None), [c.text for c in getattr(i, "content", None) or []]) for i in r.output]
    assert say(final) == say(plain) and final.usage.output_tokens == plain.usage.output_tokens
    raw = list(client.responses.create(stream=True, **fields))
    assert [e.sequence_number for e in raw] == list(range(len(raw))) and raw[-1].response.output_text == plain.output_text


def test_tool_loop_extends_the_prompt(server):
    """What an agent does: items go back as they came, and make the prompt that a chat of the same makes."""
    client = server.client()
    mark = server.script([{"text": CALL}], [{"text": THOUGHT}])
    items = [{"role": "user", "content": mark}]
    first = client.responses.create(model="m", input=items, tools=[FLAT], store=False)
    call = first.output[-1]
    assert json.loads(call.arguments) == {"city": "Paris", "days": 3}
    items += [i.model_dump(exclude_none=True) for i in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    second = client.responses.create(model="m", input=items, tools=[FLAT], store=False)
    assert second.output_text == "It is 4."
    chat = {"messages": [{"role": "user", "content": mark},
                         {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": call.arguments}}]},
                         {"role": "tool", "tool_call_id": "c", "content": "sunny"}], "tools": [{"type": "function", "function": {k: FLAT[k] for k in ("name", "description", "parameters")}}]}
    same = server.post(chat, "/v1/tokenize").json()["count"]
    assert same == second.usage.input_tokens > first.usage.input_tokens + 20


@pytest.mark.parametrize("how", ["content", "summary", "encrypted"])
def test_reasoning_given_back_in_any_form(server, how):
    mark = server.script([{"text": THOUGHT}])
    extra = {"summary": {"reasoning": {"summary": "auto"}}, "encrypted": {"include": ["reasoning.encrypted_content"]}}.get(how, {})
    plain, streamed = (ask(server, "responses", mark, s, tools=False, **extra) for s in (False, True))
    for r in (plain, streamed):
        item = r["output"][0]
        assert item["type"] == "reasoning" and bool(item["summary"]) == (how == "summary") and ("encrypted_content" in item) == (how == "encrypted")
        if how == "encrypted":
            item = {k: v for k, v in item.items() if k != "content"}
        call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "sunny"}]}
        count = lambda *middle: server.post({"input": [{"role": "user", "content": mark}, *middle, call, result]}, PATH).json()["usage"]["input_tokens"]
        bare = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "weighing it"}]}
        assert count(item) == count(bare) > count()


def test_parts_and_roles(server):
    chat = {"messages": [{"role": "system", "content": "A\n\nB"}, {"role": "user", "content": "xy"}, {"role": "assistant", "content": "z"}, {"role": "user", "content": "w"}]}
    items = [{"type": "message", "role": "developer", "content": "B"}, {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]},
             {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "z", "annotations": []}]},
             {"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"role": "user", "content": "w"}]
    r = server.post({"input": items, "instructions": "A"}, PATH)
    assert r.status_code == 200, r.text
    assert r.json()["usage"]["input_tokens"] == server.post(chat, "/v1/tokenize").json()["count"]


def test_sampling_and_limits_reach_the_engine(server):
    got = submitted(server, input="hi", temperature=0.5, top_p=0.25, top_k=7, seed=3, max_output_tokens=11, reasoning={"effort": "none"})
    assert (got["temperature"], got["top_p"], got["top_k"], got["seed"], got["max_tokens"]) == (0.5, 0.25, 7, 3, 11)


def test_limit_is_incomplete(server):
    mark = server.script([{"text": THOUGHT}])
    r = server.client().responses.create(model="m", input=mark, max_output_tokens=2)
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and r.output[-1].status == "incomplete"
    events = list(server.client().responses.create(model="m", input=mark, max_output_tokens=2, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.output[-1].status == "incomplete"


def test_thinking_off(server):
    mark = server.script([{"text": "It is 4."}])
    r = server.client().responses.create(model="m", input=mark, reasoning={"effort": "none"})
    assert [i.type for i in r.output] == ["message"] and r.output_text == "It is 4." and r.reasoning.effort == "none"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_forced_call(server, choice):
    mark = server.script([{"text": "<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"}])
    r = server.client().responses.create(model="m", input=mark, tools=[FLAT], tool_choice=choice)
    assert [i.type for i in r.output] == ["function_call"] and json.loads(r.output[0].arguments) == {"city": "Rome"}


def test_parallel_tool_calls_false(server):
    mark = server.script([{"text": "</think>\n\n" + call_text("get_weather", city="A") + "\n" + call_text("get_weather", city="B")}])
    r = server.client().responses.create(model="m", input=mark, tools=[FLAT], parallel_tool_calls=False)
    assert [i.type for i in r.output] == ["function_call"] and r.parallel_tool_calls is False


ACCEPTED = [
    {"store": True}, {"store": False}, {"previous_response_id": None}, {"include": []}, {"include": ["file_search_call.results"]}, {"truncation": "disabled"},
    {"service_tier": "auto"}, {"user": "u"}, {"safety_identifier": "s"}, {"prompt_cache_key": "k"}, {"prompt_cache_retention": "24h"}, {"background": False},
    {"max_tool_calls": 3}, {"top_logprobs": 0}, {"metadata": {"k": "v"}}, {"text": {"format": {"type": "text"}, "verbosity": "medium"}}, {"stream_options": {"include_obfuscation": False}},
    {"tools": [{"type": "web_search"}, FLAT]}, {"tools": [FLAT], "tool_choice": "none"}, {"reasoning": {"effort": "high", "summary": "detailed"}}, {"reasoning": {"generate_summary": "concise"}},
    {"something_new": {"a": 1}}, {"stop": ["x"]}, {"cache_salt": "s"}, {"context_management": []},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_accepted(server, fields):
    r = server.post({"input": "hi", **fields}, PATH)
    assert r.status_code == 200, r.text
    assert r.json()["store"] is False
    openai.types.responses.Response.model_validate(r.json())


CALL_ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
REFUSED = [
    ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 3}, "input"), ({"input": ["a"]}, "input[0]"), ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"), ({"input": [{"type": "custom_tool_call"}]}, "input[0].type"),
    ({"input": [{"type": "local_shell_call"}]}, "input[0].type"), ({"input": [{"type": "compaction"}]}, "input[0].type"), ({"input": [{"type": "news"}]}, "input[0].type"),
    ({"input": [{**CALL_ITEM, "arguments": "[1"}]}, "input[0].arguments"), ({"input": [{**CALL_ITEM, "arguments": "[1]"}]}, "input[0].arguments"), ({"input": [{**CALL_ITEM, "name": ""}]}, "input[0].name"),
    ({"input": [{**CALL_ITEM, "call_id": 1}]}, "input[0].call_id"), ({"input": [CALL_ITEM, {"type": "function_call_output", "call_id": "c"}]}, "input[1].output"),
    ({"input": [CALL_ITEM, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]}, "input[1].output[0].type"),
    ({"instructions": 1}, "instructions"), ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"conversation": "conv_1"}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"), ({"store": "yes"}, "store"), ({"truncation": "auto"}, "truncation"), ({"top_logprobs": 3}, "top_logprobs"), ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"include": "x"}, "include"), ({"moderation": {"model": "m"}}, "moderation"), ({"context_management": [{"type": "compaction"}]}, "context_management"), ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"), ({"reasoning": {"effort": "great"}}, "reasoning.effort"), ({"reasoning": {"summary": "long"}}, "reasoning.summary"), ({"reasoning": 1}, "reasoning"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"), ({"text": {"format": {"type": "yaml"}}}, "text.format.type"), ({"text": []}, "text"), ({"tools": {}}, "tools"), ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"), ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"), ({"tools": [{"type": "function", "strict": True}]}, "tools[0].name"), ({"tools": [FLAT, FLAT]}, "tools[1].name"),
    ({"tools": [{"type": "function", "name": "a", "parameters": []}]}, "tools[0].parameters"), ({"tool_choice": "required"}, "tool_choice"), ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.type"), ({"metadata": 1}, "metadata"), ({"user": 1}, "user"), ({"stream": 1}, "stream"),
    ({"prompt_cache_key": 1}, "prompt_cache_key"), ({"parallel_tool_calls": 1}, "parallel_tool_calls"), ({"input": "a" * 400000}, "input"),
]


@pytest.mark.parametrize("fields,param", REFUSED, ids=lambda x: str(x)[:60])
def test_refused(server, fields, param):
    error = server.refuse(400, PATH, **{"input": "hi", **fields})
    assert error["param"] == param and error["type"] == "invalid_request_error", error
    assert "chat" not in error["message"] or "completions" in error["message"]


def test_a_very_large_echo_is_left_out(server):
    r = server.post({"input": "hi", "max_output_tokens": 1, "tools": [{"type": "web_search", "note": "x" * (2 << 20)}]}, PATH)
    assert r.status_code == 200 and r.json()["tools"] == []


def test_error_classes(server, start):
    with pytest.raises(openai.BadRequestError) as e:
        server.client().responses.create(model="m", input="hi", previous_response_id="resp_1")
    assert e.value.param == "previous_response_id"
    s = start(api_key="secret")
    with pytest.raises(openai.AuthenticationError):
        s.client(api_key="wrong").responses.create(model="m", input="hi")
    assert s.client(api_key="secret").responses.create(model="m", input="hi").status == "completed"


def test_models(server):
    client = server.client()
    name = client.models.list().data[0].id
    assert client.models.retrieve(name).id == name
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("another/model")
    assert e.value.code == "model_not_found" and e.value.param == "model"
    assert server.post({}, f"/v1/models/{name}").status_code == 405
