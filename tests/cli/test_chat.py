"""calla chat in a terminal (a pty): answers, Ctrl-C, commands."""
import json
import os
import pty
import re
import select
import signal
import time

import pytest
from conftest import BIN, CALLA, MINI, environment


class Terminal:
    def __init__(self, *words, **env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(CALLA, [str(CALLA), "chat", "--model", str(MINI), *words], environment(TERM="dumb", **env))
        self.said = ""
        self.at = 0
        self.wait("> ")

    def wait(self, text, seconds=60):
        """Read until text appears behind what was read before; returns what lies between."""
        end = time.monotonic() + seconds
        while (found := self.said.find(text, self.at)) < 0:
            assert time.monotonic() < end, f"{text!r} did not come; read: {self.said[self.at:]!r}"
            self.read()
        between, self.at = self.said[self.at:found], found + len(text)
        return between

    def read(self):
        if select.select([self.fd], [], [], 0.2)[0]:
            self.said += re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", os.read(self.fd, 4096).decode(errors="replace")).replace("\r", "")

    def type(self, text):
        os.write(self.fd, text.encode() + b"\n")

    def ask(self, text):
        self.type(text)
        return self.wait("\n> ")

    def end(self, typed=""):
        """The exit code; `typed` is typed until the program goes, as one key may be lost between prompt and reading."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                os.write(self.fd, typed.encode())
                self.read()
            except OSError:  # the other end has gone
                pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it did not leave; read: {self.said[self.at:]!r}")


@pytest.fixture
def chat():
    open_ones = []

    def begin(*words, **env):
        open_ones.append(Terminal(*words, **env))
        return open_ones[-1]

    yield begin
    for t in open_ones:
        try:
            os.kill(t.pid, signal.SIGKILL)
            os.waitpid(t.pid, 0)
            os.close(t.fd)
        except OSError:
            pass


def test_a_conversation(chat, tmp_path):
    t = chat("--think", "off", "--stats")
    assert "Nora" in t.ask("My name is Nora.")
    answer = t.ask("What is my name?")
    assert "Nora" in answer
    # the second prompt begins with the whole first turn, which was not read again
    tokens, cached = map(int, re.search(r"\[(\d+) prompt tokens, (\d+) of them cached", answer).groups())
    assert 0 < cached < tokens
    file = tmp_path / "talk.json"
    assert "saved" in t.ask(f"/save {file}")
    talk = json.loads(file.read_text())
    assert [m["role"] for m in talk] == ["user", "assistant"] * 2 and "Nora" in talk[3]["content"]
    assert "forgotten" in t.ask("/reset")
    t.ask("What is my name?")
    t.ask(f"/save {file}")
    assert len(json.loads(file.read_text())) == 2
    file.write_text(json.dumps(talk))
    assert "loaded" in t.ask(f"/load {file}")
    assert "Nora" in t.ask("What is my name?")
    t.type("/exit")
    assert t.end() == 0


def test_commands(chat, tmp_path):
    t = chat()
    assert "4 + 8 = 12" in t.ask("What is 34 + 58?")  # thinks first, and shows it
    assert "thinking off" in t.ask("/think off")
    assert "4 + 8 = 12" not in t.ask("What is 34 + 58?")
    assert "begun anew" in t.ask("/system You are Leo, a pirate.")
    assert "Leo" in t.ask("Who are you?")
    assert "/save FILE" in t.ask("/help")
    assert "/help lists" in t.ask("/nonsense")
    assert "/help lists" in t.ask("/save")
    assert "none" in t.ask(f"/load {tmp_path}/none")
    bad = tmp_path / "bad.json"
    for text in ("{}", "[", '[{"role":"nobody","content":"x"}]'):
        bad.write_text(text)
        assert "calla: " in t.ask(f"/load {bad}")
    t.ask(f"/save {bad}")
    assert [m["role"] for m in json.loads(bad.read_text())] == ["system", "user", "assistant"]  # what failed to load changed nothing
    assert t.end("\x15\x04") == 0  # Ctrl-U empties the line, Ctrl-D on an empty one leaves


def test_continued_lines(chat, tmp_path):
    t = chat("--think", "off")
    t.type("What is \\")
    t.wait(". ")
    t.ask("34 + 58?")
    t.ask(f"/save {tmp_path}/talk.json")
    assert json.loads((tmp_path / "talk.json").read_text())[0]["content"] == "What is \n34 + 58?"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", ""])
def test_other_scripts_whatever_the_locale(chat, tmp_path, locale):
    t = chat("--think", "off", LC_ALL=locale, LANG=locale)
    text = "Repeat after me: Zürich, 漢字 🙂."
    assert "Zürich" in t.ask(text)
    os.write(t.fd, b"broken \xe6\xbc end\n")
    t.wait("\n> ")
    t.ask(f"/save {tmp_path}/talk.json")
    said = [m["content"] for m in json.loads((tmp_path / "talk.json").read_text())]
    assert said[0] == text and said[2].replace("\ufffd", "") == "broken  end"


def test_ctrl_c_stops_the_answer_only(chat, tmp_path):
    """At temperature 100 the model babbles for thousands of ids unless it is stopped."""
    t = chat("--think", "off", "--temperature", "100", "--seed", "5", "--max-seq", "100000")
    t.type("Tell me a very long story about a bear.")
    end = time.monotonic() + 60
    while len(t.said) - t.at < 150:
        assert time.monotonic() < end
        t.read()
    os.write(t.fd, b"\x03")
    assert "[stopped]" in t.wait("\n> ", 30)
    file = tmp_path / "talk.json"
    t.ask(f"/save {file}")
    roles = [m["role"] for m in json.loads(file.read_text())]
    assert roles == ["user", "assistant"]
    os.write(t.fd, b"half a line\x03")  # at the prompt it drops what was typed
    t.wait("leaves)")
    t.ask(f"/save {file}")
    assert len(json.loads(file.read_text())) == 2
    t.type("/exit")
    assert t.end() == 0


def test_ctrl_c_behind_typed_keys_is_seen(chat):
    """The terminal throws away what was typed before Ctrl-C, perhaps just when the program is about to read it."""
    t = chat()
    for _ in range(400):
        os.write(t.fd, b"abc")
        os.write(t.fd, b"\x03")
        t.wait("leaves)", 10)
    t.type("/exit")
    assert t.end("/exit\n") == 0


def test_ctrl_c_at_any_moment_keeps_the_program(chat):
    """Between the line and its answer, in a write, at the prompt: wherever it strikes, the next line is read and answered."""
    for i in range(40):
        t = chat("--temperature", "100", "--seed", "3", "--max-seq", "100000")
        t.type("What is 34 + 58?")
        t.wait("\n")
        time.sleep(i % 8 / 2000)
        os.write(t.fd, b"\x03")
        try:
            t.wait("\n> ", 2)
        except AssertionError:  # the key came before the terminal knew it as a signal: press it again
            os.write(t.fd, b"\x03")
            t.wait("\n> ")
        t.type("/help")
        t.wait("/reset")
        os.kill(t.pid, signal.SIGKILL)
        os.waitpid(t.pid, 0)
        os.close(t.fd)


def test_ctrl_c_before_any_answer_takes_the_turn_back(chat, tmp_path):
    """While it thinks there is no answer yet: an interrupted turn leaves nothing behind."""
    t = chat("--temperature", "100", "--seed", "3", "--max-seq", "100000")
    for _ in range(20):  # until one is caught in its thoughts
        t.type("What is 34 + 58?")
        t.wait("\n")
        while len(t.said) == t.at:  # a key before the first thought may still be read by the line editor
            t.read()
        os.write(t.fd, b"\x03")
        if "[stopped] [no answer: your turn is taken back]" in t.wait("\n> "):
            break
        t.ask("/reset")
    else:
        pytest.fail("no answer was interrupted before its first word")
    file = tmp_path / "talk.json"
    t.ask(f"/save {file}")
    assert json.loads(file.read_text()) == []
    t.type("/exit")
    assert t.end() == 0
