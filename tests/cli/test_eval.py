"""`calla eval --against...`: whole distributions compared, live and from a file."""
import json
import math

import pytest
from conftest import MINI, calla, calla_json


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A piece of the mini model's text: the whole takes minutes under a sanitizer."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("<|endoftext|>".join((MINI / "eval.txt").read_text().split("<|endoftext|>")[:8]))
    return path


@pytest.fixture(scope="module")
def evaluate(text):
    return lambda *options: calla_json("eval", "--json", "--text", text, "--prompts", 20, "--prompt-tokens", 32, *options)


def test_other_number_types(evaluate, text):
    got = evaluate("--against-compute", "float32")["divergence"]
    assert got["rows"] == 20 * 32 and got["prompts"] == 20
    assert 0 < got["kl_mean"] < 0.01 and got["kl_median"] <= got["kl_p99"] <= got["kl_max"]
    assert got["same_top"] > 0.95 and got["first_token_agreement"] >= 0.9
    said = calla("eval", "--text", text, "--prompts", 5, "--prompt-tokens", 32, "--against-compute", "float32")
    assert "KL divergence" in said and "over 160 rows" in said


def test_itself_is_no_distance_away(evaluate):
    got = evaluate("--compute", "float32", "--against-compute", "float32")["divergence"]
    assert abs(got["kl_mean"]) < 1e-7 and got["same_top"] == 1 and got["first_token_agreement"] == 1


def test_divergence_is_the_formula(evaluate, tmp_path):
    """The mean of one row against what two references say of it, computed here."""
    import struct

    for name, compute in (("a", "float32"), ("b", "default")):
        evaluate("--compute", compute, "--save", tmp_path / name)

    def rows(path):
        data = path.read_bytes()
        assert data[:8] == b"callaref"
        version, vocab, prompts = struct.unpack_from("<3I", data, 8)
        at, out = 20, []
        for _ in range(prompts):
            (n,) = struct.unpack_from("<I", data, at)
            at += 4 + 4 * n
            out.append(struct.unpack_from(f"<{vocab}f", data, at))
            at += 4 * vocab
        assert version == 1 and at == len(data) and prompts == 20
        return out

    want = [sum(math.exp(p) * (p - q) for p, q in zip(x, y)) for x, y in zip(rows(tmp_path / "a"), rows(tmp_path / "b"))]
    got = evaluate("--against", tmp_path / "a")
    assert got["against"] == str(tmp_path / "a")
    assert got["divergence"]["rows"] == 20
    assert got["divergence"]["kl_mean"] == pytest.approx(sum(want) / 20, rel=1e-3, abs=1e-8)
    assert got["divergence"]["kl_max"] == pytest.approx(max(want), rel=1e-3, abs=1e-8)


def with_a_nan(folder, row=8000):
    """The mini model with a NaN among the parameters of one row of its head: that id's logit is one, everywhere."""
    import struct

    folder.mkdir()
    for path in MINI.iterdir():
        if path.name != "model.safetensors":
            (folder / path.name).symlink_to(path)
    data = bytearray((MINI / "model.safetensors").read_bytes())
    (n,) = struct.unpack_from("<Q", data, 0)
    tensor = json.loads(data[8:8 + n])["language_model.lm_head.biases"]
    at = 8 + n + tensor["data_offsets"][0] + 2 * row * tensor["shape"][1]
    data[at:at + 2] = b"\xc0\x7f"
    (folder / "model.safetensors").write_bytes(data)
    return folder


def test_rows_that_are_not_finite_are_told(evaluate, text, tmp_path):
    evaluate("--save", tmp_path / "good")
    broken = with_a_nan(tmp_path / "broken")
    options = ("eval", "--text", text, "--against", tmp_path / "good")
    got = json.loads(calla(*options, "--json", model=broken), parse_constant=pytest.fail)["divergence"]
    assert got["rows"] == got["not_finite"] == 20 and got["kl_mean"] is got["kl_median"] is got["kl_p99"] is got["kl_max"] is None
    assert got["same_top"] == 1
    assert "20 of 20 rows" in calla(*options, model=broken)
    assert evaluate("--against", tmp_path / "good")["divergence"]["not_finite"] == 0


def test_refused(evaluate, text, tmp_path):
    evaluate("--save", tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    bad = tmp_path / "bad"
    for data in (b"", good[:7], good[:20], good[:-1], good + b"x", b"x" + good[1:], good[:8] + b"\2" + good[9:], good[:12] + b"\1" + good[13:],
                 good[:24] + b"\xff\xff\xff\xff" + good[28:]):
        bad.write_bytes(data)
        calla("eval", "--text", text, "--against", bad, rc=5)
    calla("eval", "--text", text, "--against", tmp_path / "none", rc=3)
    calla("eval", "--text", text, "--against", tmp_path / "good", "--against-kv", "8", rc=2)
    short = tmp_path / "short.txt"
    short.write_text("few words")
    calla("eval", "--text", short, "--against-compute", "float32", rc=5)
    calla("eval", "--text", text, "--max-seq", 1024, "--prompt-tokens", 1024, "--against-compute", "float32", rc=2)
