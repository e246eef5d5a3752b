"""The Responses and Messages APIs over the mini model, by their official clients: answers, tool loops, streams and counts."""
import json

import anthropic
import pytest
from conftest import Server
from wires import BLOCK, FLAT, block_said

OFF, QUESTION = {"effort": "none"}, "What is the weather in Paris?"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("real"), program="calla-test-server", max_seq=1024, threads=2)
    yield s
    assert s.stop() == 0, s.log_path.read_text()


def test_responses(server):
    client = server.client()
    for fields in ({"reasoning": OFF}, {"reasoning": {"summary": "auto"}}, {}):
        fields = dict(model="mini", input="What is 2 + 3?", temperature=0, max_output_tokens=200, **fields)
        plain = client.responses.create(**fields)
        assert "5" in plain.output_text and plain.status == "completed"
        assert (plain.output[0].type == "reasoning") == ("effort" not in fields.get("reasoning", {}))
        with client.responses.stream(**fields) as stream:
            list(stream)
            final = stream.get_final_response()
        say = lambda r: [(i.type, [c.text for c in i.content or []], [s.text for s in getattr(i, "summary", [])]) for i in r.output]
        assert say(final) == say(plain) and final.usage.output_tokens == plain.usage.output_tokens


def test_responses_tool_loop(server):
    client = server.client()
    fields = dict(model="mini", tools=[FLAT], temperature=0, max_output_tokens=120, reasoning=OFF)
    items = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(input=items, **fields)
    call = first.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments)["city"] == "Paris"
    items += [i.model_dump(exclude_none=True) for i in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"city": "Paris", "weather": "sunny", "temperature": 21})})
    second = client.responses.create(input=items, **fields)
    assert second.output_text and second.status == "completed"
    assert second.usage.input_tokens_details.cached_tokens > 0


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}], ids=str)
def test_messages(server, thinking):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)
    fields = dict(model="mini", messages=[{"role": "user", "content": "What is 2 + 3?"}], thinking=thinking)
    plain = client.messages.create(max_tokens=300, **fields)
    assert "5" in plain.content[-1].text and plain.stop_reason == "end_turn"
    assert [b.type for b in plain.content] == (["text"] if thinking["type"] == "disabled" else ["thinking", "text"])
    with client.messages.stream(max_tokens=300, **fields) as stream:
        list(stream)
        final = stream.get_final_message()
    say = lambda m: [block_said(b.model_dump()) for b in m.content]
    assert say(final) == say(plain)
    counted = client.messages.count_tokens(**fields).input_tokens
    for m in (plain, final):
        assert m.usage.input_tokens + m.usage.cache_read_input_tokens == counted


def test_messages_tool_loop(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)
    fields = dict(model="mini", tools=[BLOCK], max_tokens=120)
    messages = [{"role": "user", "content": QUESTION}]
    first = client.messages.create(messages=messages, **fields)
    use = first.content[-1]
    assert first.stop_reason == "tool_use" and use.input["city"] == "Paris"
    messages += [first.to_param(), {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": json.dumps({"city": "Paris", "weather": "sunny", "temperature": 21})}]}]
    second = client.messages.create(messages=messages, **fields)
    assert second.stop_reason == "end_turn" and second.content[-1].text
    assert second.usage.cache_read_input_tokens > 0
