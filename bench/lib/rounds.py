"""bench/lib/rounds.py - runs calla and llama.cpp in turn on equal shapes, gathers minimum, median and maximum, and ratios round by round.

Called by bench/peers, bench/throughput and bench/coldstart (bench/server has lib/server.py); needs Python 3.8 and nothing else. Every measurement is a process; a round is each of
them once, and the order turns from round to round. Beside every figure stands how much of the machine other work took meanwhile (Linux), since
llama.cpp's spinning threads lose more to it than calla's.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

# llama.cpp's best way for each format, in llama-bench's words: repacked q4_0 and q4_1; q4_K reads prompts faster as it is
WORDS = {"q4_K": ["--repack", "0"]}


def say(*words):
    print("calla:", *words, file=sys.stderr, flush=True)


# ---- running
def busy_seconds():
    """Processor time all processes of the machine took so far, time stolen from a virtual one included; None where unknown."""
    try:
        words = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, words[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


class Runner:
    def __init__(self):
        self.others = []  # share of the processors that other work took, by measurement

    def __call__(self, words):
        """Standard output of a command; its own processor time is told apart from everybody else's."""
        words = [str(w) for w in words]
        start, busy, own = time.monotonic(), busy_seconds(), own_seconds()
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        if busy is not None:
            others = (busy_seconds() - busy) - (own_seconds() - own)
            self.others.append(max(0.0, others / (os.cpu_count() * (time.monotonic() - start))))
        return done.stdout


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def show(s, digits=1):
    return f"{s['min']:.{digits}f} / {s['median']:.{digits}f} / {s['max']:.{digits}f}"


def lines_of(text):
    """The JSON lines among what a program says."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


# ---- one sequence
def calla_contexts(a, run, contexts):
    got = json.loads(run([a.calla, "bench", "--quiet", "--json", "--model", a.model, "--threads", a.threads, "--decode", a.decode,
                          "--contexts", ",".join(map(str, contexts))]))
    a.about = {k: got[k] for k in ("calla", "commit", "compiler", "machine", "model", "backend", "isa", "threads", "kv")}
    a.bandwidth.append(got["machine"]["read_bytes_per_second"])
    rows = {row["context"]: row for row in got["contexts"]}
    values = {f"prefill {n}": rows[n]["prefill"]["median"] for n in contexts}
    values[f"decode at {contexts[0]}"] = rows[contexts[0]]["decode"]["median"]
    a.bytes_per_token = rows[contexts[0]]["bytes_per_token"]
    return values


def llama_contexts(a, run, contexts, name, path):
    """llama-bench: random ids, a warm-up of its own, its prefill does not read a token back; decode at a depth computes that prompt first."""
    common = [a.llama / "llama-bench", "-m", path, "-t", a.threads, "-r", 1, "-o", "jsonl", *WORDS.get(name, [])]
    values = {}
    for row in lines_of(run([*common, "-n", 0, "-p", ",".join(map(str, contexts))])):
        values[f"prefill {row['n_prompt']}"] = row["avg_ts"]
    row, = lines_of(run([*common, "-p", 0, "-n", a.decode, "-d", contexts[0]]))
    values[f"decode at {contexts[0]}"] = row["avg_ts"]
    return values


def speed(a, run):
    arms = [("calla", lambda: calla_contexts(a, run, a.prompts))]
    arms += [(name, lambda name=name, path=path: llama_contexts(a, run, a.prompts, name, path)) for name, path in a.gguf]
    return alternate(a, run, arms)


def curve(a, run):
    """Cost of a token against the context before it, calla's and llama.cpp's first format's, one process each."""
    points = {"calla": [], a.gguf[0][0]: []} if a.gguf else {"calla": []}
    for n in a.curve:
        say(f"curve: context {n}")
        got = json.loads(run([a.calla, "bench", "--quiet", "--json", "--model", a.model, "--threads", a.threads, "--decode", a.decode, "--contexts", n,
                              "--warm-up", 16384]))
        row, = got["contexts"]
        points["calla"].append({"context": n, "decode": row["decode"]["median"], "prefill": row["prefill"]["median"]})
        if a.gguf and n <= a.curve_peer:
            name, path = a.gguf[0]
            row, = lines_of(run([a.llama / "llama-bench", "-m", path, "-t", a.threads, "-r", 1, "-o", "jsonl", "-p", 0, "-n", a.decode, "-d", n]))
            points[name].append({"context": n, "decode": row["avg_ts"]})
    return points


# ---- many sequences
def calla_sequences(a, run, n):
    got = json.loads(run([a.calla, "bench", "--quiet", "--json", "--model", a.model, "--threads", a.threads, "--decode", a.decode, "--sequences", n,
                          "--prompt", a.prompt, "--beside", a.beside]))
    a.about = {k: got[k] for k in ("calla", "commit", "compiler", "machine", "model", "backend", "isa", "threads", "kv")}
    a.bandwidth.append(got["machine"]["read_bytes_per_second"])
    row, = got["sequences"]
    return {f"{field} {n}": row[field]["median"] for field in row if field != "sequences"}


def llama_sequences(a, run, n, name, path):
    """llama-batched-bench: all prompts as one batch, then one step of all sequences at a time, random ids, no sampling."""
    words = [a.llama / "llama-batched-bench", "-m", path, "-t", a.threads, "-c", max(512, n * (a.prompt + a.decode)), "-npp", a.prompt, "-ntg", a.decode,
             "-npl", n, "--output-format", "jsonl", *(["--no-repack"] if name in WORDS else [])]
    row = lines_of(run(words))[-1]
    return {f"total {n}": row["speed"], f"decode {n}": row["speed_tg"]}


def throughput(a, run):
    """Rounds over every number of sequences, so that both programs meet the same minutes."""
    def calla():
        return [(lambda n=n: calla_sequences(a, run, n)) for n in a.sequences]

    def peer(name, path):
        return [(lambda n=n: llama_sequences(a, run, n, name, path)) for n in a.sequences]

    return alternate(a, run, [("calla", calla())] + [(name, peer(name, path)) for name, path in a.gguf])


# ---- cold start
def coldstart(a, run):
    """A process from its start to its end that reads a question of a few words and answers with one id: its time is that of opening the model, mostly.
    The files are in the system's cache."""
    def timed(words):
        start = time.monotonic()
        run(words)
        return {"one id": time.monotonic() - start}

    def calla(model):
        return timed([a.calla, "run", "--quiet", "--raw", "--model", model, "--threads", a.threads, "--max-tokens", 1, "Hello there"])

    def peer(path):
        return timed([a.llama / "llama-completion", "-m", path, "-t", a.threads, "-c", 512, "-n", 1, "-no-cnv", "-p", "Hello there"])

    about = json.loads(run([a.calla, "info", "--json", "--quiet", "--model", a.model]))
    a.about = {"model": {"name": about["name"], "layers": about["layers"]}, "isa": about["isa"], "threads": a.threads}
    run.others.clear()  # that was no measurement
    arms = [("calla", lambda: calla(a.model)), ("calla, mini", lambda: calla(a.mini))]
    return alternate(a, run, arms + [(name, lambda path=path: peer(path)) for name, path in a.gguf])


# ---- rounds
def alternate(a, run, arms):
    """arms: (name, measurement or list of measurements), a measurement gives {what: value}. Lists go step by step, every arm at each step."""
    steps = max(len(m) if isinstance(m, list) else 1 for _, m in arms)
    rounds = []
    for r in range(a.rounds):
        found = {name: {} for name, _ in arms}
        for step in range(steps):
            for name, m in arms[r % len(arms):] + arms[:r % len(arms)]:
                say(f"round {r + 1} of {a.rounds}: {name}" + (f", step {step + 1} of {steps}" if steps > 1 else ""))
                found[name].update((m[step] if isinstance(m, list) else m)())
        rounds.append(found)
    return rounds


def summarise(rounds, lower_is_better=False):
    """{what: {arm: spread}}, and beside every peer the ratio round by round; "best" is the best peer of each round."""
    arms = list(rounds[0])
    out = {}
    for what in rounds[0]["calla"]:
        row = {"arms": {}, "ratio": {}}
        for arm in arms:
            values = [r[arm][what] for r in rounds if r[arm].get(what)]
            if values:
                row["arms"][arm] = spread(values)
        peers = [p for p in arms if not p.startswith("calla") and p in row["arms"]]
        for p in peers:
            row["ratio"][p] = spread([faster(r["calla"][what], r[p][what], lower_is_better) for r in rounds])
        if len(peers) > 1:
            best = min if lower_is_better else max
            row["ratio"]["best"] = spread([faster(r["calla"][what], best(r[p][what] for p in peers), lower_is_better) for r in rounds])
        out[what] = row
    return out


def faster(calla, peer, lower_is_better):
    return peer / calla if lower_is_better else calla / peer


def print_summary(report):
    about = report["about"]
    machine = about.get("machine", {})
    print(f"calla {about.get('calla', '')} commit {about.get('commit', 'unknown')}, {about.get('isa', '')}, {about.get('threads', '')} threads; llama.cpp of {report['llama']}")
    print(f"{machine.get('processor', platform.processor())}, {os.cpu_count()} processors; minimum / median / maximum of {report['rounds_made']} alternating rounds")
    if report["read_bytes_per_second"]:
        print(f"memory reads {show({k: v / 1e9 for k, v in report['read_bytes_per_second'].items()})} GB/s")
    if report["other_work"]:
        print(f"other work took {report['other_work']['median']:.0%} of the processors meanwhile (most: {report['other_work']['max']:.0%})")
    if report["kind"] == "throughput":
        print_throughput(report["summary"])
        return
    for what, row in report["summary"].items():
        digits = 3 if "gap" in what or what == "one id" else 1
        print(f"\n{what}")
        for arm, s in row["arms"].items():
            ratio = row["ratio"].get(arm)
            print(f"  {arm:14} {show(s, digits):>28}" + (f"   calla is {show(ratio, 2)} times as fast" if ratio else ""))
        if "best" in row["ratio"]:
            print(f"  {'best of them':14} {'':28}   calla is {show(row['ratio']['best'], 2)} times as fast")


def print_throughput(summary):
    """A table with a row for each number of sequences; gaps in milliseconds."""
    peers = [arm for arm in summary[next(iter(summary))]["arms"] if arm != "calla"]
    counts = [what.split()[1] for what in summary if what.startswith("total ")]
    for field, title, scale in (("total", "all ids a second over the whole job", 1), ("decode", "ids a second while all decode", 1), ("median_gap", "median gap of a stream, ms", 1e3),
                                ("largest_gap", "largest gap of a stream, ms", 1e3), ("beside_decode", "ids a second with prompts read beside", 1),
                                ("beside_prefill", "prompt ids a second meanwhile", 1), ("beside_median_gap", "median gap meanwhile, ms", 1e3),
                                ("beside_largest_gap", "largest gap meanwhile, ms", 1e3)):
        print(f"\n{title}")
        for n in counts:
            row = summary[f"{field} {n}"]
            line = f"  {n:>3} sequences   calla {show({k: v * scale for k, v in row['arms']['calla'].items()})}"
            for p in peers:
                if p in row["arms"]:
                    line += f"   {p} {show(row['arms'][p])}   calla is {show(row['ratio'][p], 2)} times as fast"
            print(line)


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("kind", choices=["speed", "throughput", "coldstart"])
    ap.add_argument("--calla", type=pathlib.Path, required=True)
    ap.add_argument("--llama", type=pathlib.Path, required=True, help="folder of llama.cpp's programs")
    ap.add_argument("--model", type=pathlib.Path, required=True, help="calla's checkpoint")
    ap.add_argument("--mini", type=pathlib.Path, help="coldstart: the small model")
    ap.add_argument("--gguf", action="append", default=[], help="NAME=FILE")
    ap.add_argument("--threads", type=int, required=True)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--decode", type=int, help="steps (speed: 64, throughput: 32)")
    ap.add_argument("--prompts", type=numbers, default=[512, 2048], help="speed: prompt lengths; decode is measured after the first")
    ap.add_argument("--curve", type=numbers, default=[], help="speed: contexts to measure the cost of a token at, once each")
    ap.add_argument("--curve-peer", type=int, default=16384, help="speed: llama.cpp's curve ends here")
    ap.add_argument("--sequences", type=numbers, default=[1, 2, 4, 8, 16])
    ap.add_argument("--prompt", type=int, default=128, help="throughput: ids of each prompt")
    ap.add_argument("--beside", type=int, default=2048, help="throughput: ids of the prompts read beside decode steps")
    ap.add_argument("--out", type=pathlib.Path, required=True)
    a = ap.parse_args()
    a.gguf = [tuple(g.split("=", 1)) for g in a.gguf]
    a.decode = a.decode or (64 if a.kind == "speed" else 32)
    a.bandwidth, a.about, a.bytes_per_token = [], {}, None
    run = Runner()
    rounds = {"speed": speed, "throughput": throughput, "coldstart": coldstart}[a.kind](a, run)
    report = {"kind": a.kind, "about": a.about, "llama": os.environ.get("LLAMA_PACKAGE", "an unknown version"), "rounds_made": len(rounds), "rounds": rounds,
              "read_bytes_per_second": spread(a.bandwidth) if a.bandwidth else None, "other_work": spread(run.others) if run.others else None,
              "summary": summarise(rounds, a.kind == "coldstart")}
    if a.bytes_per_token:
        report["bytes_per_token"] = a.bytes_per_token
    if a.curve:
        report["curve"] = curve(a, run)
    a.out.write_text(json.dumps(report, indent=1) + "\n")
    print_summary(report)
    print(f"\nwritten to {a.out}")


if __name__ == "__main__":
    main()
