"""What the server's tests share: starting a server, writing scripts, talking to it raw or by the official client."""
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import openai
import pytest
import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CALLA_BIN", ROOT / "build"))
MODEL = ROOT / "models" / "mini"
names = itertools.count()
PATIENCE = 300  # seconds after which an answer counts as lost. A bound in these tests tells right from wrong, not a quiet machine from a busy one


class Server:
    """A server process; scripted unless told otherwise. Options go to its command line, env to its environment."""

    def __init__(self, folder, program="calla-scripted-server", env=None, **options):
        self.folder = pathlib.Path(folder)
        self.trace_path = self.folder / f"trace{next(names)}.jsonl"
        arguments = [str(BIN / program), "--model", str(MODEL)]
        for name, value in options.items():
            for one in value if isinstance(value, list) else [value]:
                arguments += ["--" + name.replace("_", "-"), str(one)]
        environment = dict(os.environ, CALLA_SCRIPTS=str(self.folder), CALLA_TRACE=str(self.trace_path), **(env or {}))
        self.log_path = self.folder / f"log{next(names)}.txt"
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on http://"), (line, self.log_path.read_text())
        self.url = line.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])
        if not options.get("load_ms"):
            self.wait(lambda: requests.get(self.url + "/health").status_code == 200, 120)

    @staticmethod
    def wait(condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.005)

    def script(self, *answers):
        """Answers for the next requests that hold the returned mark."""
        name = f"s{next(names)}"
        (self.folder / f"{name}.json").write_text(json.dumps(answers))
        return f"@script:{name}@"

    def trace(self):
        return [json.loads(line) for line in self.trace_path.read_text().splitlines()]

    def submitted(self):
        return [line for line in self.trace() if line["event"] == "submit"]

    def ended(self, mark):
        return [line for line in self.trace() if line["event"] == "end" and f"@script:{line['script']}@" == mark]

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"), max_retries=0, timeout=PATIENCE, **options)

    def post(self, body, path="/v1/chat/completions", **options):
        return requests.post(self.url + path, **({"json": body} if isinstance(body, (dict, list)) else {"data": body}), timeout=PATIENCE, **options)

    def chat(self, mark="", **fields):
        """A chat whose only message is `mark`; the answer's JSON, which must be a success."""
        answer = self.post({"messages": [{"role": "user", "content": mark}], **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refuse(self, status, path="/v1/chat/completions", **fields):
        """A request that must fail; its error object."""
        fields = fields if path != "/v1/chat/completions" else {"messages": [{"role": "user", "content": "hi"}], **fields}
        answer = self.post(fields, path)
        assert answer.status_code == status, (answer.status_code, answer.text)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def stream(self, mark="", path="/v1/chat/completions", **fields):
        """All of a stream: (chunks, raw text). It must end in [DONE]."""
        body = {"messages": [{"role": "user", "content": mark}], **fields} if path.endswith("chat/completions") else fields
        answer = self.post({**body, "stream": True}, path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = answer.content.decode()
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        assert events[-1] == "data: [DONE]", events[-1]
        return [json.loads(e.removeprefix("data: ")) for e in events[:-1]], text

    def both(self, mark="", **fields):
        """The same request plain and streamed; what is said must be the same. Returns the plain choices."""
        plain = self.chat(mark, **fields)
        chunks, _ = self.stream(mark, stream_options={"include_usage": True}, **fields)
        joined = join(chunks)
        assert [without_ids(c) for c in joined] == [without_ids(c) for c in plain["choices"]]
        first, second = plain["usage"], chunks[-1]["usage"]
        assert chunks[-1]["choices"] == [] and without_cached(second) == without_cached(first)
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, second)]
        assert cached[0] <= cached[1] <= first["prompt_tokens"]  # the second may begin where the first has been
        return plain["choices"]

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        s.settimeout(PATIENCE)
        return s

    def raw(self, data):
        """Send bytes, return everything until the server closes."""
        with self.connect() as s:
            s.sendall(data)
            got = b""
            with contextlib.suppress(ConnectionError):
                while piece := s.recv(65536):
                    got += piece
            return got

    def stats(self):
        return requests.get(self.url + "/health").json()

    def processor_seconds(self):
        user, system = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        """SIGTERM and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.stdout.close()
            self.log.close()


def join(chunks):
    """The choices that a stream's chunks add up to, shaped like a plain answer's; checks that each has one role and one finish."""
    choices = {}
    for chunk in chunks:
        for c in chunk["choices"]:
            to = choices.setdefault(c["index"], {"index": c["index"], "message": {"role": None, "content": "", "reasoning_content": "", "tool_calls": []},
                                                 "logprobs": None, "finish_reason": None})
            assert to["finish_reason"] is None, "a chunk after the last one"
            to["finish_reason"] = c["finish_reason"]
            if c["logprobs"]:
                to["logprobs"] = to["logprobs"] or {"content": [], "refusal": None}
                to["logprobs"]["content"] += c["logprobs"]["content"]
            delta, message = c["delta"], to["message"]
            if "role" in delta:
                assert message["role"] is None
                message["role"] = delta["role"]
            for field in ("content", "reasoning_content"):
                message[field] += delta.get(field, "")
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(message["tool_calls"]) and call["type"] == "function"
                    message["tool_calls"].append({"id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": ""}})
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    for c in choices.values():
        m = c["message"]
        m["refusal"] = None
        if m["tool_calls"] and not m["content"]:
            m["content"] = None
        for field in ("reasoning_content", "tool_calls"):
            if not m[field]:
                del m[field]
        assert c["finish_reason"] in ("stop", "length", "tool_calls")
    return [choices[i] for i in sorted(choices)]


def without_cached(usage):
    return {**usage, "prompt_tokens_details": None}


def without_ids(choice):
    choice = json.loads(json.dumps(choice))
    for call in choice["message"].get("tool_calls", []):
        assert len(call["id"]) == 29 and call["id"].startswith("call_")
        del call["id"]
    return choice


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("server"))
    yield s
    assert s.stop() == 0, s.log_path.read_text()


@pytest.fixture
def start(tmp_path):
    """Start a server of one's own; it is stopped at the end and must have ended well."""
    started = []

    def begin(**options):
        started.append(Server(tmp_path, **options))
        return started[-1]

    yield begin
    codes = [s.stop() for s in started]
    assert not any(codes), [s.log_path.read_text() for s, code in zip(started, codes) if code]


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}


def call_text(name, **parameters):
    inside = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"
