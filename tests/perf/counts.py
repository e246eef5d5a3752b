#!/usr/bin/env python3
"""Instructions that each hot kernel needs for an element, counted by callgrind and held against tests/perf/counts.json.

counts.py PROGRAM COMPILER [--update]   PROGRAM: perf_counts; COMPILER: "GNU 12.2.0"

Counts do not depend on how busy the machine is, nor on its speed. They do on the compiler, so figures are kept for each; for one that has none,
and where valgrind is missing, the test is skipped (77) and says so. It fails when a kernel needs over 2% more instructions than stored.
--update stores what was counted (also a new compiler's).
"""
import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

STORE = pathlib.Path(__file__).with_name("counts.json")
ISAS = ("avx2", "portable")  # valgrind knows no AVX-512
MORE = 1.02


def skip(why):
    print(f"SKIPPED: {why}: instruction counts go untested", file=sys.stderr)
    sys.exit(77)


def count(program, isa):
    """{kernel: instructions an element}"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=counted", "--dump-after=counted",
             f"--callgrind-out-file={folder}/out", program, isa],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, capture_output=True, text=True, timeout=600)
        if done.returncode:
            sys.exit(f"{program} {isa} under valgrind ended with {done.returncode}:\n{done.stderr[-2000:]}")
        kernels = [line.split("\t") for line in done.stdout.splitlines()]
        totals = []
        for i in range(1, len(kernels) + 1):
            text = pathlib.Path(f"{folder}/out.{i}").read_text()
            totals.append(int(re.search(r"^(?:totals|summary): (\d+)", text, re.M)[1]))
    return {name: float(f"{total / int(elements):.5g}") for (name, elements), total in zip(kernels, totals)}


def compare(isa, stored, counted):
    """Whether no kernel got dearer; tells each change."""
    good = True
    for name, now in counted.items():
        then = stored.get(name)
        if then is None or now > then * MORE:
            good = False
            print(f"{isa}: {name}: {now} instructions an element, " + (f"stored are {then}" if then else "none stored"))
        elif now < then / MORE:
            print(f"{isa}: {name}: {now} instructions an element instead of {then}; tests/perf/counts.py --update would keep that")
    for name in stored.keys() - counted.keys():
        good = False
        print(f"{isa}: {name}: stored, but not counted")
    return good


def main():
    program, compiler = sys.argv[1:3]
    update = sys.argv[3:] == ["--update"]
    if platform.machine() not in ("x86_64", "AMD64") or platform.system() != "Linux":
        skip(f"counted on x86-64 Linux only, this is {platform.system()} {platform.machine()}")
    if not shutil.which("valgrind"):
        skip("valgrind is not installed")
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    if not re.search(r"\bavx2\b", flags) or not re.search(r"\bfma\b", flags):
        skip("this processor has no AVX2")
    store = json.loads(STORE.read_text()) if STORE.exists() else {}
    if compiler not in store and not update:
        skip(f"no figures for {compiler} (there are: {', '.join(sorted(store))})")
    counted = {isa: count(program, isa) for isa in ISAS}
    if update:
        STORE.write_text(json.dumps(store | {compiler: counted}, indent=1, sort_keys=True) + "\n")
        return
    if not all([compare(isa, store[compiler].get(isa, {}), counted[isa]) for isa in ISAS]):
        sys.exit("more instructions than stored; where that is meant: tests/perf/counts.py PROGRAM COMPILER --update")
    print(f"{sum(map(len, counted.values()))} kernels within {100 * (MORE - 1):.0f}% of their instructions ({compiler})")


main()
