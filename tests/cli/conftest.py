"""What the command line's tests share: running calla and reading what it says."""
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CALLA_BIN", ROOT / "build"))
CALLA = BIN / "calla"
MINI = ROOT / "models" / "mini"
GOLDEN = ROOT / "tests" / "golden"


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CALLA_")}
    return clean | {"CALLA_THREADS": "2"} | more


def calla(command, *words, text="", env=None, rc=0, model=MINI):
    """Run a command on a model and return its standard output; the exit code must be rc. A failure must be one line that begins with calla."""
    named = ["--model", str(model)] if model and command not in ("synth", "--version", "--help") else []
    done = subprocess.run([str(CALLA), command, *named, *map(str, words)], input=text.encode() if isinstance(text, str) else text,
                          env=environment(**(env or {})), capture_output=True, timeout=300)
    assert done.returncode == rc, (done.returncode, done.stderr.decode(errors="replace"), done.stdout[-300:])
    calla.stderr = done.stderr.decode()
    if rc:
        lines = calla.stderr.splitlines()
        assert lines and lines[-1].startswith("calla: ") and len(lines) == 1, calla.stderr
    return done.stdout.decode()


def calla_json(command, *words, **options):
    return json.loads(calla(command, *words, **options))
