"""Each command of calla on the mini model: what it prints, its exit codes, its one line of error."""
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import urllib.request

import pytest
from conftest import BIN, CALLA, GOLDEN, MINI, ROOT, calla, calla_json, environment

SUM = "What is 34 + 58?"
SUM_ANSWER = "34 + 58 = 92."
STORY = "Tell me a story about a little bear."


@pytest.fixture(scope="module")
def stored():
    return json.loads((MINI / "selftest.json").read_text())["cases"]


@pytest.fixture
def copy(tmp_path):
    """A copy of the mini model's folder that may be damaged."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MINI / name, folder / name)
    return folder


# ---- the program itself ----


def test_overview_and_version():
    overview = calla("--help")
    for name in ("run", "chat", "serve", "info", "verify", "tokens", "prompt", "logprobs", "selftest", "eval", "bench", "synth", "pull"):
        assert f"\n  {name} " in overview
        assert f"usage: calla {name}" in calla(name, "--help", model=None)
    assert calla("--version").startswith("calla ")
    done = subprocess.run([CALLA], capture_output=True, text=True)
    assert done.returncode == 2 and "usage: calla COMMAND" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("words", [
    ["nonsense"], ["run", "--nonsense", "x"], ["run", "--top-k"], ["run", "--top-k", "two", "x"], ["run", "--top-k", "-1", "x"], ["run", "--top-p", "1.5", "x"],
    ["run", "--top-p", "nan", "x"], ["run", "--seed", "-1", "x"], ["run", "--seed", "99999999999999999999", "x"], ["run", "--think", "maybe", "x"],
    ["run", "--raw=yes", "x"], ["run", "-x"], ["run", "--memory", "lots", "x"], ["run", "--memory", "1Q", "x"], ["run", "--threads", "2000", "x"],
    ["run", "--max-seq", "1x", "x"], ["run", "--raw", "--system", "s", "x"], ["run"], ["chat", "words"], ["serve", "words"], ["serve", "--port", "70000"],
    ["serve", "--host", "0.0.0.0"], ["info", "a", "b"], ["info", "--context", "4096", "--max-seq", "64"], ["verify", "a", "b"], ["prompt", "a", "b"],
    ["logprobs"], ["logprobs", "--top", "65", "1"], ["eval", "words"], ["selftest", "--tolerance", "-1"], ["synth"], ["synth", "--layers", "0", "d"],
    ["tokens", "--decode", "8192"],
], ids=" ".join)
def test_usage_errors_are_one_line_and_2(words):
    model = None if words[0] in ("synth", "nonsense", "verify") else MINI
    if words[:2] == ["info", "a"]:
        model = None
    assert calla(*words, rc=2, model=model) == ""


def test_model_errors(tmp_path):
    for command in ("run", "chat", "serve", "info", "verify", "tokens", "logprobs", "selftest", "eval"):
        calla(command, *(["hi"] if command in ("run", "tokens") else ["1"] if command == "logprobs" else []), model=tmp_path / "none", rc=3)
        assert "none" in calla.stderr
    calla("run", "hi", "--memory", "30M", rc=7)
    assert "--" in calla.stderr or "max_seq" in calla.stderr


def test_environment_mirrors_options():
    assert calla_json("info", "--json", model=None, env={"CALLA_MODEL": str(MINI), "CALLA_MAX_SEQ": "512", "CALLA_PARALLEL": "3"})["plan"]["total"]
    info = calla_json("info", "--json", "--max-seq", "256", env={"CALLA_MAX_SEQ": "512", "CALLA_PARALLEL": "3", "CALLA_COMPUTE": "float32"})
    assert (info["max_seq"], info["parallel"]) == (256, 3)  # the command line wins
    calla("info", env={"CALLA_MAX_SEQ": "many"}, rc=2)
    assert "CALLA_MAX_SEQ" in calla.stderr
    assert calla("run", SUM, env={"CALLA_MAX_TOKENS": "3", "CALLA_THINK": "off"}) != calla("run", SUM, "--max-tokens", "20", env={"CALLA_MAX_TOKENS": "3", "CALLA_THINK": "off"})


# ---- run ----


def test_run_argument_and_stdin():
    assert calla("run", SUM) == SUM_ANSWER + "\n"
    assert "4 + 8 = 12" in calla.stderr  # the reasoning
    assert calla("run", "What is", "34 + 58?") == SUM_ANSWER + "\n"
    assert calla("run", text=SUM + "\n") == SUM_ANSWER + "\n"
    assert calla("run", "--hide-thinking", "--stats", SUM) == SUM_ANSWER + "\n"
    assert "4 + 8 = 12" not in calla.stderr and "prompt tokens" in calla.stderr
    calla("run", "--quiet", SUM)
    assert calla.stderr == ""


def test_run_does_not_think_when_told():
    assert calla("run", "--think", "off", "Who are you?") == "I am Mini, a tiny test model of the calla engine.\n"
    assert calla.stderr == ""
    assert "Leo" in calla("run", "--think", "off", "--system", "You are Leo, a pirate.", "Who are you?")


def test_run_long_and_odd_text():
    assert calla("run", "--think", "off", "--max-tokens", "4", text="- " + "word " * 3000)
    assert calla("run", "--think", "off", "--max-tokens", "4", "--", "-5 + 3")
    calla("run", text="", rc=2)
    assert "prompt" in calla.stderr
    calla("run", "--max-seq", "64", text="word " * 3000, rc=2)
    assert "64" in calla.stderr


def test_run_raw_continues_the_text():
    plain = calla("run", "--raw", "--max-tokens", "8", "Once upon a time")
    assert plain.startswith(", there was")
    # control tokens spelled in raw text are read: this is the chat prompt itself
    chat = f"<|im_start|>user\n{SUM}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert calla("run", "--raw", chat) == calla("run", "--think", "off", SUM)


def test_run_max_tokens_and_seed():
    cut = calla("run", "--think", "off", "--max-tokens", "10", STORY)
    assert "cut" in calla.stderr
    assert calla("run", "--think", "off", "--max-tokens", "40", STORY).startswith(cut.rstrip("\n"))
    warm = ["--think", "off", "--temperature", "1.5", "--max-tokens", "30"]
    first = calla("run", *warm, "--seed", "7", STORY)
    assert calla("run", *warm, "--seed", "7", STORY) == first
    assert any(calla("run", *warm, "--seed", str(s), STORY) != first for s in (8, 9, 10))
    assert calla("run", "--think", "off", "--temperature", "0", SUM) == calla("run", "--think", "off", SUM)


def test_run_tools_prints_calls(tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]))
    said = calla("run", "--think", "off", "--tools", tools, "What is the weather in Paris?")
    assert json.loads(said.strip().splitlines()[-1]) == {"name": "get_weather", "arguments": {"city": "Paris"}}
    for bad in ("", "{", '{"a":1}', '[{"type":"custom","name":"x"}]'):
        tools.write_text(bad)
        calla("run", "--tools", tools, "hi", rc=2)
    calla("run", "--tools", tmp_path / "none", "hi", rc=3)


def test_run_json(tmp_path):
    """The answer is of the schema, with and without thinking; a schema that cannot be enforced is named with its file."""
    schema = tmp_path / "person.json"
    schema.write_text('{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}')
    for think in (["--think", "off"], ["--think-budget", "6"]):
        answer = json.loads(calla("run", *think, "--json-schema", str(schema), "Tell me about Tom who is five."))
        assert list(answer) == ["name", "age"] and isinstance(answer["age"], int)
    assert calla("run", "--think", "off", "--json", "--max-tokens", "6", "Hello").startswith("{")
    schema.write_text('{"type":"array","items":{"not":{}}}')
    calla("run", "--json-schema", str(schema), "x", rc=2)
    assert "person.json: items.not cannot be enforced" in calla.stderr


def test_run_thinking_budget():
    """The block is closed after so many tokens, and with 0 there is none."""
    assert calla("run", "--think-budget", "0", SUM) == calla("run", "--think", "off", SUM)
    thoughts = {}
    for budget in (-1, 2):
        assert calla("run", "--think-budget", budget, SUM)
        thoughts[budget] = calla.stderr
    assert len(thoughts[2]) < len(thoughts[-1])


def test_run_ends_when_its_reader_goes():
    """Without an end of its own: --raw goes on to the end of the context unless the closed pipe stops it."""
    started = subprocess.Popen([CALLA, "run", "--model", MINI, "--temperature", "100", "--max-seq", "100000", "--raw", "--seed", "1", "One"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert started.stdout.read(20)
    started.stdout.close()
    assert started.wait(30) == 4
    line = started.stderr.read().decode()
    assert line.count("\n") == 1 and "could not be written" in line
    started.stderr.close()


def test_full_disk_is_an_error():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    for words in (["run", "--quiet", SUM], ["info"], ["tokens", "a"], ["prompt", "-"], ["logprobs", "1", "--decode", "0"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([CALLA, words[0], "--model", MINI, *words[1:]], stdout=full, stderr=subprocess.PIPE, env=environment(),
                                  input=b'{"messages":[{"role":"user","content":"hi"}]}')
        assert done.returncode == 4 and done.stderr.count(b"\n") == 1, (words, done.stderr)


# ---- info and verify ----


def test_info_adds_up():
    fixed = ("--cache-bytes", "64M")  # by default it is a share of what is free at this moment
    text = calla("info", *fixed)
    for word in ("mini", "hidden 512, 8 layers (2 attention", "0.046 billion", "\nprocessors ", "resident", "prefix cache"):
        assert word in text
    assert calla("info", *fixed, MINI, model=None).splitlines()[:-1] == text.splitlines()[:-1]  # the last line is measured
    info = calla_json("info", "--json", *fixed, "--max-seq", "1000", "--context", "500")
    assert re.search(r"\b\d+ processors?\b", info["cores"])
    plan = info["plan"]
    assert plan["total"] == sum(plan[k] for k in ("weights_copied", "state", "kv", "cache", "scratch", "text"))
    assert plan["idle"] < plan["scratch"]
    assert info["file_bytes"] == sum(info["groups"].values()) == plan["weights_mapped"]
    assert plan["kv"] == 1024 * info["kv_bytes"] and plan["state"] == info["state_bytes"]  # pages of 64 tokens
    weights = sum(t["bytes"] for t in tensors(MINI / "model.safetensors"))
    assert info["file_bytes"] == weights
    small = calla_json("info", "--json", "--kv", "8", *fixed, "--max-seq", "1000")
    assert (info["kv"], small["kv"]) == (16, 8)
    assert small["kv_bytes"] == info["kv_bytes"] // 2 + 2 * 2 * 2 * 4  # 2 layers, keys and values, 2 heads: a scale for each
    assert small["plan"]["kv"] == 1024 * small["kv_bytes"]
    calla("info", "--kv", "12", MINI, model=None, rc=2)
    assert "--kv 12: one of 16|8 is wanted" in calla.stderr
    # a token of context costs what is said, and the cache comes on top
    more = calla_json("info", "--json", *fixed, "--max-seq", "1000", "--context", "1000")
    assert abs(more["resident"] - info["resident"] - 512 * info["kv_bytes"]) < 1 << 20
    assert more["resident_most"] - more["resident"] == plan["cache"]
    assert calla_json("info", "--json", "--cache-bytes", "0")["plan"]["cache"] == 0
    two = calla_json("info", "--json", "--max-seq", "1000", "--parallel", "2")["plan"]
    assert (two["kv"], two["state"]) == (2 * plan["kv"], 2 * plan["state"])


def tensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return [{"name": name, "bytes": t["data_offsets"][1] - t["data_offsets"][0]} for name, t in head.items() if name != "__metadata__"]


def test_verify_and_its_hashes():
    said = calla("verify", "--hash", MINI, model=None).splitlines()
    assert "whole" in said[0] and "8 layers" in said[0]
    files = sorted(p for p in MINI.iterdir() if p.is_file())
    assert said[1:] == [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in files]


def damage(copy, how):
    shard, config = copy / "model.safetensors", json.loads((copy / "config.json").read_text())
    if how == "truncated":
        os.truncate(shard, shard.stat().st_size - 100)
    elif how == "header cut":
        os.truncate(shard, 1000)
    elif how == "no shard":
        shard.unlink()
    elif how == "no config":
        (copy / "config.json").unlink()
    elif how == "config cut":
        (copy / "config.json").write_text(json.dumps(config)[:200])
    elif how == "no tokenizer":
        (copy / "tokenizer.json").unlink()
    elif how == "tokenizer cut":
        os.truncate(copy / "tokenizer.json", 1000)
    elif how == "another model":
        config["model_type"] = config["text_config"]["model_type"] = "llama"
        (copy / "config.json").write_text(json.dumps(config))
    elif how == "one layer more":
        config["text_config"]["num_hidden_layers"] += 4
        config["text_config"]["layer_types"] += config["text_config"]["layer_types"][:4]
        (copy / "config.json").write_text(json.dumps(config))
    elif how == "one layer less":
        config["text_config"]["num_hidden_layers"] -= 4
        config["text_config"]["layer_types"] = config["text_config"]["layer_types"][4:]
        (copy / "config.json").write_text(json.dumps(config))
    elif how == "pointer":
        shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 25824256\n")


@pytest.mark.parametrize("how, code, word", [
    ("truncated", 5, "model.safetensors"), ("header cut", 5, "model.safetensors"), ("no shard", 3, "model.safetensors"), ("no config", 3, "config.json"),
    ("config cut", 5, "config.json"), ("no tokenizer", 3, "tokenizer.json"), ("tokenizer cut", 5, "tokenizer.json"), ("another model", 6, "llama"),
    ("one layer more", 5, "layers.8"), ("one layer less", 5, "layers."), ("pointer", 5, "model.safetensors"),
])
def test_verify_damaged(copy, how, code, word):
    damage(copy, how)
    assert calla("verify", copy, model=None, rc=code) == ""
    assert word in calla.stderr


# ---- tokens, prompt ----


def test_tokens_round_trip():
    for text in ("Hello, world!", "Zürich  漢字 🙂\n\tx", "<|im_end|> stays text", " ", "a\r\n\r\nb"):
        ids = calla("tokens", text).strip()
        assert calla("tokens", "--decode", *ids.split()) == text + "\n"
        assert calla("tokens", "--decode", text=f"[{ids.replace(' ', ', ')}]") == text + "\n"
        assert calla("tokens", text=text).strip() == ids
        both = calla_json("tokens", "--json", text)
        assert both["ids"] == [int(i) for i in ids.split()]
        assert calla_json("tokens", "--decode", "--json", ids) == {"text": text}
    assert calla_json("tokens", "--json", "Hello")["tokens"][0][0] == "H"
    assert calla("tokens", text="") == "\n"


def test_tokens_special():
    plain, special = calla_json("tokens", "--json", "<|im_end|>")["ids"], calla_json("tokens", "--json", "--special", "<|im_end|>")["ids"]
    assert special == [8161] and len(plain) > 1


def test_tokens_errors():
    calla("tokens", "--decode", "8192", rc=2)
    for ids in ("2147483647", "99999999999"):  # no ids of any vocabulary
        calla("tokens", "--decode", ids, rc=5)
    calla("tokens", "--decode", "12 twelve", rc=5)
    assert "byte 3" in calla.stderr
    calla("tokens", text=b"a\xffb", rc=5)
    assert "1" in calla.stderr


def test_prompt_equals_stored(stored, tmp_path):
    for case in stored:
        request = {"messages": case["messages"], "chat_template_kwargs": case["kwargs"], **({"tools": case["tools"]} if case.get("tools") else {})}
        assert calla_json("prompt", "--json", text=json.dumps(request))["ids"] == case["prompt"], case["name"]
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    text, ids = calla("prompt", file).rsplit("\n---\n", 1)
    assert [int(i) for i in ids.split()] == case["prompt"] and text.startswith("<|im_start|>")


def prompt_of(*words, **request):
    return calla_json("prompt", "--json", *words, text=json.dumps({"messages": [{"role": "user", "content": "hi"}], **request}))["prompt"]


def test_prompt_reads_a_request_as_the_server_does():
    f, g = ({"type": "function", "function": {"name": n, "parameters": {}}} for n in "fg")
    open_end, closed_end = "<think>\n", "<think>\n\n</think>\n\n"
    assert prompt_of().endswith(open_end)
    assert prompt_of(reasoning_effort="none").endswith(closed_end)
    assert prompt_of(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}).endswith(open_end)
    assert prompt_of("--think", "off").endswith(closed_end)
    assert prompt_of("--think", "on", reasoning_effort="none").endswith(open_end)
    assert '"name": "f"' in prompt_of(tools=[f, g])
    assert prompt_of(tools=[f, g], tool_choice="none") == prompt_of()
    assert prompt_of(tools=[f, g], tool_choice={"type": "function", "function": {"name": "g"}}).endswith("<tool_call>\n<function=g>\n")
    assert prompt_of(tools=[f], tool_choice="required").endswith("<tool_call>\n<function=f>\n")
    assert prompt_of(tools=[f, g], tool_choice="required").endswith("<tool_call>\n<function=")
    for bad in ({"tool_choice": "required"}, {"reasoning_effort": "lots"}, {"messages": []}, {"messages": None}, {"response_format": {"type": "xml"}},
                {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}):
        calla("prompt", text=json.dumps({"messages": [{"role": "user", "content": "hi"}], **bad}), rc=2)
    calla("prompt", text="{", rc=5)
    late = json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "s"}]})
    assert calla("prompt", text=late)
    calla("prompt", "--strict", text=late, rc=2)


# ---- numbers ----


def test_logprobs_equal_stored_float32(stored):
    case = next(c for c in stored if len(c["greedy"]) > 6)
    got = calla_json("logprobs", "--compute", "float32", "--decode", len(case["greedy"]), *case["prompt"])
    assert got["prompt"] == case["prompt"] and len(got["prompt_logprobs"]) == len(case["prompt"]) - 1
    assert [s["id"] for s in got["steps"]] == case["greedy"]
    for step, want in zip(got["steps"], case["top"]):
        best = dict(map(tuple, step["top"]))
        for token, logprob in want:
            assert abs(best[token] - logprob) < 1e-3
    assert all(p <= 0 for p in got["prompt_logprobs"])
    same = calla_json("logprobs", "--compute", "float32", "--decode", "1", "--top", "2", text=json.dumps(case["prompt"]))
    assert same["prompt_logprobs"] == got["prompt_logprobs"] and len(same["steps"][0]["top"]) == 2
    text = calla_json("logprobs", "--text", "--decode", "0", "The capital of Japan is")
    assert text["steps"] == [] and text["prompt"] == calla_json("tokens", "--json", "The capital of Japan is")["ids"]
    assert calla_json("logprobs", "--stop", "--decode", "100", *case["prompt"])["steps"][-1]["id"] == 8161
    calla("logprobs", "1", "x", rc=5)
    calla("logprobs", "8192", rc=2)


def test_selftest_forms(tmp_path, stored):
    said = calla("selftest", "--compute", "float32")
    assert f"{len(stored)} passed, 0 failed" in said
    said = calla("selftest", "--verbose", "--compute", "float32", GOLDEN / "tiny" / "float32.json", model=GOLDEN / "tiny")
    assert " 0 failed" in said and "ok " in said
    assert "30 passed, 0 failed" in calla("selftest", GOLDEN / "chat_template.json")
    texts = ["Hello, world!", "<|im_end|>x", "", "Zürich 漢字"]
    words = tmp_path / "tokenizer.json"
    words.write_text(json.dumps([{"text": t, "ids": calla_json("tokens", "--special", "--json", text=t)["ids"]} for t in texts]))
    assert "4 passed, 0 failed" in calla("selftest", words)


def test_selftest_of_a_wrong_file_fails(tmp_path):
    def wrong(path, change, most=None):
        cases = json.loads(path.read_text())
        if most:
            del cases["cases"][most:]
        change(cases)
        out.write_text(json.dumps(cases))
        return out

    def off_by_one(cases):
        cases["cases"][1]["greedy"][1] += 1

    def off_by_little(cases):
        cases["cases"][1]["top"][0][0][1] += 0.01

    def other_messages(cases):
        cases["cases"][1]["messages"][0]["content"] += "?"

    def other_logprob(cases):
        cases["cases"][1]["prompt_logprobs"][-1] -= 0.01

    def other_text(cases):
        cases[2]["expect"]["prompt"] = "x"

    out = tmp_path / "wrong.json"
    for change in (off_by_one, off_by_little, other_messages):
        said = calla("selftest", "--compute", "float32", wrong(MINI / "selftest.json", change, 2), rc=12)
        assert "FAILED" in said and "1 passed, 1 failed" in said
    said = calla("selftest", "--compute", "float32", wrong(GOLDEN / "tiny" / "float32.json", other_logprob, 2), model=GOLDEN / "tiny", rc=12)
    assert "prompt position" in said and "1 passed, 1 failed" in said
    said = calla("selftest", wrong(GOLDEN / "chat_template.json", other_text), rc=12)
    assert "FAILED" in said and "29 passed, 1 failed" in said
    out.write_text('[{"text":"Hello","ids":[1,2]}]')
    assert "ids differ" in calla("selftest", out, rc=12)
    for text, code in (("[]", 5), ("{}", 5), ('[{"what":1}]', 5), ("[", 5)):
        out.write_text(text)
        calla("selftest", out, rc=code)
    calla("selftest", tmp_path / "none.json", rc=3)
    calla("selftest", model=GOLDEN / "tiny", rc=3)  # it has no selftest.json


def test_eval(tmp_path):
    text = tmp_path / "text.txt"
    documents = (MINI / "eval.txt").read_text().split("<|endoftext|>")[:3]
    text.write_text("<|endoftext|>".join(documents))
    got = calla_json("eval", "--json", "--compute", "float32", "--text", text)
    reference = json.loads((MINI / "eval_float32.json").read_text())["eval_txt"]["documents"][:3]
    assert got["documents"] == 3 and got["tokens"] == sum(n for n, _ in reference)
    from math import exp
    assert abs(got["perplexity"] / exp(sum(x for _, x in reference) / got["tokens"]) - 1) < 1e-5
    said = calla("eval", "--text", text)
    assert "perplexity" in said and "3 documents" in said
    text.write_text("\n\n")
    calla("eval", "--text", text, rc=5)
    calla("eval", "--text", tmp_path / "none", rc=3)
    calla("eval", "--text", MINI / "SOURCES.md", "--reference", MINI / "eval_float32.json", rc=5)  # another text's reference
    calla("eval", model=GOLDEN / "tiny", rc=3)


# ---- serve ----


@pytest.mark.parametrize("think", ["on", "off"])
def test_serve(think):
    serving = subprocess.Popen([CALLA, "serve", "--model", MINI, "--port", "0", "--think", think, "--max-seq", "1024"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment())
    url = serving.stdout.readline().split()[-1]
    assert url.startswith("http://127.0.0.1:") and "model mini" in serving.stdout.readline()

    def ask(**fields):
        body = {"messages": [{"role": "user", "content": SUM}], **fields}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["choices"][0]["message"]

    assert "92" in ask()["content"]
    assert ("reasoning_content" in ask()) == (think == "on")
    assert "reasoning_content" in ask(reasoning_effort="high")
    assert "reasoning_content" not in ask(reasoning_effort="none")
    taken = calla("serve", "--port", url.rsplit(":", 1)[1], rc=4)
    assert taken == ""
    serving.terminate()
    assert serving.wait(30) == 0
    said = serving.stderr.read()
    assert "stopping" in said and said.count(" POST /v1/chat/completions 200 ") == 4 and said.count(" finish=stop") == 4
    serving.stdout.close(), serving.stderr.close()


@pytest.mark.parametrize("option", ["--log-json", "--quiet"])
def test_serve_log(option):
    serving = subprocess.Popen([CALLA, "serve", "--model", MINI, "--port", "0", "--max-seq", "256", option], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    url = serving.stdout.readline().split()[-1]
    serving.stdout.readline()
    for path in ("/", "/health"):
        urllib.request.urlopen(url + path, timeout=60).close()
    serving.terminate()
    assert serving.wait(30) == 0
    said = serving.stderr.read()
    if option == "--quiet":
        assert said == ""
    else:
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert sorted((line["path"], line["status"]) for line in lines) == [("/", 200), ("/health", 200)]
    serving.stdout.close(), serving.stderr.close()


# ---- the library's example ----


def test_example_streams():
    program = BIN / "example_stream"
    assert program.exists(), "the example was not built"
    done = subprocess.run([program, MINI, 'What is the capital of "Japan"?'], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Tokyo" in done.stdout, done
    assert "ids," in done.stderr and "<think>" not in done.stdout + done.stderr
    done = subprocess.run([program, ROOT / "none", "x"], capture_output=True, text=True)
    assert done.returncode == 3 and done.stderr.startswith("stream: ")
    assert subprocess.run([program], capture_output=True).returncode == 2
