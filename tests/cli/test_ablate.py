"""calla ablate: every choice there, ratios that follow from the rates, clear errors. No time is asserted: machines differ."""
import math

import pytest
from conftest import calla, calla_json

ALL = ["none", "integer", "fused", "grouped", "fetch", "chunk", "widen", "spin", "threads", "isa"]


@pytest.fixture(scope="module")
def report():
    return calla_json("ablate", "--quiet", "--json", "--threads", "2", "--contexts", "24,70", "--decode", "3", "--repeat", "2")


def test_every_choice(report):
    info = calla_json("info", "--json")
    expected = [name for name in ALL if name != "isa" or info["isa"] != "portable"]
    assert [(row["context"], row["off"]) for row in report["choices"]] == [(context, name) for context in (24, 70) for name in expected]
    assert (report["backend"], report["isa"], report["threads"], report["repeat"], report["decode_steps"]) == ("cpu", info["isa"], 2, 2, 3)
    assert report["commit"] and report["machine"]["read_bytes_per_second"] > 1e8
    assert len({row["meaning"] for row in report["choices"]}) == len(expected)


def test_rates_and_ratios(report):
    for row in report["choices"]:
        base = next(b for b in report["choices"] if b["context"] == row["context"] and b["off"] == "none")
        for field in ("prefill", "decode"):
            rate, ratio = row[field], row[field + "_ratio"]
            assert 0 < rate["min"] <= rate["median"] <= rate["max"] < math.inf
            assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
            # within a round, so no ratio can leave what the extremes allow
            assert rate["min"] / base[field]["max"] <= ratio["min"] * 1.0001 and ratio["max"] <= 1.0001 * rate["max"] / base[field]["min"]
            if row["off"] == "none":
                assert ratio == {"min": 1, "median": 1, "max": 1}


def test_some_choices_as_a_table():
    out = calla("ablate", "--quiet", "--contexts", "24", "--decode", "2", "--repeat", "1", "--choices", "spin,chunk")
    lines = out.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] in (["none"], ["chunk"], ["spin"])]
    assert [row[0] for row in rows] == ["none", "chunk", "spin"] * 2  # the rates, then what each name means
    assert [len(row) for row in rows[:3]] == [5] * 3 and rows[0][2] == rows[0][4] == "1.00"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--choices", "turbo"], "turbo"),
        (["--choices", ""], "no such choice"),
        (["--contexts", "0"], "--contexts 0"),
        (["--arm", "turbo:24"], "CHOICE:CONTEXT"),
        (["--arm", "spin"], "CHOICE:CONTEXT"),
        (["--threads", "1", "word"], "options only"),
    ],
)
def test_refused(words, said):
    calla("ablate", *words, rc=2)
    assert said in calla.stderr
