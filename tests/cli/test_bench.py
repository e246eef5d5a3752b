"""calla bench: every field there and sane, repetitions, comparison, clear errors. No time is asserted: machines differ."""
import json
import math

import pytest
from conftest import GOLDEN, MINI, calla, calla_json

CONTEXT_FIELDS = ("prefill", "decode", "load_seconds", "peak_bytes", "anonymous_bytes")
SEQUENCE_FIELDS = ("total", "decode", "median_gap", "largest_gap", "beside_decode", "beside_prefill", "beside_median_gap", "beside_largest_gap")


def check_spread(row, field):
    s = row[field]
    assert set(s) == {"min", "median", "max"}
    if field == "anonymous_bytes" and s["median"] is None:
        return  # a system that does not say
    assert 0 < s["min"] <= s["median"] <= s["max"] < math.inf, (field, s)


@pytest.fixture(scope="module")
def contexts():
    return calla_json("bench", "--quiet", "--json", "--contexts", "48,130", "--decode", "5", "--repeat", "3")


@pytest.fixture(scope="module")
def sequences():
    return calla_json("bench", "--quiet", "--json", "--sequences", "1,3", "--decode", "12", "--prompt", "70", "--beside", "100")


def test_what_was_measured_on(contexts):
    info = calla_json("info", "--json")
    assert contexts["calla"] in calla("--version", model=None) and contexts["commit"] and contexts["compiler"]
    assert set(contexts["machine"]) == {"processor", "system", "processors", "memory_bytes", "read_bytes_per_second"}
    assert contexts["machine"]["read_bytes_per_second"] > 1e8 and contexts["machine"]["processors"] >= 1
    assert contexts["model"] == {k: info[k] for k in ("name", "layers", "file_bytes", "active_bytes", "state_bytes", "kv_bytes")}
    assert (contexts["backend"], contexts["compute"], contexts["threads"], contexts["decode_steps"], contexts["repeat"]) == ("cpu", "default", 2, 5, 3)
    assert contexts["isa"] == info["isa"]


def test_contexts(contexts):
    assert [row["context"] for row in contexts["contexts"]] == [48, 130] and contexts["sequences"] == []
    model = contexts["model"]
    for row in contexts["contexts"]:
        for field in CONTEXT_FIELDS:
            check_spread(row, field)
        # by hand: step k of 1..5 reads context + k ids and writes one
        kv = (row["context"] + 3 + 1) * model["kv_bytes"]
        assert row["weight_bytes"] == model["active_bytes"] and row["state_bytes"] == 2 * model["state_bytes"] and row["kv_bytes"] == kv
        assert row["bytes_per_token"] == row["weight_bytes"] + row["state_bytes"] + kv
        share = row["bytes_per_token"] * row["decode"]["median"] / contexts["machine"]["read_bytes_per_second"]
        assert row["bandwidth_share"] == pytest.approx(share)
        assert row["peak_bytes"]["min"] > model["state_bytes"]
        assert "ratio" not in row
        if row["anonymous_bytes"]["median"] is not None:
            assert row["anonymous_bytes"]["max"] <= row["peak_bytes"]["max"]


def test_sequences(sequences):
    assert [row["sequences"] for row in sequences["sequences"]] == [1, 3] and sequences["contexts"] == []
    assert (sequences["prompt"], sequences["beside"]) == (70, 100)
    for row in sequences["sequences"]:
        for field in SEQUENCE_FIELDS:
            check_spread(row, field)
        for beside in ("", "beside_"):
            assert row[beside + "median_gap"]["min"] <= row[beside + "largest_gap"]["max"]
        # a stream gets an id within its largest gap, always; the window ends with the first of them
        assert row["decode"]["median"] >= 0.5 * row["sequences"] / row["largest_gap"]["max"]


def test_a_shorter_warm_up_measures_the_same_context():
    report = calla_json("bench", "--quiet", "--json", "--contexts", "96", "--decode", "5", "--warm-up", "16")
    row, = report["contexts"]
    assert report["warm_up"] == 16 and row["context"] == 96 and row["decode"]["median"] > 0


@pytest.mark.parametrize("words", (["--contexts", "48,96", "--decode", "5"], ["--sequences", "1,2", "--prompt", "70", "--beside", "100", "--decode", "12"]))
def test_compare(tmp_path, contexts, sequences, words):
    kind = words[0][2:]
    earlier = contexts if kind == "contexts" else sequences
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(earlier))
    got = calla_json("bench", "--quiet", "--json", *words, "--compare", path)
    assert got["compared_with"] == {"file": str(path), "commit": earlier["commit"]}
    same, other = got[kind]
    assert other["ratio"] is None  # no such row then
    then = earlier[kind][0]
    fields = CONTEXT_FIELDS if kind == "contexts" else SEQUENCE_FIELDS
    assert set(same["ratio"]) == set(fields)
    for field in fields:
        if then[field]["median"] is not None:
            assert same["ratio"][field] == pytest.approx(same[field]["median"] / then[field]["median"])
    assert "(x" in calla("bench", "--quiet", *words, "--compare", path)


def test_table():
    text = calla("bench", "--quiet", "--contexts", "20", "--decode", "1")
    assert "mini, 8 layers, on cpu" in text and "commit" in text and "prefill tok/s" in text
    row = text.splitlines()[-1].split()
    assert row[0] == "20" and float(row[1]) > 0 and float(row[2]) > 0


def test_default_contexts():
    """Those of the contract that fit: the mini model has 1,024 positions; more only when asked."""
    assert [r["context"] for r in calla_json("bench", "--quiet", "--json", "--decode", "1", "--max-seq", "1100")["contexts"]] == [256, 1024]
    assert [r["context"] for r in calla_json("bench", "--quiet", "--json", "--decode", "1", "--contexts", "1500")["contexts"]] == [1500]


def test_progress_is_told_on_standard_error():
    calla("bench", "--contexts", "20", "--decode", "1")
    assert calla.stderr == "calla: round 1 of 1: context 20\n"


@pytest.mark.parametrize("rc, words, said", (
    (2, ["--contexts", "12,x"], "--contexts 12,x: whole numbers from 1 to 1048576"),
    (2, ["--contexts", "0"], "--contexts 0: whole numbers"),
    (2, ["--contexts", ""], "--contexts : whole numbers"),
    (2, ["--contexts", "1,"], "--contexts 1,: whole numbers"),
    (2, ["--contexts", ",".join(["8"] * 17)], "--contexts: 16 of them at most"),
    (2, ["--sequences", "256"], "--sequences 256: whole numbers from 1 to 255"),
    (2, ["--repeat", "0"], "--repeat 0: a whole number from 1 to 100"),
    (2, ["--max-seq", "100"], "--max-seq 100: no context of the contract fits"),
    (2, ["--max-seq", "100", "--contexts", "20,90", "--decode", "10"], "--max-seq 100: context 90 needs 101"),
    (2, ["--max-seq", "64", "--sequences", "2", "--prompt", "10", "--decode", "10"], "--max-seq 64: sequences 2 needs"),
    (2, ["--parallel", "4"], "unknown option --parallel"),
    (2, ["word"], "word: bench takes options only"),
    (3, ["--compare", "no-such-file"], "no-such-file: "),
    (5, ["--compare", MINI / "config.json"], "not what `calla bench --json` writes"),
    (5, ["--compare", GOLDEN / "tokenizer.json"], "not what `calla bench --json` writes"),
    (7, ["--contexts", "100000", "--memory", "50M"], "context:100000: "),  # the child's error, told once
))
def test_errors(rc, words, said):
    calla("bench", "--quiet", *words, rc=rc)
    assert said in calla.stderr


def test_error_inside_an_arm_is_its_answer():
    said = calla_json("bench", "--quiet", "--arm", "turtle:4")
    assert said["code"] == 1 and said["error"].startswith("--arm turtle:4: context:N, sequences:N or bandwidth:N")
    said = calla_json("bench", "--quiet", "--prompt", 262144, "--arm", "sequences:1048576")
    assert said["code"] == 1 and "from 1 to 255" in said["error"]


def test_ledger():
    """The Metal back end's bytes a token in the published shapes: what the model needs, and little more."""
    out = json.loads(calla("bench", "--ledger", "--json", model=None))
    assert out["predicted"] is True and out["measured"] is False
    assert [c["context"] for c in out["contexts"]] == [256, 4096, 131072]
    for c in out["contexts"]:
        # 1.669 GB of weights, 30 layers of 32 heads of 128 x 128 float32 twice, and 20,480 bytes of KV a token
        assert abs(c["minimum_bytes"] - (1.669e9 + 2 * 30 * 32 * 128 * 128 * 4 + 20480 * c["context"])) < 2e6
        sums = {k: sum(row[k] for row in c["operations"]) for k in ("dispatches", "barriers", "bytes_read", "bytes_written")}
        assert c["bytes"] == sums["bytes_read"] + sums["bytes_written"] and c["dispatches"] == sums["dispatches"] and c["barriers"] == sums["barriers"]
        assert 1 < c["bytes"] / c["minimum_bytes"] < 1.03, c["context"]
        assert 0 < c["barriers"] < c["dispatches"] < 1000
        assert all(row["threadgroup_bytes"] <= 32768 for row in c["operations"])
        assert 0 < c["tokens_per_second"]["M1"] < c["tokens_per_second"]["M5 Max"] < 1000
    by_context = [c["tokens_per_second"]["M5 Max"] for c in out["contexts"]]
    assert by_context == sorted(by_context, reverse=True)
    assert "predicted, not measured" in calla("bench", "--ledger", "--contexts", "64", model=GOLDEN / "tiny")
    assert "positions" in (calla("bench", "--ledger", "--contexts", "999999", rc=2, model=None), calla.stderr)[1]
