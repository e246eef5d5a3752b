"""Three APIs, one completion: plain or streamed, however the model cuts its text, all of them say the same."""
import pytest
import requests
from conftest import call_text
from wires import ask, message_said, response_said, said

APIS = ["chat", "responses", "messages"]
CALL = call_text("get_weather", city="Paris", days=3)
ANSWERS = {
    "text": "Hello, wörld 🙂.",
    "thought": "weighing it\n</think>\n\nThe answer is \"4\".",
    "call": "I look.\n</think>\n\n" + CALL,
    "all": "hm\n</think>\n\nI ask. </b> a < b\n" + CALL + "\n" + call_text("get_weather", city="a\n\"b\" </parameter>"),
    "between": "hm\n</think>\n\nFirst\n" + CALL + "\nthen\n" + call_text("get_weather", city="Rome") + "\nlast",
    "cut call": "hm\n</think>\n\n" + CALL + "\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRo",
    "unclosed": "only thoughts",
    "empty": "</think>\n\n",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_same_by_every_api(server, name):
    mark = server.script([{"text": ANSWERS[name]}])
    want = said("chat", ask(server, "chat", mark))
    for api in APIS:
        for stream in (False, True):
            assert said(api, ask(server, api, mark, stream)) == want, (api, stream)


@pytest.mark.parametrize("api", ["responses", "messages"])
@pytest.mark.parametrize("name", ["thought", "all", "between"])
def test_cut_everywhere(server, api, name):
    text = ANSWERS[name]
    want = said(api, ask(server, api, server.script([{"text": text}])))
    for i in range(1, len(text)):
        mark = server.script([{"text": text[:i]}, {"text": text[i:]}])
        assert said(api, ask(server, api, mark, True)) == want, (i, text[:i])
    letters = server.script([{"text": c} for c in text])
    assert said(api, ask(server, api, letters, True)) == said(api, ask(server, api, letters)) == want


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("limit", [1, 2, 5, 9, 20, 40])
def test_cut_by_a_limit(server, api, limit):
    mark = server.script([{"text": ANSWERS["all"]}])
    want = said("chat", ask(server, "chat", mark, limit=limit))
    assert want[3] == "length"
    for stream in (False, True):
        assert said(api, ask(server, api, mark, stream, limit=limit)) == want


@pytest.mark.parametrize("api", APIS)
def test_stop_string(server, api):
    mark = server.script([{"text": "a END\n</think>\n\nb c END d"}])
    field = "stop_sequences" if api == "messages" else "stop"
    for stream in (False, True):
        answer = ask(server, api, mark, stream, **{field: ["never", "END"]})
        assert said(api, answer) == ("a END", "b c ", [], "stop")
        if api == "messages":
            assert answer["stop_reason"] == "stop_sequence" and answer["stop_sequence"] == "END"


def test_items_keep_their_order(server):
    mark = server.script([{"text": ANSWERS["between"]}])
    kinds = ["reasoning", "text", "call", "text", "call", "text"]
    for stream in (False, True):
        assert [p[0] for p in response_said(ask(server, "responses", mark, stream))[0]] == kinds
        assert [p[0] for p in message_said(ask(server, "messages", mark, stream))[0]] == kinds


@pytest.mark.parametrize("api", APIS)
def test_usage(server, api):
    mark = server.script([{"text": ANSWERS["all"]}])
    chat = server.post({"messages": [{"role": "user", "content": mark}]}).json()["usage"]
    for stream in (False, True):
        if api == "chat":
            continue
        u = ask(server, api, mark, stream, tools=False)["usage"]
        if api == "responses":
            assert (u["input_tokens"], u["output_tokens"]) == (chat["prompt_tokens"], chat["completion_tokens"])
            assert u["output_tokens_details"]["reasoning_tokens"] == chat["completion_tokens_details"]["reasoning_tokens"]
        else:
            assert u["input_tokens"] + u["cache_read_input_tokens"] == chat["prompt_tokens"] and u["output_tokens"] == chat["completion_tokens"]
            assert u["cache_read_input_tokens"] > 0 and u["cache_creation_input_tokens"] == 0


@pytest.mark.parametrize("api", APIS)
def test_a_fault_in_the_middle(server, api):
    mark = server.script([{"text": "hm\n</think>\n\nzz"}, {"fail": "injected"}])
    body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": mark}], "stream": True, "thinking": {"type": "adaptive"}}
    if api == "responses":
        body["input"] = body.pop("messages")
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}[api]
    text = requests.post(server.url + path, json=body).content.decode()
    assert "\"z" in text and "event: error\n" in text and "injected" in text
    assert "[DONE]" not in text and "response.completed" not in text and "message_stop" not in text
    if api == "responses":
        assert text.rstrip().split("\n")[-2] == "event: response.failed"
    plain = requests.post(server.url + path, json={**body, "stream": False})
    assert plain.status_code == 500 and plain.json()["error"]["message"] == "injected"
    assert plain.json().get("type") == ("error" if api == "messages" else None)


def test_keep_alive(start):
    s = start(keepalive_ms=50)
    for api, idle in (("responses", ": keep-alive"), ("messages", "event: ping\ndata: {\"type\":\"ping\"}")):
        mark = s.script([{"delay_ms": 300}, {"text": "late"}])
        body = {"model": "m", "max_tokens": 50, "stream": True, "input" if api == "responses" else "messages": [{"role": "user", "content": mark}]}
        text = requests.post(s.url + "/v1/" + api, json=body).content.decode()
        assert text.count(idle) >= 2 and "late" in text
