"""Calls that no shell makes by itself: standard streams that are closed, output that goes nowhere, ids that are none."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import pytest
from conftest import CALLA, MINI, calla, environment

ALL_CLOSED = [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)]


def closed(fds, *words, **options):
    """calla with these descriptors closed."""
    redirects = " ".join(f"{fd}{'<' if fd == 0 else '>'}&-" for fd in fds)
    return subprocess.Popen(["sh", "-c", f'exec "$0" "$@" {redirects}', str(CALLA), *map(str, words)], env=environment(), **options)


def health(port):
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        got = b""
        while piece := s.recv(4096):
            got += piece
    return got


@pytest.mark.parametrize("fds", [f for f in ALL_CLOSED], ids=str)
def test_serve_with_closed_streams(fds):
    """A closed descriptor must not become the pipe that wakes the server: a note on standard error would end it."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = closed(fds, "serve", "--model", MINI, "--max-seq", 256, "--port", port, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        got = b""
        while b'"status":"ok"' not in got:
            assert server.poll() is None and time.monotonic() < end, (server.poll(), got)
            try:
                got = health(port)
            except OSError:
                pass
            time.sleep(0.05)
        assert got.startswith(b"HTTP/1.1 200 "), got
        time.sleep(0.3)
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) in (0, 4)  # 4: its first lines went nowhere
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("fds", [f for f in ALL_CLOSED if 1 in f], ids=str)
def test_closed_standard_output_is_an_error(fds):
    assert closed(fds, "tokens", "--model", MINI, "hi", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(60) == 4


def test_closed_standard_input_is_an_error():
    done = closed((0,), "tokens", "--model", MINI, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 4 and out == b"" and err.startswith(b"calla: standard input: "), (out, err)


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_onto_a_full_disk_is_an_error(word):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "wb") as full:
        assert subprocess.run([CALLA, word], stdout=full, stderr=subprocess.DEVNULL).returncode == 4


def test_a_nul_byte_is_no_separator_of_ids():
    assert calla("tokens", "--decode", text=b"1 2") == '"#\n'
    calla("tokens", "--decode", text=b"1\x002", rc=5)


def test_synth_looks_for_the_tokenizer_first(tmp_path):
    target = tmp_path / "synth"
    calla("synth", "--layers", 1, "--tokenizer", pathlib.Path(tmp_path, "nowhere"), target, rc=3)
    assert not target.exists()


@pytest.mark.parametrize("case", ['[{"text":5,"ids":[1]}]', '[{"text":"a","ids":["x"]}]', '[{"text":"a","ids":[1,-1]}]'])
def test_selftest_refuses_a_case_that_is_none(case, tmp_path):
    """The sanitizer build also sees that nothing of a refused case is lost."""
    (tmp_path / "cases.json").write_text(case)
    calla("selftest", "--max-seq", 64, tmp_path / "cases.json", rc=5)


@pytest.mark.parametrize("reference", ["{}", "[]", '{"eval_txt":{"perplexity":"x"}}', '{"eval_txt":{"perplexity":0,"documents":[]}}'])
def test_eval_does_not_pass_over_a_reference_that_is_none(reference, tmp_path):
    (tmp_path / "text.txt").write_text("A fox.")
    (tmp_path / "reference.json").write_text(reference)
    calla("eval", "--max-seq", 64, "--text", tmp_path / "text.txt", "--reference", tmp_path / "reference.json", rc=5)


def damaged(tmp_path):
    """A copy of the mini model whose files may be replaced."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in MINI.iterdir():
        if path.is_file():
            os.symlink(path, folder / path.name)
    return folder


def test_weights_that_give_nan_are_an_error_not_an_answer(tmp_path):
    folder = damaged(tmp_path)
    data = bytearray((MINI / "model.safetensors").read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name, tensor in header.items():
        if name.endswith(".scales") and "lm_head" not in name:
            begin, end = tensor["data_offsets"]
            data[8 + length + begin : 8 + length + end] = b"\xc0\x7f" * ((end - begin) // 2)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(data)
    done = subprocess.run([CALLA, "run", "--quiet", "--model", folder, "--max-seq", "64", "--max-tokens", "3", "hi"], capture_output=True, text=True)
    assert done.returncode == 10 and "NaN" in done.stderr and done.stdout.strip() == ""


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_fifo_does_not_hang(name, tmp_path):
    folder = damaged(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    done = subprocess.run([CALLA, "run", "--quiet", "--model", folder, "hi"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 4 and "not a regular file" in done.stderr and done.stderr.count("\n") == 1


def test_synth_does_not_write_over_weights(tmp_path):
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"precious")
    calla("synth", "--layers", 1, tmp_path, rc=2)
    assert (tmp_path / "model-00001-of-00002.safetensors").read_bytes() == b"precious"


def test_verify_wants_the_tokens_of_the_template(tmp_path):
    folder = damaged(tmp_path)
    text = (MINI / "tokenizer.json").read_text().replace("<|im_start|>", "<|im_begin|>")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(text)
    calla("verify", folder, rc=5)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_an_lfs_pointer_is_named(name, tmp_path):
    folder = damaged(tmp_path)
    (folder / name).unlink()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    calla("verify", folder, rc=5)
    assert "Git LFS pointer" in calla.stderr
