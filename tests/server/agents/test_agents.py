"""Clients and agents that we did not write, each with a tool of its own, over the mini model: it connects, streams, calls the tool, and uses what the tool said.

Between client and server stands a relay, so that what is judged is what went over the wire, not only what the client shows.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import Server
from relay import Relay

QUESTION, CITY, WEATHER = "What is the weather in Paris?", "Paris", "sunny, 21 degrees"
FINAL = re.compile(r"sunny.*Paris", re.S)  # the mini model was trained on this tool, and says what it was told


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("agents"), program="calla-test-server", max_seq=1024, threads=2)
    yield s
    assert s.stop() == 0, s.log_path.read_text()


@pytest.fixture
def relay(server):
    r = Relay(server.port)
    yield r
    r.close()
    assert r.callers == [], "something wanted to leave the machine"


def chat_pieces(exchange):
    """Pieces of content in a chat stream."""
    return [c["delta"]["content"] for e in exchange.events() for c in e["choices"] if c["delta"].get("content")]


def check_chat(relay, streamed):
    """Two requests: the first answered by a call of the tool, the second, with the tool's words, by the answer."""
    first, second = [e for e in relay.exchanges if e.path == "/v1/chat/completions"]
    assert (first.status, second.status) == (200, 200), (first.text, second.text)
    assert [t["function"]["name"] for t in first.body["tools"]] == ["get_weather"] and bool(first.body.get("stream")) == streamed
    called = [m for m in second.body["messages"] if m.get("tool_calls")][0]["tool_calls"][0]
    told = second.body["messages"][-1]
    assert called["function"]["name"] == "get_weather" and json.loads(called["function"]["arguments"]) == {"city": CITY}
    assert told["role"] == "tool" and told["content"] == WEATHER and told["tool_call_id"] == called["id"]
    if streamed:
        assert called["id"] in first.text and len(chat_pieces(second)) > 1 and len(second.pieces) > 1
        return "".join(chat_pieces(second))
    assert json.loads(first.text)["choices"][0]["message"]["tool_calls"][0]["id"] == called["id"]
    return json.loads(second.text)["choices"][0]["message"]["content"]


def check_responses(relay, streamed):
    first, second = [e for e in relay.exchanges if e.path == "/v1/responses"]
    assert (first.status, second.status) == (200, 200), (first.text, second.text)
    assert [t["name"] for t in first.body["tools"]] == ["get_weather"] and bool(first.body.get("stream")) == streamed
    called = next(i for i in second.body["input"] if i.get("type") == "function_call")
    told = second.body["input"][-1]
    assert called["name"] == "get_weather" and json.loads(called["arguments"]) == {"city": CITY}
    assert told["type"] == "function_call_output" and told["output"] == WEATHER and told["call_id"] == called["call_id"] and called["call_id"] in first.text
    if streamed:
        pieces = [e["delta"] for e in second.events() if e["type"] == "response.output_text.delta"]
        assert len(pieces) > 1 and len(second.pieces) > 1 and second.events()[-1]["type"] == "response.completed"
        return "".join(pieces)
    return next(i for i in json.loads(second.text)["output"] if i["type"] == "message")["content"][0]["text"]


# ---- llm, the command line tool ----

@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
def test_llm(relay, tmp_path, api, streamed):
    models = [{"model_id": "calla", "model_name": "mini", "api_base": relay.url, "supports_tools": True, **({"responses": True} if api == "responses" else {})}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    (tmp_path / "tool.py").write_text(f'def get_weather(city: str) -> str:\n    "Get the weather in a city"\n    return {WEATHER!r} if city == {CITY!r} else "unknown"\n')
    words = [str(pathlib.Path(sys.executable).parent / "llm"), "prompt", "-m", "calla", "--functions", str(tmp_path / "tool.py"), "-o", "temperature", "0", QUESTION]
    done = subprocess.run(words + ([] if streamed else ["--no-stream"]), env={**os.environ, **relay.environment(), "LLM_USER_PATH": str(tmp_path)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = (check_chat if api == "chat" else check_responses)(relay, streamed)
    assert FINAL.search(said) and said.strip() in done.stdout


# ---- openai-agents, the library; in a process of its own, as it reads its settings once ----

AGENT = """
import asyncio, json, sys
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)  # traces would go to OpenAI
url, api, streamed, question, weather = sys.argv[1], sys.argv[2], sys.argv[3] == "True", *sys.argv[4:]
cities = []

@function_tool
def get_weather(city: str) -> str:
    "Get the weather in a city"
    cities.append(city)
    return weather

kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
model = kind(model="mini", openai_client=AsyncOpenAI(base_url=url, api_key="none", max_retries=0))
agent = Agent(name="helper", model=model, tools=[get_weather], model_settings=ModelSettings(temperature=0, max_tokens=200))

async def main():
    pieces = 0
    if streamed:
        result = Runner.run_streamed(agent, question)
        async for event in result.stream_events():
            pieces += event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    else:
        result = await Runner.run(agent, question)
    print(json.dumps({"cities": cities, "pieces": pieces, "final": result.final_output}))

asyncio.run(main())
"""


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
def test_openai_agents(relay, api, streamed):
    done = subprocess.run([sys.executable, "-c", AGENT, relay.url, api, str(streamed), QUESTION, WEATHER], env={**os.environ, **relay.environment()}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    said = (check_chat if api == "chat" else check_responses)(relay, streamed)
    assert got["cities"] == [CITY] and got["final"] == said and FINAL.search(said)
    assert (got["pieces"] > 1) == streamed
