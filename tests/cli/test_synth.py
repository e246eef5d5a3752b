"""calla synth, and memory in the published shapes: some gigabytes of disk and a minute, so in the slow tier."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest
from conftest import CALLA, MINI, calla, calla_json, environment

GIGABYTE = 1 << 30


def hashes(folder):
    return calla("verify", "--hash", folder, model=None).splitlines()[1:]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Three gated deltanet layers and one of attention in the published shapes."""
    folder = tmp_path_factory.mktemp("synth") / "four"
    if shutil.disk_usage(folder.parent).free < 6 * GIGABYTE:
        pytest.fail("6 GB of disk are needed")
    said = calla("synth", "--quiet", "--layers", "4", folder)
    assert "4 layers" in said and calla.stderr == ""
    yield folder
    shutil.rmtree(folder)


def test_same_seed_same_bytes(tmp_path):
    found = []
    for seed in (1, 1, 2):
        folder = tmp_path / "one"
        calla("synth", "--quiet", "--layers", "1", "--seed", seed, folder)
        found.append(hashes(folder))
        shutil.rmtree(folder)
    assert found[0] == found[1]
    assert [a.split()[1] for a in found[0]] == [a.split()[1] for a in found[2]]
    assert {a.split()[1] for a, b in zip(found[0], found[2]) if a != b} == {"model-00001-of-00001.safetensors"}


def test_it_runs(four):
    assert calla("verify", four, model=None).count("whole") == 1
    info = calla_json("info", "--json", model=four)
    assert (info["hidden"], info["layers"], info["attention_layers"], info["vocab"], info["experts"]) == (2048, 4, 1, 248320, 256)
    first = calla("run", "--max-tokens", "5", "--think", "off", "hi", model=four)
    assert calla("run", "--max-tokens", "5", "--think", "off", "hi", model=four) == first
    # random weights whose activations stay in a sane range: no id is certain, none impossible
    got = calla_json("logprobs", "--decode", "2", *range(1, 65), model=four)
    assert all(-60 < p < 0 for p in got["prompt_logprobs"])


def test_a_tokenizer_of_ones_own(tmp_path):
    calla("synth", "--layers", "1", "--quiet", "--tokenizer", MINI, tmp_path / "own")
    assert (tmp_path / "own" / "tokenizer.json").read_bytes() == (MINI / "tokenizer.json").read_bytes()
    calla("synth", "--layers", "1", "--quiet", tmp_path / "none" / "below", rc=4)
    shutil.rmtree(tmp_path / "own")


class Serving:
    def __init__(self, folder, *words):
        self.process = subprocess.Popen([CALLA, "serve", "--port", "0", "--quiet", "--model", folder, *words], stdout=subprocess.PIPE, text=True, env=environment())
        self.url = self.process.stdout.readline().split()[-1]
        self.process.stdout.readline()

    def memory(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return {k: 1024 * int(v) for k, v in re.findall(r"(RssAnon|RssFile|VmLck):\s*(\d+) kB", text)}

    def use(self, first, tokens):
        body = {"prompt": [(first + i * 7919) % 256 for i in range(tokens)], "max_tokens": 8}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert json.load(answer)["usage"]["prompt_tokens"] == tokens

    def end(self):
        self.process.terminate()
        assert self.process.wait(60) == 0
        self.process.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is Linux's")
def test_memory_is_what_info_says(four):
    """RssAnon of a server, within 5% of `calla info --context N`, and the weights' pages are the file's own."""
    words = ["--max-seq", "2048", "--parallel", "1", "--cache-bytes", "0"]
    info = calla_json("info", "--json", "--context", "1500", *words, model=four)
    serving = Serving(four, *words)
    try:
        serving.use(1, 1492)
        used = serving.memory()
        assert abs(used["RssAnon"] / info["resident"] - 1) < 0.05, (used, info)
        assert used["RssAnon"] <= info["plan"]["total"]
        assert used["RssFile"] > info["file_bytes"] / 2 and used["VmLck"] == 0
    finally:
        serving.end()


@pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is Linux's")
def test_memory_with_a_full_cache(four):
    """The prefix cache fills to its size and no further."""
    words = ["--max-seq", "1024", "--parallel", "1", "--cache-bytes", "40M"]
    info = calla_json("info", "--json", *words, model=four)
    serving = Serving(four, *words)
    try:
        before = None
        for first in range(1, 13):
            serving.use(first, 700)
            if first == 9:
                before = serving.memory()["RssAnon"]
        full = serving.memory()["RssAnon"]
        assert abs(full / info["resident_most"] - 1) < 0.05, (full, info)
        assert full - before < 1 << 20, "it went on growing"
    finally:
        serving.end()
