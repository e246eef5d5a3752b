"""What an answer says, whatever API says it: readers of plain answers and of streams that check every rule of the wire on the way."""
import json

import requests
from conftest import WEATHER, join

FLAT = {"type": "function", **WEATHER["function"]}
session = requests.Session()
BLOCK = {"name": "get_weather", "description": WEATHER["function"]["description"], "input_schema": WEATHER["function"]["parameters"]}


def events(text):
    """(name, data) of each event of a stream; comments and pings are left out."""
    out = []
    assert text.endswith("\n\n")
    for block in text[:-2].split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        assert len(lines) == 2 and lines[0].startswith("event: ") and lines[1].startswith("data: "), block
        data = json.loads(lines[1][6:])
        assert data["type"] == lines[0][7:] or lines[0] == "event: error"
        if data["type"] != "ping":
            out.append((data["type"], data))
    return out


# ---- responses ----

def item_said(item):
    if item["type"] == "reasoning":
        parts = item.get("content", []) + item["summary"]
        assert [p["type"] for p in parts] in (["reasoning_text"], ["summary_text"])
        return ("reasoning", parts[0]["text"])
    if item["type"] == "message":
        assert item["role"] == "assistant" and [p["type"] for p in item["content"]] == ["output_text"]
        return ("text", item["content"][0]["text"])
    assert item["type"] == "function_call" and item["call_id"].startswith("call_")
    return ("call", item["name"], item["arguments"])


def response_said(r):
    assert r["object"] == "response" and r["status"] in ("completed", "incomplete") and r["error"] is None and r["store"] is False
    assert (r["incomplete_details"] is None) == (r["status"] == "completed")
    u = r["usage"]
    assert u["total_tokens"] == u["input_tokens"] + u["output_tokens"]
    return [item_said(i) for i in r["output"]], r["status"]


def read_response_stream(text):
    """The final response of a stream whose events are all checked against each other."""
    list_ = events(text)
    assert [e[1]["sequence_number"] for e in list_] == list(range(len(list_)))
    assert [e[0] for e in list_[:2]] == ["response.created", "response.in_progress"]
    assert all(e[1]["response"]["status"] == "in_progress" and e[1]["response"]["output"] == [] for e in list_[:2])
    items, open_item, part, deltas = [], None, None, None
    for name, e in list_[2:-1]:
        kind = name.removeprefix("response.")
        assert e["output_index"] == len(items)
        if kind == "output_item.added":
            assert open_item is None and e["item"]["status"] == "in_progress"
            open_item, deltas, part = e["item"], "", None
            continue
        if kind == "output_item.done":
            assert e["item"]["id"] == open_item["id"] and e["item"]["type"] == open_item["type"]
            assert item_said(e["item"])[-1] == deltas
            items.append(e["item"])
            open_item = None
            continue
        assert e["item_id"] == open_item["id"]
        if kind.endswith("part.added"):
            assert part is None and e["part"]["text"] == ""
            part = e["part"]["type"]
        elif kind.endswith(".delta"):
            assert part == {"response.output_text.delta": "output_text", "response.reasoning_text.delta": "reasoning_text",
                            "response.reasoning_summary_text.delta": "summary_text", "response.function_call_arguments.delta": None}[name]
            deltas += e["delta"]
        elif kind.endswith("part.done"):
            assert e["part"]["text"] == deltas and e["part"]["type"] == part
        else:
            assert kind.endswith(".done") and e["arguments" if "arguments" in kind else "text"] == deltas
    name, last = list_[-1]
    assert open_item is None and name == "response." + last["response"]["status"]
    assert last["response"]["output"] == items and last["response"]["id"] == list_[0][1]["response"]["id"]
    return last["response"]


# ---- messages ----

def block_said(b):
    if b["type"] == "thinking":
        assert b["signature"]
        return ("reasoning", b["thinking"])
    if b["type"] == "text":
        return ("text", b["text"])
    assert b["type"] == "tool_use" and b["id"].startswith("call_")
    return ("call", b["name"], json.dumps(b["input"]))


def message_said(m):
    assert m["type"] == "message" and m["role"] == "assistant"
    assert (m["stop_sequence"] is None) == (m["stop_reason"] != "stop_sequence")
    return [block_said(b) for b in m["content"]], m["stop_reason"]


def read_message_stream(text):
    list_ = events(text)
    assert list_[0][0] == "message_start" and [e[0] for e in list_[-2:]] == ["message_delta", "message_stop"]
    message = list_[0][1]["message"]
    assert message["content"] == [] and message["stop_reason"] is None and message["usage"]["output_tokens"] == 0
    block, given = None, ""
    for name, e in list_[1:-2]:
        assert e["index"] == len(message["content"])
        if name == "content_block_start":
            assert block is None
            block, given = e["content_block"], ""
            assert block.get("text", block.get("thinking", "")) == "" and block.get("input", {}) == {}
        elif name == "content_block_stop":
            if block["type"] == "tool_use":
                block["input"] = json.loads(given)
            message["content"].append(block)
            block = None
        else:
            assert name == "content_block_delta"
            d = e["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "partial_json"}[d["type"]]
            if field == "partial_json":
                assert block["type"] == "tool_use"
                given += d[field]
            else:
                block[field] += d[field]
    assert block is None
    end = list_[-2][1]
    message.update(end["delta"])
    message["usage"].update(end["usage"])
    return message


# ---- the same question by every API ----

def ask(server, api, mark, stream=False, tools=True, limit=None, **fields):
    """The whole answer: of chat the choice, else the object; of a stream what it adds up to."""
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}[api]
    body = {"model": "m", "stream": stream, **fields}
    body["input" if api == "responses" else "messages"] = [{"role": "user", "content": mark}]
    if tools:
        body["tools"] = [{"chat": WEATHER, "responses": FLAT, "messages": BLOCK}[api]]
    if api == "messages":
        body.setdefault("thinking", {"type": "adaptive"})
    if limit or api == "messages":
        body[{"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[api]] = limit or 4000
    answer = session.post(server.url + path, json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    if api == "chat":
        if not stream:
            return answer.json()["choices"][0]
        chunks = [e[6:] for e in answer.content.decode().split("\n\n") if e.startswith("data: {")]
        return join([json.loads(c) for c in chunks])[0]
    if not stream:
        return answer.json()
    return (read_response_stream if api == "responses" else read_message_stream)(answer.content.decode())


def said(api, answer):
    """(reasoning, text, calls, how it ended), the same for all APIs."""
    if api == "chat":
        m = answer["message"]
        calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in m.get("tool_calls", [])]
        return m.get("reasoning_content", ""), m["content"] or "", calls, answer["finish_reason"]
    parts, end = response_said(answer) if api == "responses" else message_said(answer)
    calls = [(p[1], json.loads(p[2])) for p in parts if p[0] == "call"]
    if api == "responses":
        end = "length" if end == "incomplete" else "tool_calls" if calls else "stop"
    else:
        end = {"max_tokens": "length", "tool_use": "tool_calls", "end_turn": "stop", "stop_sequence": "stop"}[end]
    return "".join(p[1] for p in parts if p[0] == "reasoning"), "".join(p[1] for p in parts if p[0] == "text"), calls, end
