#!/usr/bin/env python3
"""Many clients at once, on this machine only: long and short prompts, streams, aborts, what is no request. Nothing may be lost, come to the wrong client, leak or stall.

    load.py --bin build [--program calla-test-server] [--seconds 20] [--clients 64] [--no-memory]

Every request carries a secret word. The scripted engine answers with the word that it finds in its own prompt; the real one must give the very answer that it gave to the same
prompt alone, before. Six times all clients pause, and the process must have the descriptors and threads of the beginning; its memory (RssAnon) must not grow from the second pause, a third of the
way, to the last, but by pages of what the engine mapped at its start that are used for the first time: its pool and workspace are planned, and the system gives them memory page by page. The log must have one line for each request. Standard output gets one JSON object with the figures; the exit code is 0 only if all of this held.
"""
import argparse
import asyncio
import json
import os
import pathlib
import random
import signal
import string
import subprocess
import sys
import tempfile
import time

from exposition import read, value

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
FILLER = "the quick brown fox jumps over some lazy dog while nobody looks and then goes home again".split()
NONSENSE = [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n", b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
            b"GET /health HTTP/1.1\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 2000 + b"\r\n"]
BROKEN = [b"", b"{", b"[" * 70, b'{"messages":[{"role":"user","content":"\xff"}]}', b'{"messages":3}', b'{"a":1,"a":2}', b"null", b'{"messages":[{"role":"user","content":"x"}],"n":99}']


PATIENCE = 300  # seconds after which an answer counts as lost
PAUSES = 6


class Fault(Exception):
    """Something that must not happen."""


class Case:
    """A prompt with its secret, and what must come back."""

    def __init__(self, rng, scripted):
        self.secret = "".join(rng.choices(string.ascii_lowercase, k=12))
        words = " ".join(rng.choices(FILLER, k=rng.choice([3, 10, 40, 150, 400])))
        self.content = f"{words} @echo:{self.secret}@" if scripted else f"Repeat: {self.secret}, {' '.join(words.split()[:120])}."
        self.expected = f"{self.secret} " * 24 if scripted else None
        self.tokens = 600 if scripted else 16

    def body(self, stream):
        return json.dumps({"messages": [{"role": "user", "content": self.content}], "stream": stream, "max_tokens": self.tokens, "temperature": 0, "reasoning_effort": "none",
                           "user": self.secret}).encode()


class Connection:
    def __init__(self, port):
        self.port, self.reader, self.writer, self.fresh = port, None, None, True

    async def send(self, data):
        self.fresh = self.writer is None
        if self.fresh:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(data)
        await self.writer.drain()

    def close(self):
        if self.writer:
            self.writer.close()
        self.writer = None

    async def head(self):
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:-2])}
        return int(lines[0].split()[1]), headers

    async def pieces(self, headers):
        """The body as it comes."""
        if "chunked" in headers.get("transfer-encoding", ""):
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        elif "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
        else:
            while piece := await self.reader.read(65536):
                yield piece
            self.close()
        if headers.get("connection", "").lower() == "close":
            self.close()


class Load:
    def __init__(self, options, server, port, log):
        self.o, self.server, self.port, self.log = options, server, port, log
        self.scripted = "scripted" in options.program
        self.rng = random.Random(options.seed)
        self.cases = [Case(self.rng, self.scripted) for _ in range(48)]
        self.secrets = {case.secret for case in self.cases}
        self.counts = {"answers": 0, "streams": 0, "busy": 0, "aborted": 0, "refused": 0, "nonsense": 0, "looked": 0, "answered_late": 0}
        self.gaps, self.faults, self.named, self.running, self.n, self.engine = [], [], set(), 0, 0, None
        self.go = asyncio.Event()
        self.now = {}  # what each client's task is at

    def name(self):
        self.n += 1
        self.now[asyncio.current_task()] = f"load-{self.n}"
        return f"load-{self.n}"

    def request(self, path, body, name, method="POST"):
        return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {name}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    # ---- one request each ----

    async def answer(self, k, case, stream):
        name = self.name()
        await k.send(self.request(CHAT, case.body(stream), name))
        self.named.add(name)
        status, headers = await k.head()
        if headers.get("x-request-id") != name:
            raise Fault(f"{name}: the answer is {headers.get('x-request-id')}'s")
        text, last = b"", time.monotonic()
        async for piece in k.pieces(headers):
            now = time.monotonic()
            if stream and status == 200:
                self.gaps.append(now - last)
            text, last = text + piece, now
        if status in (429, 503):
            self.counts["busy"] += 1
            await asyncio.sleep(self.rng.random() * 0.2)
            return None
        if status != 200:
            raise Fault(f"{name}: {status} {text[:300]!r}")
        said = self.joined(name, text) if stream else json.loads(text)["choices"][0]["message"]["content"]
        others = [s for s in self.secrets if s != case.secret and s in said]
        if others or (case.expected is not None and said.strip() != case.expected.strip()):
            raise Fault(f"{name}: for {case.secret} came {said[:80]!r} ... {said[-40:]!r}, expected {str(case.expected)[:80]!r}")
        self.counts["streams" if stream else "answers"] += 1
        return said

    @staticmethod
    def joined(name, text):
        events = [e for e in text.decode().split("\n\n") if e and not e.startswith(":")]
        if events[-1] != "data: [DONE]":
            raise Fault(f"{name}: the stream ends in {events[-1]!r}")
        chunks = [json.loads(e.removeprefix("data: ")) for e in events[:-1]]
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)

    async def abort(self, k, case):
        """Go away at some moment: within the head, the body, the queue, prefill or decode, with a farewell or a reset."""
        data = self.request(CHAT, case.body(self.rng.random() < 0.5), self.name())
        await k.send(data[:self.rng.randrange(1, len(data))] if self.rng.random() < 0.3 else data)
        await asyncio.sleep(self.rng.choice([0, 0.01, 0.05, 0.3]) * self.rng.random())
        if self.rng.random() < 0.3:
            k.writer.transport.abort()
        k.close()
        self.counts["aborted"] += 1

    async def nonsense(self, k):
        await k.send(self.rng.choice(NONSENSE))
        try:
            await asyncio.wait_for(k.reader.read(4096), 1)
        except (TimeoutError, OSError):
            pass
        k.close()
        self.counts["nonsense"] += 1

    async def refused(self, k):
        name = self.name()
        await k.send(self.request(self.rng.choice([CHAT, "/v1/completions", "/v1/tokenize", "/v1/detokenize"]), self.rng.choice(BROKEN), name))
        self.named.add(name)
        status, headers = await k.head()
        text = b"".join([piece async for piece in k.pieces(headers)])
        if status not in (400, 503) or "error" not in json.loads(text):
            raise Fault(f"{name}: broken JSON got {status} {text[:200]!r}")
        self.counts["refused"] += 1

    async def look(self, k, path=None):
        name = self.name()
        path = path or self.rng.choice(["/health", "/metrics", "/", "/v1/models"])
        await k.send(self.request(path, b"", name, "GET"))
        self.named.add(name)
        began = time.monotonic()
        status, headers = await k.head()
        text = b"".join([piece async for piece in k.pieces(headers)])
        if status not in (200, 503):
            raise Fault(f"{name}: GET {path} got {status}")
        if path == "/metrics" and status == 200:
            read(text.decode())
        self.counts["looked"] += 1
        self.counts["answered_late"] += time.monotonic() - began > 5
        return text.decode()

    async def one(self, k):
        case, what = self.rng.choice(self.cases), self.rng.random()
        if what < 0.60:
            await self.answer(k, case, self.rng.random() < 0.6)
        elif what < 0.78:
            await self.abort(k, case)
        elif what < 0.84:
            await self.nonsense(k)
        elif what < 0.92:
            await self.refused(k)
        else:
            await self.look(k)

    async def client(self):
        k = Connection(self.port)
        while True:
            if not self.go.is_set():
                k.close()
                await self.go.wait()
            self.running += 1
            self.now[asyncio.current_task()] = "nonsense"
            began = time.monotonic()
            try:
                await asyncio.wait_for(self.one(k), PATIENCE)
            except (ConnectionError, asyncio.IncompleteReadError) as e:
                if k.fresh:  # a connection that was idle may be closed just as it is used again
                    self.faults.append(f"{self.now[asyncio.current_task()]}: connection lost: {e!r}")
                k.close()
            except (Fault, TimeoutError, AssertionError, ValueError, KeyError) as e:
                self.faults.append(f"{self.now[asyncio.current_task()]}: {type(e).__name__} {e} after {time.monotonic() - began:.1f} s")
                k.close()
            finally:
                self.running -= 1
            if self.rng.random() < 0.3:
                k.close()

    # ---- the process ----

    def seen(self):
        proc = pathlib.Path(f"/proc/{self.server.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return {"anon": int(status["RssAnon"].split()[0]) << 10, "threads": int(status["Threads"]), "descriptors": len(os.listdir(proc / "fd"))}

    def mappings(self):
        """{begin: [end, bytes of memory it has got]} of all that is mapped but files, the heap and stacks."""
        found, current = {}, None
        for line in pathlib.Path(f"/proc/{self.server.pid}/smaps").read_text().splitlines():
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                begin, end = (int(n, 16) for n in words[0].split("-"))
                current = found[begin] = [end, 0] if len(words) == 5 else None
            elif words[0] == "Anonymous:" and current:
                current[1] = int(words[1]) << 10
        return {begin: m for begin, m in found.items() if m}

    def planned(self):
        """Of that, what lies where large mappings were at the first call: the engine's."""
        now = self.mappings()
        if self.engine is None:
            self.engine = [(begin, end) for begin, (end, _) in now.items() if end - begin >= 1 << 20]
        return sum(has for begin, (end, has) in now.items() if any(begin < e and b < end for b, e in self.engine))

    async def pause(self, first):
        """All clients at rest and all connections closed; what the process holds then."""
        self.go.clear()
        end = time.monotonic() + PATIENCE + 60
        while self.running:
            if time.monotonic() > end:
                raise Fault(f"{self.running} requests never ended")
            await asyncio.sleep(0.05)
        await asyncio.sleep(3)  # the server gives back what its heaps hold free when it has rested for a second
        while True:
            await asyncio.sleep(0.2)
            now = {**self.seen(), "planned": self.planned()}
            if not first or (now["threads"] <= first["threads"] and now["descriptors"] <= first["descriptors"]):
                return now
            if time.monotonic() > end:
                raise Fault(f"leaked: {now} after {first}")

    async def run(self):
        k = Connection(self.port)
        while '"status":"ok"' not in await self.look(k, "/health"):
            await asyncio.sleep(0.2)
        for case in self.cases if not self.scripted else []:
            case.expected = await self.answer(k, case, False)
            if case.expected is None:
                raise Fault("busy, although nobody else asks")
        k.close()
        self.counts = dict.fromkeys(self.counts, 0)
        first = await self.pause(None)
        clients = [asyncio.create_task(self.client()) for _ in range(self.o.clients)]
        rests = []
        for _ in range(PAUSES):
            self.go.set()
            await asyncio.sleep(self.o.seconds / PAUSES)
            rests.append(await self.pause(first))
        for task in clients:
            task.cancel()
        text = await self.look(k, "/metrics")
        k.close()
        m = read(text)
        if value(m, "calla_http_requests_running") != 1 or value(m, "calla_engine_running") or value(m, "calla_engine_waiting") or not value(m, "calla_engine_up"):
            raise Fault("something still runs: " + " ".join(line for line in text.splitlines() if line.startswith(("calla_engine", "calla_http_requests_running"))))
        # two per cent; of a process of a few megabytes, or in a run of seconds, the fragments of its threads' heaps alone are more
        warm, last = rests[PAUSES // 3 - 1], rests[-1]
        room = warm["anon"] // 50 + last["planned"] - warm["planned"]
        if not self.o.no_memory and last["anon"] > warm["anon"] + (room if self.o.seconds >= 300 else max(room, 4 << 20)):
            raise Fault(f"memory grew: {[(r['anon'], r['planned']) for r in rests]}")
        return first, rests

    def check_log(self):
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        ids = [line["id"] for line in lines if line["id"] in self.named]
        if len(ids) != len(set(ids)) or set(ids) != self.named:
            raise Fault(f"the log has {len(ids)} lines for {len(self.named)} requests, missing {sorted(self.named - set(ids))[:5]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=os.environ.get("CALLA_BIN", ROOT / "build"), type=pathlib.Path)
    parser.add_argument("--program", default="calla-scripted-server")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-memory", action="store_true", help="do not judge memory (sanitizer builds keep what was freed)")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        with open(log, "wb") as to:
            server = subprocess.Popen([o.bin / o.program, "--model", ROOT / "models" / "mini", "--log-json", "1", "--max-seq", "2048", "--threads", "2", "--cache-bytes", str(16 << 20)], stdout=subprocess.PIPE, stderr=to, text=True)
        load, code = None, 1
        try:
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            load = Load(o, server, port, log)
            first, rests = asyncio.run(load.run())
            server.send_signal(signal.SIGTERM)
            if server.wait(60) != 0:
                raise Fault(f"exit code {server.returncode}")
            load.check_log()
            gaps = sorted(load.gaps) or [0]
            print(json.dumps({"program": o.program, "seconds": o.seconds, "clients": o.clients, "requests": load.n, **load.counts, "largest_gap_s": round(gaps[-1], 3),
                              "gap_p99_s": round(gaps[int(len(gaps) * 0.99)], 3), "rss_anon": [r["anon"] for r in rests], "planned": [r["planned"] for r in rests], "threads": first["threads"], "descriptors": first["descriptors"],
                              "faults": len(load.faults)}))
            code = 1 if load.faults or not load.counts["answers"] or not load.counts["streams"] else 0
        except (Fault, subprocess.TimeoutExpired) as e:
            print(f"FAULT: {e}", file=sys.stderr)
        finally:
            server.kill()
            server.wait()
            if code:
                print("\n".join((load.faults if load else [])[:20]), file=sys.stderr)
                print("\n".join(line for line in log.read_text().splitlines()[-400:] if not line.startswith("{"))[-4000:], file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
