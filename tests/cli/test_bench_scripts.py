"""bench/peers, bench/throughput, bench/coldstart and bench/plot over stand-ins for calla and llama.cpp: who is run with what, in turn; ratios; drawings."""
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as tree

import pytest
from conftest import ROOT

STAND_IN = r"""#!{python}
import json, pathlib, sys
log = pathlib.Path({log!r})
words = sys.argv[1:]
name = pathlib.Path(sys.argv[0]).name
with log.open("a") as f:
    f.write(json.dumps([name, *words]) + "\n")
turn = sum(json.loads(l)[0] == name for l in log.read_text().splitlines())
given = dict(zip(words, words[1:]))
spread = lambda x: dict(min=x, median=x, max=x)
if name == "calla" and words[0] == "synth":
    folder = pathlib.Path(words[-1])
    folder.mkdir()
    (folder / "config.json").write_text("{{}}")
elif name == "calla" and words[0] == "info":
    print(json.dumps(dict(name="synth", layers=2, isa="none")))
elif name == "calla" and words[0] == "bench":
    speed = 100 * turn
    about = dict(calla="0", commit="abc", compiler="cc", backend="cpu", isa="none", threads=2, kv=16,
                 machine=dict(processor="<fast> & loud", read_bytes_per_second=1e9 * turn), model=dict(name="synth", layers=2))
    rows = [dict(context=int(n), prefill=spread(speed), decode=spread(speed / 10), bytes_per_token=7) for n in given.get("--contexts", "").split(",") if n]
    many = [dict(sequences=int(n), **{{f: spread(speed) for f in ("total", "decode", "median_gap", "largest_gap", "beside_decode", "beside_prefill",
            "beside_median_gap", "beside_largest_gap")}}) for n in given.get("--sequences", "").split(",") if n]
    print(json.dumps(dict(about, contexts=rows, sequences=many)))
elif name == "llama-bench":
    for n in given["-p"].split(","):
        print(json.dumps(dict(n_prompt=int(n), avg_ts=50.0 if int(n) else 5.0)))
elif name == "llama-batched-bench":
    print("noise")
    print(json.dumps(dict(speed=50.0, speed_tg=25.0, pl=int(given["-npl"]))))
"""


@pytest.fixture
def bench(tmp_path):
    """Runs a script of bench/ and gives (report, what was run, what it printed)."""
    log = tmp_path / "log"
    for name in ("calla", "llama-bench", "llama-batched-bench", "llama-completion"):
        (tmp_path / name).write_text(STAND_IN.format(python=sys.executable, log=str(log)))
        (tmp_path / name).chmod(0o755)
    for name in ("q4_0-2l", "q4_K-2l", "q4_0-2l-bpe"):
        (tmp_path / f"{name}.gguf").write_text("")

    def run(script, *words, rc=0):
        log.write_text("")
        done = subprocess.run([ROOT / "bench" / script, "--calla", tmp_path / "calla", "--llama", tmp_path, "--models", tmp_path, "--layers", "2", "--threads", "2",
                               "--out", tmp_path / "out.json", *words], capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        assert done.returncode == rc, done.stderr
        run.stderr = done.stderr
        return rc or json.loads((tmp_path / "out.json").read_text()), [json.loads(l) for l in log.read_text().splitlines()], done.stdout
    run.folder = tmp_path
    return run


def test_peers(bench):
    report, log, said = bench("peers", "--rounds", "3", "--prompts", "16,64", "--decode", "4", "--curve", "16,64", "--curve-peer", "16")
    measured = [w for w in log if w[0] == "llama-bench" or w[1] == "bench"]
    # every arm once a round, the order turning; llama-bench twice, prefill and decode, with its best way for each format
    order = [w[0] if w[0] == "calla" else w[2].rsplit("/", 1)[1][:4] for w in measured]
    a, b, c = ["calla"], ["q4_0"] * 2, ["q4_K"] * 2
    assert order == a + b + c + b + c + a + c + a + b + ["calla", "q4_0", "calla"]
    assert all(("--repack" in w) == ("q4_K" in w[2]) for w in measured if w[0] == "llama-bench")
    assert all(w[w.index("-d") + 1] == "16" for w in measured if w[0] == "llama-bench" and w[w.index("-p") + 1] == "0")
    row = report["summary"]["prefill 64"]
    base = row["arms"]["calla"]["min"] / 100  # calls of calla before the first measurement
    assert row["arms"]["calla"] == {"min": 100 * base, "median": 100 * (base + 1), "max": 100 * (base + 2)}
    assert row["ratio"]["q4_0"]["max"] == pytest.approx(2 * (base + 2)) and row["ratio"]["best"] == row["ratio"]["q4_K"]
    assert set(report["summary"]) == {"prefill 16", "prefill 64", "decode at 16"}
    assert report["read_bytes_per_second"]["max"] > report["read_bytes_per_second"]["min"] > 0
    assert [p["context"] for p in report["curve"]["calla"]] == [16, 64] and [p["context"] for p in report["curve"]["q4_0"]] == [16]
    assert "times as fast" in said and "prefill 64" in said

    subprocess.run([sys.executable, ROOT / "bench" / "plot", bench.folder / "out.json", bench.folder / "svg"], check=True)
    for name in ("peers.svg", "context.svg"):
        words = " ".join(t.text or "" for t in tree.parse(bench.folder / "svg" / name).iter() if t.tag.endswith("text"))
        assert "<fast> & loud" in words and "abc" in words


def test_throughput(bench):
    report, log, said = bench("throughput", "--rounds", "2", "--sequences", "1,4", "--decode", "8", "--prompt", "32", "--beside", "64")
    measured = [w for w in log if w[0] == "llama-batched-bench" or w[1] == "bench"]
    assert [w[0] for w in measured] == ["calla", "llama-batched-bench"] * 2 + ["llama-batched-bench", "calla"] * 2
    for w in measured:  # equal shapes
        flags = ("--sequences", "--prompt", "--decode") if w[0] == "calla" else ("-npl", "-npp", "-ntg")
        assert [w[w.index(f) + 1] for f in flags][1:] == ["32", "8"] and w[w.index(flags[0]) + 1] in ("1", "4")
    row = report["summary"]["total 4"]
    assert row["ratio"]["q4_0"]["min"] == row["arms"]["calla"]["min"] / 50 and report["summary"]["decode 1"]["arms"]["q4_0"]["median"] == 25
    assert list(report["summary"]["largest_gap 4"]["arms"]) == ["calla"]  # the peer has none
    assert "largest gap of a stream" in said


def test_coldstart(bench):
    report, log, _ = bench("coldstart", "--rounds", "2")
    assert [w[0] for w in log if w[0] == "llama-completion" or w[1] == "run"] == ["calla", "calla", "llama-completion", "calla", "llama-completion", "calla"]
    assert report["summary"]["one id"]["arms"]["calla, mini"]["min"] > 0
    ratio, rounds = report["summary"]["one id"]["ratio"]["q4_0"], report["rounds"]
    assert ratio["max"] == pytest.approx(max(r["q4_0"]["one id"] / r["calla"]["one id"] for r in rounds))


def test_what_is_missing_is_said(bench):
    bench("peers", "--quants", "q9", rc=1)
    assert "q9 is none of q4_0 q4_K q4_1" in bench.stderr
    (bench.folder / "llama-bench").unlink()
    bench("peers", rc=1)
    assert "has no llama-bench" in bench.stderr
    bench("throughput", "--rounds", rc=1)
    assert "--rounds needs a value" in bench.stderr


def test_plot_refuses_other_files(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    done = subprocess.run([sys.executable, ROOT / "bench" / "plot", tmp_path / "x.json", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "not what bench/peers writes" in done.stderr
