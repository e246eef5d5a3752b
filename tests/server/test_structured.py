"""response_format and the thinking budget over the mini model: what comes back always has the form that was asked for, plain and streamed."""
import json

import jsonschema
import pytest
from conftest import WEATHER, Server

OFF = {"reasoning_effort": "none"}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                           "pets": {"type": "array", "items": {"enum": ["cat", "dog", "none"]}, "maxItems": 3}}, "required": ["name", "age", "pets"], "additionalProperties": False}
TREE = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["word", "next"], "additionalProperties": False}
SHORT = [PERSON, {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 2, "maxItems": 4}, {"anyOf": [{"type": "boolean"}, {"const": "maybe"}]},
         {"type": "string", "format": "date"}, {"type": "object", "properties": {"é\"": {"type": "string", "maxLength": 6}}, "required": ["é\""]}]
QUESTION = "Tell me about Tom, who is five and has a cat."


def schema_format(schema, **more):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}}


OBJECT = {"response_format": {"type": "json_object"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("structured"), program="calla-test-server", max_seq=1024, threads=2, thinking_budget=60)
    yield s
    assert s.stop() == 0, s.log_path.read_text()


def valid(choice, schema):
    assert choice["finish_reason"] == "stop", choice
    value = json.loads(choice["message"]["content"])
    jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
    return value


@pytest.mark.parametrize("schema", SHORT, ids=lambda s: json.dumps(s)[:40])
@pytest.mark.parametrize("fields", [OFF, {}, {"temperature": 1.5, "seed": 7}, {"temperature": 1.5, "seed": 8, **OFF}, {"temperature": 1, "seed": 1, "presence_penalty": 2, "repetition_penalty": 1.3, **OFF}], ids=str)
def test_answers_validate(server, schema, fields):
    for choice in server.both(QUESTION, max_tokens=400, **fields, **schema_format(schema, strict=True)):
        valid(choice, schema)
        assert ("reasoning_content" in choice["message"]) == (OFF["reasoning_effort"] not in fields.values())


def test_several_answers(server):
    choices = server.both(QUESTION, max_tokens=300, n=3, temperature=1.5, seed=3, **schema_format(PERSON))
    assert len(choices) == 3 and len({json.dumps(valid(c, PERSON)) for c in choices}) > 1
    single = server.chat(QUESTION, max_tokens=300, temperature=1.5, seed=4, **schema_format(PERSON))["choices"][0]
    assert single["message"] == choices[1]["message"]


def test_recursion(server):
    ended = 0
    for seed in range(4):
        choice = server.chat("Words.", max_tokens=300, temperature=1.2, seed=seed, **OFF, **schema_format(TREE))["choices"][0]
        if choice["finish_reason"] == "stop":
            valid(choice, TREE)
            ended += 1
        else:  # it went on and on
            assert choice["message"]["content"].startswith('{')
    assert ended


def test_any_object(server):
    ended = 0
    for fields in (OFF, {}, {"temperature": 0.8, "seed": 5, **OFF}):
        choice = server.both(QUESTION, max_tokens=500, **fields, **OBJECT)[0]
        assert choice["finish_reason"] != "stop" or isinstance(json.loads(choice["message"]["content"]), dict)
        assert choice["message"]["content"].lstrip("\n").startswith("{")
        ended += choice["finish_reason"] == "stop"
    assert ended


def test_by_the_client(server):
    answer = server.client().chat.completions.create(model="mini", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=300, **schema_format(PERSON))
    assert json.loads(answer.choices[0].message.content)["age"] >= 0


def test_cut_short(server):
    cut = server.both(QUESTION, max_tokens=4, **OFF, **schema_format(PERSON))[0]
    assert cut["finish_reason"] == "length" and cut["message"]["content"].startswith("{")
    stopped = server.both(QUESTION, max_tokens=200, stop=["age"], **OFF, **schema_format(PERSON))[0]
    assert stopped["finish_reason"] == "stop" and stopped["message"]["content"].endswith('"')


def test_log_probabilities_are_the_models_own(server):
    got = server.chat(QUESTION, max_tokens=100, logprobs=True, top_logprobs=3, **OFF, **schema_format({"enum": ["zebra"]}))["choices"][0]
    assert json.loads("".join(t["token"] for t in got["logprobs"]["content"])) == "zebra"
    assert any(t["logprob"] < t["top_logprobs"][0]["logprob"] for t in got["logprobs"]["content"])  # the model would not have said so


def test_beside_tools(server):
    """Content of the form, or calls and no content."""
    kinds = set()
    for seed in range(8):
        for question in ("What is the weather in Paris?", QUESTION):
            choice = server.both(question, max_tokens=300, tools=[WEATHER], temperature=1, seed=seed, **OFF, **schema_format(PERSON))[0]
            kinds.add(choice["finish_reason"])
            if choice["finish_reason"] == "tool_calls":
                assert not choice["message"]["content"] and choice["message"]["tool_calls"][0]["function"]["name"]
            elif choice["finish_reason"] == "stop":
                valid(choice, PERSON)
    assert "tool_calls" in kinds
    forced = server.both("What is the weather in Rome?", tools=[WEATHER], tool_choice="required", max_tokens=120, **schema_format(PERSON))[0]
    assert forced["finish_reason"] == "tool_calls"
    other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    forced = server.both("What is the weather in Rome?", tools=[WEATHER, other], tool_choice="required", max_tokens=120, **schema_format(PERSON))[0]
    assert forced["finish_reason"] == "tool_calls" and forced["message"]["tool_calls"][0]["function"]["name"] in ("get_weather", "get_time")
    valid(server.chat(QUESTION, tools=[WEATHER], tool_choice="none", max_tokens=300, **OFF, **schema_format(PERSON))["choices"][0], PERSON)


BOOK = {"type": "object", "properties": {"title": {"type": "string"}, "seats": {"type": "integer", "minimum": 1, "maximum": 9}, "class": {"enum": ["first", "second"]},
                                         "days": {"type": "array", "items": {"type": "string", "format": "date"}, "maxItems": 2}, "window": {"type": ["boolean", "null"]}}, "required": ["seats", "class"], "additionalProperties": False}


def tool(name, schema, **more):
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def calls_of(choice):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in choice["message"].get("tool_calls", [])]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "book"}}], ids=str)
def test_required_calls_are_held_to_their_schema(server, choice):
    """Whatever the model would rather say: declared names, required parameters, values of their schema; also where others may have any."""
    other = tool("note", {"type": "object"}, strict=False)
    whole = 0
    for seed in range(6):
        got = server.both("Book a train.", max_tokens=500, tools=[tool("book", BOOK), other], tool_choice=choice, temperature=1.3, seed=seed)[0]
        if got["finish_reason"] == "length":
            continue
        assert got["finish_reason"] == "tool_calls", got
        name, arguments = calls_of(got)[0]
        assert name == "book" or (choice == "required" and name == "note")
        if name == "book":
            jsonschema.validate(arguments, BOOK, format_checker=jsonschema.FormatChecker())
            whole += 1
    assert whole


def test_strict_calls(server):
    """With `strict` a call is held to its schema in `auto` as well, once it has begun; content stays free; what cannot be enforced is refused."""
    call = {str(i): 100 for i in server.post({"text": "<tool_call>", "special": True}, "/v1/tokenize").json()["tokens"]}
    for seed in range(4):  # the bias begins a call at once, and within one it is masked
        got = server.both("Book a train.", max_tokens=400, tools=[tool("book", BOOK, strict=True)], temperature=1.3, seed=seed, logit_bias=call, parallel_tool_calls=False, **OFF)[0]
        assert got["finish_reason"] in ("tool_calls", "length"), got
        for _, arguments in calls_of(got):
            jsonschema.validate(arguments, BOOK, format_checker=jsonschema.FormatChecker())
    free = server.both(QUESTION, max_tokens=60, tools=[tool("book", BOOK, strict=True)], tool_choice="none", **OFF)[0]
    assert not calls_of(free) and free["message"]["content"]
    bad = tool("bad", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, strict=True)
    error = server.refuse(400, tools=[tool("book", BOOK, strict=True), bad])
    assert error["param"] == "tools" and "bad" in error["message"] and "uniqueItems" in error["message"]
    del bad["function"]["strict"]
    server.chat("hi", tools=[bad], tool_choice="required", max_tokens=4)


def test_tools_too_large_to_be_held(server):
    """Among them the others are held all the same; these have name and form held, which the client does not notice, and the log counts them. Asked for strictly they are refused."""
    large = [tool(f"large_{i}", {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "pattern": "^(?:a|b)*a(?:a|b){20}%d$" % i}}}}) for i in range(3)]
    names = set()
    for seed in range(4):
        answer = server.chat("Book a train.", max_tokens=500, tools=[large[0], tool("book", BOOK), *large[1:]], tool_choice="required", temperature=1.3, seed=seed)
        if answer["choices"][0]["finish_reason"] == "length":
            continue
        name, arguments = calls_of(answer["choices"][0])[0]
        names.add(name)
        if name == "book":
            jsonschema.validate(arguments, BOOK, format_checker=jsonschema.FormatChecker())
        else:
            assert name in [t["function"]["name"] for t in large]
    assert names
    for choice in large[0], tool("book", BOOK):
        got = server.chat("Book a train.", max_tokens=300, tools=[*large, tool("book", BOOK)], tool_choice={"type": "function", "function": {"name": choice["function"]["name"]}}, temperature=1)
        assert got["choices"][0]["finish_reason"] == "length" or calls_of(got["choices"][0])[0][0] == choice["function"]["name"]
    server.wait(lambda: server.log_path.read_text().count(" loose_tools=3 finish=") == 6)
    before = server.log_path.read_text().count(" loose_tools=")
    server.chat("Book a train.", max_tokens=5, tools=[tool("book", BOOK)], tool_choice="required")
    error = server.refuse(400, tools=[*large, tool("strictly", large[0]["function"]["parameters"], strict=True)])
    assert error["param"] == "tools" and "strictly" in error["message"] and "too large" in error["message"]
    assert server.log_path.read_text().count(" loose_tools=") == before


def test_begun_calls_end_beside_a_form(server):
    """A call that begins in place of the content is a whole one: no prose behind its tag, no end in it."""
    call = {str(i): 100 for i in server.post({"text": "<tool_call>", "special": True}, "/v1/tokenize").json()["tokens"]}
    kinds = set()
    for seed in range(4):
        got = server.both(QUESTION, max_tokens=400, tools=[WEATHER], temperature=1.5, seed=seed, logit_bias=call, parallel_tool_calls=False, **OFF, **schema_format(PERSON))[0]
        kinds.add(got["finish_reason"])
        assert not got["message"]["content"], got
        assert got["finish_reason"] == "length" or calls_of(got)[0][0] == "get_weather"
    assert "tool_calls" in kinds


SPELLED = ["<tool_call><function=get_weather><parameter=city>Rome</parameter></function></tool_call>", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome", "</think><tool_call>"]


@pytest.mark.parametrize("text", SPELLED)
def test_form_that_spells_a_call(server, text):
    """A string of the form is no markup: the content is whole, there is no call, and an end that stands behind it ends the answer."""
    # a call instead of content is allowed as well, and the mini model would begin one
    bias = {str(i): -100 for i in server.post({"text": "<tool_call>", "special": True}, "/v1/tokenize").json()["tokens"]}
    assert len(bias) == 1
    for schema in ({"const": text}, {"const": {"a": text}}):
        for choice in server.both(QUESTION, max_tokens=200, tools=[WEATHER], logit_bias=bias, **OFF, **schema_format(schema)):
            assert choice["finish_reason"] == "stop" and not choice["message"].get("tool_calls"), choice
            assert json.loads(choice["message"]["content"]) == schema["const"]
    begun = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": '"' + text[:3]}]
    if text.startswith("<to"):
        answer = server.post({"messages": begun, "max_tokens": 200, "tools": [WEATHER], **schema_format({"const": text})}).json()["choices"][0]
        assert answer["finish_reason"] == "stop" and json.loads(begun[1]["content"] + answer["message"]["content"]) == text


def test_continued(server):
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": '{"name": "Tom", "age": 1'}]
    answer = server.post({"messages": messages, "max_tokens": 100, **schema_format(PERSON)}).json()["choices"][0]
    value = json.loads(messages[1]["content"] + answer["message"]["content"])
    jsonschema.validate(value, PERSON)
    assert str(value["age"]).startswith("1")
    messages[1]["content"] = "Tom is"
    refused = server.post({"messages": messages, **schema_format(PERSON)})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("schema,keyword", [({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "properties.a.uniqueItems"), ({"not": {}}, "not"),
                                            ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "properties.a.$ref"), ({"type": "string", "pattern": "(?=x)"}, "pattern"), ({"enum": []}, "satisfy")])
def test_refused_by_keyword(server, schema, keyword):
    error = server.refuse(400, **schema_format(schema))
    assert error["param"] == "response_format.json_schema.schema" and keyword in error["message"]


# ---- the thinking budget ----

def usage_of(answer):
    return answer["usage"]["completion_tokens_details"]["reasoning_tokens"]


CLOSE = 3  # ids of "\n</think>\n\n"


@pytest.mark.parametrize("budget", [1, 2, 5, 17])
@pytest.mark.parametrize("fields", [{}, {"temperature": 1, "seed": 2}, schema_format(PERSON), {"n": 2}], ids=str)
def test_budget(server, budget, fields):
    plain = server.chat(QUESTION, max_tokens=300, thinking_budget=budget, **fields)
    assert 0 < usage_of(plain) <= (budget + CLOSE) * len(plain["choices"])
    for choice in server.both(QUESTION, max_tokens=300, thinking_budget=budget, **fields):
        message = choice["message"]
        assert message["content"] and "think>" not in json.dumps(message) and not message["content"].startswith("\n")
        if "response_format" in fields:
            valid(choice, PERSON)


def test_forced_close_counts_as_reasoning(server):
    long = server.chat(QUESTION, max_tokens=300, thinking_budget=-1)
    assert usage_of(long) > 8
    for budget in (1, 4):
        assert usage_of(server.chat(QUESTION, max_tokens=300, thinking_budget=budget)) == budget + CLOSE
    tokens = server.chat(QUESTION, max_tokens=300, thinking_budget=4, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in tokens[4:7]] == ["\n", "</think>", "\n\n"]
    # a block that ends by itself is left alone
    assert usage_of(server.chat(QUESTION, max_tokens=300, thinking_budget=500)) == usage_of(long)


def test_where_the_budget_comes_from(server):
    """chat_template_kwargs before thinking_budget before reasoning_effort before the server's own (here 60)."""
    long = "Repeat: " + "apple, pear, plum, " * 8
    default = server.chat(long, max_tokens=400, temperature=1.5, seed=1)
    assert usage_of(default) <= 60 + CLOSE
    assert usage_of(server.chat(QUESTION, thinking_budget=2, max_tokens=100, reasoning_effort="high")) == 2 + CLOSE
    assert usage_of(server.chat(QUESTION, thinking_budget=7, max_tokens=100, chat_template_kwargs={"thinking_budget": 3})) == 3 + CLOSE
    for none in ({"thinking_budget": 0}, {"chat_template_kwargs": {"thinking_budget": 0}}, {"thinking_budget": 5, "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}}):
        answer = server.chat(QUESTION, max_tokens=60, **none)
        assert usage_of(answer) == 0 and "reasoning_content" not in answer["choices"][0]["message"]
    assert usage_of(server.chat(QUESTION, max_tokens=100, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})) > 0


def test_length_within_the_reasoning(server):
    answer = server.chat(QUESTION, max_tokens=3, thinking_budget=50)["choices"][0]
    assert answer["finish_reason"] == "length" and not answer["message"]["content"] and answer["message"]["reasoning_content"]


def test_quoted_ends_do_not_end_the_form(server):
    """Ends of turn in the reasoning are quotes, after which the engine is asked anew; budget and grammar go on where they were."""
    ends = {str(i): 100 for i in server.post({"text": "<|im_end|>", "special": True}, "/v1/tokenize").json()["tokens"]}
    assert len(ends) == 1
    for budget in (2, 3):
        answer = server.chat(QUESTION, max_tokens=200, thinking_budget=budget, logit_bias=ends, **schema_format(PERSON))
        valid(answer["choices"][0], PERSON)
        assert usage_of(answer) == budget + CLOSE and answer["choices"][0]["message"]["reasoning_content"] == "<|im_end|>" * budget
