"""Calls that no shell makes by itself: standard streams that are closed, output that goes nowhere, ids that are none."""
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
