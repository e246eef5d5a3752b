"""What a server must live through: an end under full load, cache files that something has damaged, names of models that are none."""
import concurrent.futures
import itertools
import os
import random
import re
import signal
import subprocess
import threading

import pytest
import requests
from conftest import BIN, PATIENCE, Server

CLIENTS = 64


@pytest.mark.parametrize("program,grace", [("calla-scripted-server", 0), ("calla-test-server", 0), ("calla-test-server", 2)])
def test_stop_under_load(tmp_path, program, grace):
    """SIGTERM while 64 clients ask, stream, are in the queue and come anew: it ends with 0, and each of them is told something or sees its connection closed; no one is left waiting."""
    s = Server(tmp_path, program=program, grace=grace, max_seq=1024, parallel=4) if program == "calla-test-server" else Server(tmp_path, grace=grace, env={"CALLA_PARALLEL": "4"})
    mark = s.script(*[[{"every_ms": 5}, {"text": "on and on " * 200}]] * 2000) if program == "calla-scripted-server" else ""
    stopped, seen, lock = threading.Event(), [], threading.Lock()

    def client(k):
        """Ask until the server is gone; what became of each request."""
        for turn in itertools.count():
            kind = (k + turn) % 4
            body = {"model": "m", "messages": [{"role": "user", "content": f"{mark} {k} tell a story"}], "max_tokens": 400, "stream": kind < 2, "temperature": 1, "user": str(k)}
            path = "/v1/messages" if kind == 3 else "/v1/chat/completions"
            try:
                got = requests.post(s.url + path, json=body, stream=True, timeout=PATIENCE)
                n = sum(len(piece) for piece in got.iter_content(4096))
                what = got.status_code if n else "empty"
            except requests.Timeout:
                what = "hangs"
            except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
                what = "closed"
            with lock:
                seen.append(what)
            if what == "closed" and stopped.is_set():
                return

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client, k) for k in range(CLIENTS)]
        s.wait(lambda: s.stats()["running"] + s.stats()["waiting"] >= CLIENTS // 2 and len(seen) >= 4, PATIENCE)
        stopped.set()
        s.process.send_signal(signal.SIGTERM)
        code = s.process.wait(PATIENCE)
        for r in running:
            r.result(PATIENCE)
    assert code == 0, s.log_path.read_text()[-2000:]
    assert "hangs" not in seen and set(seen) <= {200, 429, 503, "closed"}, set(seen)
    assert 200 in seen
    s.stop()


# ---- cache files ----

def flip(data, rng):
    for _ in range(1 + rng.randrange(8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


DAMAGE = {"bits": flip, "head": lambda data, rng: bytearray(rng.randbytes(64)) + data[64:], "half": lambda data, rng: data[:len(data) // 2], "empty": lambda data, rng: b"",
          "zeros": lambda data, rng: bytes(len(data)), "longer": lambda data, rng: data + rng.randbytes(4096), "swapped": None, "some": flip}


@pytest.mark.parametrize("kv", [8, 16])
def test_damaged_cache_files(tmp_path, kv):
    """After every kind of damage a restart serves, and answers as a server without a cache does."""
    asked = [f"Tell me about day {i} of the week, and then about all of the others. " * 6 for i in range(4)]
    fields = {"max_tokens": 24, "reasoning_effort": "none", "temperature": 0}
    options = dict(program="calla-test-server", max_seq=1024, kv=kv, threads=2)

    def answers(server):
        got = [server.chat(text, **fields) for text in asked]
        return [g["choices"][0]["message"]["content"] for g in got], sum(g["usage"]["prompt_tokens_details"]["cached_tokens"] for g in got)

    plain = Server(tmp_path, cache_off=1, **options)
    wanted, none = answers(plain)
    assert plain.stop() == 0 and none == 0
    folder = tmp_path / "cache"
    first = Server(tmp_path, cache_dir=folder, **options)
    assert answers(first)[0] == wanted
    assert first.stop() == 0
    kept = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 64)
    assert len(kept) >= 2
    whole = {p: p.read_bytes() for p in kept}
    again = Server(tmp_path, cache_dir=folder, **options)
    texts, cached = answers(again)
    assert texts == wanted and cached > 0 and again.stop() == 0
    for seed, (name, how) in enumerate(DAMAGE.items()):
        rng = random.Random(seed)
        for p in [p for p in folder.rglob("*") if p.is_file()]:
            p.unlink()
        for i, (p, data) in enumerate(whole.items()):
            p.parent.mkdir(parents=True, exist_ok=True)
            other = list(whole.values())[(i + 1) % len(whole)]
            p.write_bytes(other if name == "swapped" else bytes(how(bytearray(data), rng)) if name != "some" or i % 2 else data)
        s = Server(tmp_path, cache_dir=folder, **options)
        got, _ = answers(s)
        assert got == wanted, name
        assert answers(s)[0] == wanted, name  # and from what it then has in memory
        assert s.stop() == 0, (name, s.log_path.read_text())


# ---- names ----

NAMES = ["", ".", "..", "/", "//", "~", "-", "--", "no such", "a\nb", "\x1b[31mred", "%s%n%x%99999d", "a" * 5000, "/".join(["d"] * 3000), "\u202egnp.exe", "é" * 300, "\u009b2J", "/dev/null", "/dev/zero", "/proc/self/mem",
         "http://localhost/x", "org/", "/org", "org/../name", "org/name/more", "-c/id", "$(id)", "`id`", "; id", "*", "a\\b", b"\xff\xfe", b"org/\xff"]


@pytest.mark.parametrize("name", NAMES, ids=lambda n: ascii(n)[:30])
def test_odd_names_of_models(tmp_path, name):
    """One line that says what is wrong, without anything a terminal would obey, and no crash; nothing is fetched and nothing left behind."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("CALLA_")} | {"HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([BIN / "calla", "serve", "--port", "0", "--model", name], env=env, cwd=tmp_path, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert 0 < done.returncode < 64, (done.returncode, done.stderr[-300:])
    lines = done.stderr.decode(errors="replace").splitlines()
    assert lines and lines[-1].startswith("calla: "), done.stderr[-300:]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\x80-\x9f]", done.stderr.decode(errors="replace")), done.stderr[-300:]
    assert len(done.stderr) < 3000
