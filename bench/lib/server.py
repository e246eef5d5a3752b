"""bench/lib/server.py - one client against calla's server and llama-server in turn; called by bench/server, whose head says what is measured.

A round starts each server once, warms it, asks it with every number of clients, and stops it; the order turns from round to round. The client is
the same for all: a thread for each connection, which stays open. A token is counted where the server's usage says so, not by pieces of text, since
random ids need not be whole characters. Processor time is the server process's own, all threads together.
"""
import argparse
import http.client
import itertools
import json
import os
import pathlib
import platform
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

from rounds import Runner, busy_seconds, faster, numbers, own_seconds, say, show, spread

PATH = "/v1/completions"


class Served:
    """A server process, ready to be asked."""

    def __init__(self, words, port):
        self.port = port
        self.process = subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 600
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{' '.join(map(str, words))}: does not serve")
            try:
                k = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                k.request("GET", "/health")
                if k.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def processor_seconds(self):
        try:
            words = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return None
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Client:
    serial = itertools.count(1)

    def __init__(self, a, port, vocabulary):
        self.a, self.vocabulary, self.k = a, vocabulary, http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        self.k.connect()
        self.k.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, tokens, stream):
        n = next(Client.serial)
        ids = [(n * 7919 + i * 2654435761) % 2**32 % self.vocabulary for i in range(self.a.prompt)]
        body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "stream": stream, "cache_prompt": False, "ignore_eos": True}
        if stream:
            body["stream_options"] = {"include_usage": True}
        answer = self.send(json.dumps(body))
        if answer.status != 200:
            sys.exit(f"{PATH}: {answer.status} {answer.read()[:300]!r}")
        return answer

    def send(self, body, again=True):
        """A server may close a connection that it kept; what got no byte of answer is sent once more on a new one, at that server's cost."""
        try:
            self.k.request("POST", PATH, body, {"Content-Type": "application/json"})
            return self.k.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self.k.close()
            if not again:
                raise
            return self.send(body, False)

    def one(self):
        return json.loads(self.ask(1, False).read())["usage"]["completion_tokens"]

    def stream(self):
        """Seconds to the first event and to the last one that holds a choice, and the tokens."""
        began, first, last, tokens = time.perf_counter(), None, None, 0
        answer = self.ask(self.a.tokens, True)
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            now, event = time.perf_counter(), json.loads(line[6:])
            if event.get("choices"):
                first, last = first or now, now
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
        if tokens < 2:
            sys.exit(f"{PATH}: a stream of {tokens} tokens")
        return first - began, last - began, tokens


def together(n, work):
    """work(i) in n threads; what they return."""
    got, failed = [None] * n, []

    def run(i):
        try:
            got[i] = work(i)
        except BaseException as e:  # also SystemExit, which a thread would swallow
            failed.append(e)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        sys.exit(f"a client failed: {failed[0]!r}")
    return got


def measure(a, served, vocabulary):
    values = {}
    for n in a.clients:
        clients = [Client(a, served.port, vocabulary) for _ in range(n)]
        together(n, lambda i: (clients[i].one(), clients[i].stream()))  # warm
        end = time.perf_counter() + a.seconds

        def many(i):
            done = 0
            while time.perf_counter() < end:
                clients[i].one()
                done += 1
            return done
        began, used = time.perf_counter(), served.processor_seconds()
        done = sum(together(n, many))
        values[f"one-token answers a second, {n}"] = done / (time.perf_counter() - began)
        if used is not None:
            values[f"processor ms an answer, {n}"] = (served.processor_seconds() - used) / done * 1e3
        used, streams = served.processor_seconds(), [s for c in together(n, lambda i: [clients[i].stream() for _ in range(a.streams)]) for s in c]
        tokens = sum(s[2] for s in streams)
        values[f"ms to the first token, {n}"] = statistics.median(s[0] for s in streams) * 1e3
        values[f"ms a streamed token, {n}"] = statistics.median((s[1] - s[0]) / (s[2] - 1) for s in streams) * 1e3
        if used is not None:
            values[f"processor ms a streamed token, {n}"] = (served.processor_seconds() - used) / tokens * 1e3
        for c in clients:
            c.k.close()
    return values


def with_text(model):
    """The synthetic checkpoint beside a tokenizer in which every id has a text of its own ("t5000"), as tools/synth_gguf.py writes it: else an id would be no event."""
    folder = model.parent / (model.name + "-text")
    folder.mkdir(exist_ok=True)
    for file in model.iterdir():
        if file.name != "tokenizer.json" and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.resolve())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    used = set(vocab.values()) | {t["id"] for t in tokenizer["added_tokens"]}
    vocab.update({f"t{i}": i for i in range(size(model)) if i not in used})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def size(model):
    config = json.loads((model / "config.json").read_text())
    return config.get("text_config", config)["vocab_size"]


def calla(a, model):
    port = free_port()
    return Served([a.calla, "serve", "--quiet", "--model", model, "--port", port, "--threads", a.threads, "--parallel", max(a.clients), "--max-seq", 512, "--cache-bytes", 0], port)


def peer(a, path):
    port, most = free_port(), max(a.clients)
    return Served([a.llama / "llama-server", "-m", path, "-t", a.threads, "--host", "127.0.0.1", "--port", port, "-np", most, "-c", 512 * most, "--no-webui"], port)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--calla", type=pathlib.Path, required=True)
    ap.add_argument("--llama", type=pathlib.Path, help="folder of llama.cpp's programs")
    ap.add_argument("--model", type=pathlib.Path, required=True)
    ap.add_argument("--mini", type=pathlib.Path, required=True)
    ap.add_argument("--gguf", action="append", default=[], help="NAME=FILE")
    ap.add_argument("--threads", type=int, required=True)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--clients", type=numbers, default=[1, 4, 16])
    ap.add_argument("--seconds", type=float, default=4)
    ap.add_argument("--streams", type=int, default=2, help="of each client")
    ap.add_argument("--prompt", type=int, default=16)
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--peer", choices=["yes", "no"], default="yes")
    ap.add_argument("--out", type=pathlib.Path, required=True)
    a = ap.parse_args()
    run, rounds, others = Runner(), [], []
    about = json.loads(run([a.calla, "info", "--json", "--quiet", "--model", a.model]))
    model = with_text(a.model)
    arms = [("calla", lambda: calla(a, model), size(a.model)), ("calla, mini", lambda: calla(a, a.mini), size(a.mini))]
    for name, path in (g.split("=", 1) for g in a.gguf if a.peer == "yes"):
        arms.append((name, lambda path=path: peer(a, path), size(a.model)))
    for r in range(a.rounds):
        found = {}
        for name, start, vocabulary in arms[r % len(arms):] + arms[:r % len(arms)]:
            say(f"round {r + 1} of {a.rounds}: {name}")
            served = start()
            began, busy, own, mine = time.monotonic(), busy_seconds(), own_seconds(), served.processor_seconds()
            try:
                found[name] = measure(a, served, vocabulary)
                if busy is not None:
                    other = busy_seconds() - busy - (own_seconds() - own) - (served.processor_seconds() - mine)
                    others.append(max(0.0, other / (os.cpu_count() * (time.monotonic() - began))))
            finally:
                served.stop()
        rounds.append(found)
    summary = {what: {name: spread([f[name][what] for f in rounds]) for name, _, _ in arms} for what in rounds[0]["calla"]}
    ratios = {what: {name: spread([faster(f["calla"][what], f[name][what], "a second" not in what) for f in rounds]) for name, _, _ in arms[2:]} for what in summary}
    report = {"kind": "server", "about": {"model": about["name"], "isa": about["isa"], "threads": a.threads, "processor": platform.processor(), "processors": os.cpu_count()},
              "llama": os.environ.get("LLAMA_PACKAGE") if a.gguf else None, "rounds": rounds, "summary": summary, "ratio": ratios, "other_work": spread(others) if others else None}
    a.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"prompts of {a.prompt} ids, streams of {a.tokens}; minimum / median / maximum of {a.rounds} alternating rounds" +
          (f"; other work took {report['other_work']['median']:.0%} of the processors meanwhile (most: {report['other_work']['max']:.0%})" if others else ""))
    for what, row in summary.items():
        print(f"\n{what} client{'s' if not what.endswith(' 1') else ''}")
        for name, s in row.items():
            print(f"  {name:14} {show(s, 2):>28}" + (f"   calla is {show(ratios[what][name], 2)} times as good" if name in ratios[what] else ""))
    print(f"\nwritten to {a.out}")


if __name__ == "__main__":
    main()
