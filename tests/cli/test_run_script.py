"""./run's arguments, with stubs in place of the installer, the build and the program: which command it starts, with which words and input."""
import json
import os
import pty
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, calla

STUB = """#!{python}
import json, sys
words = sys.argv[1:]
if words[1:2] == ["--help"]:
    sys.exit(0 if words[0] in ("run", "chat", "serve", "info", "help", "version") else 2)
text = "" if sys.stdin.isatty() or words[0] != "run" else sys.stdin.read()
print(json.dumps({{"words": words, "stdin": text}}))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "door.sh").write_text("door_install() { :; }\ndoor_build() { :; }\n")
    (tmp_path / "build").mkdir()
    stub = tmp_path / "build" / "calla"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    shutil.copy(ROOT / "run", tmp_path / "run")
    return tmp_path / "run"


def started(script, *words, text=""):
    """Without a terminal: what calla was started with."""
    done = subprocess.run([script, *words], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def started_in_terminal(script, *words):
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(script, [str(script), *words])
    said = b""
    try:
        while piece := os.read(fd, 4096):
            said += piece
    except OSError:  # the other end has gone
        pass
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    return json.loads(said.decode().splitlines()[-1])["words"]


@pytest.mark.parametrize("words", [["info", "--model", "d"], ["serve", "--port", "8080"], ["help"], ["chat"], ["run", "x"]], ids=" ".join)
def test_commands_go_through(script, words):
    assert started(script, *words)["words"] == words
    assert started_in_terminal(script, *words) == words


@pytest.mark.parametrize("words", [
    ["What is 2+2?"], ["--model", "d", "What is 2+2?"], ["What is 2+2?", "--model", "d"], ["--model=d", "What?"], ["--stats", "What?"], ["--raw", "--quiet", "Once"],
    ["--temperature", "1", "--", "-5 + 3?"], ["information about bears"],
], ids=" ".join)
def test_a_question_is_answered(script, words):
    assert started(script, *words, text="not read")["words"] == ["run", *words]
    assert started_in_terminal(script, *words) == ["run", *words]


@pytest.mark.parametrize("words", [[], ["--model", "d"], ["--model=d"], ["--model", "d", "--stats"], ["--stats", "--think", "off"]], ids=" ".join)
def test_without_a_question(script, words):
    assert started_in_terminal(script, *words) == ["chat", *words]
    assert started(script, *words, text="What is 2+2?\n") == {"words": ["run", *words], "stdin": "What is 2+2?\n"}
    sample = started(script, *words)["words"]
    assert sample[0] == "run" and sample[1].endswith("?") and sample[2:] == words


def test_piped_text_is_no_argument(script):
    long = "- --begins like an option\n" + "x" * 300_000
    assert started(script, text=long) == {"words": ["run"], "stdin": long}


def test_output_elsewhere(script):
    """Standard input is a terminal, standard output is not: no chat."""
    master, slave = pty.openpty()
    done = subprocess.run([script, "--model", "d"], stdin=slave, capture_output=True, text=True, timeout=60)
    os.close(master), os.close(slave)
    assert done.stdout and json.loads(done.stdout)["words"][0] == "run"


def test_flags_are_those_of_run_and_chat():
    """The script's list of options without a value must be calla's."""
    text = (ROOT / "run").read_text()
    listed = next(line for line in text.splitlines() if "--raw |" in line).split(")")[0]
    known = {w for w in listed.replace("|", " ").split() if "*" not in w}
    flags = set()
    for command in ("run", "chat"):
        for line in calla(command, "--help", model=None).splitlines():
            words = line.split()
            if line.startswith("  --") and (len(words) == 1 or line[2 + len(words[0]):].startswith("  ")):
                flags.add(words[0])
    assert flags == known
