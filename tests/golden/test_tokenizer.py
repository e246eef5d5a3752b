"""calla's tokenizer against Hugging Face's `tokenizers` with the real tokenizer.json (rebuilt by tools/make_tokenizer.py into .cache/).

Run by ctest; by hand: CALLA_TOKENIZE=build/tokenize python3 -m pytest -s tests/golden/test_tokenizer.py. CALLA_TIER=_slow takes more and
asserts the speed. Field cases 3, 4, 5 and 6.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import unicodedata

import pytest
import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SLOW = os.environ.get("CALLA_TIER") == "_slow"
COMMON = "ab1 \n\r\t'sS.,\u0301\u0323\u1161"
# of these code points a sample is enough: thousands that behave alike
UNIFORM = [(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0x12000, 0x14646), (0x16800, 0x18CFF), (0x1B000, 0x1B2FB),
           (0x20000, 0x2F7FF), (0x30000, 0x323AF), (0xF0000, 0x10FFFF)]


@pytest.fixture(scope="session")
def folder():
    """The real tokenizer, made once and kept in .cache/."""
    path = ROOT / ".cache" / "tokenizer"
    if not (path / "tokenizer.json").exists():
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as tmp:
            subprocess.run([sys.executable, ROOT / "tools" / "make_tokenizer.py", tmp], check=True)
            path.mkdir(exist_ok=True)
            os.replace(pathlib.Path(tmp) / "tokenizer.json", path / "tokenizer.json")
    return path


class Calla:
    def __init__(self, folder):
        self.process = subprocess.Popen([os.environ["CALLA_TOKENIZE"], str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.hello = json.loads(self.process.stdout.readline())

    def answer(self, data, control=True):
        self.process.stdin.write(struct.pack("<IB", len(data), control) + data)
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __call__(self, text, control=True):
        return self.answer(text.encode(), control)["ids"]


@pytest.fixture(scope="session")
def calla(folder):
    c = Calla(folder)
    yield c
    c.process.stdin.close()
    assert c.process.wait() == 0


@pytest.fixture(scope="session")
def peer(folder):
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def plain_peer(folder):
    """The same without added tokens: how text that is not the template's is to be read."""
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    data["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(data))


@pytest.fixture(scope="session")
def alphabet(calla):
    """Every assigned character that both sides' Unicode tables know alike."""
    version = lambda s: tuple(int(x) for x in s.split(".")[:2])
    ours = min(version(calla.hello["pcre2_unicode"]), version(calla.hello["utf8proc_unicode"]))
    data = unicodedata
    if ours < version(unicodedata.unidata_version):
        print(f"this Python's Unicode {unicodedata.unidata_version} is newer than the libraries' {ours}: only characters of Unicode 3.2 are tried")
        data = unicodedata.ucd_3_2_0
    chars = [c for c in map(chr, range(0x110000)) if data.category(c) not in ("Cn", "Cs")]
    # the peer's NFC tables are those of Unicode 9: marks that came later neither move nor join there
    nfc = tokenizers.normalizers.NFC().normalize_str
    late = {c for c in chars if unicodedata.category(c)[0] == "M" or unicodedata.decomposition(c)
            if any(nfc(t) != unicodedata.normalize("NFC", t) for t in (c, f"a{c}\u0323", f"a\u0345{c}", f"a\u0301{c}", f"{c}\u0301"))}
    print(f"{len(chars)} characters, without {len(late)} whose combining class the peer does not know")
    assert len(late) < 250 and all(unicodedata.ucd_3_2_0.category(c) == "Cn" for c in late)
    return [c for c in chars if c not in late]


def hex_of(text):
    return " ".join(f"{ord(c):04X}" for c in text[:60])


def compare(calla, peer, texts, control=True):
    n = 0
    for text in texts:
        ours, theirs = calla(text, control), peer.encode(text, add_special_tokens=False).ids
        assert ours == theirs, f"{text[:60]!r} = {hex_of(text)}"
        n += 1
    return n


def test_hello(calla):
    assert calla.hello["size"] == 248077
    print(f"opened in {calla.hello['open_ns'] / 1e6:.0f} ms; {calla.hello}")


def test_goldens(calla):
    cases = json.loads((HERE / "tokenizer.json").read_text(encoding="utf-8"))
    assert len(cases) > 100
    for case in cases:
        assert calla(case["text"]) == case["ids"], repr(case["text"][:60])


def test_every_character_in_context(calla, peer, alphabet):
    def chosen(c):
        return SLOW or not any(a <= ord(c) <= b and ord(c) % 97 for a, b in UNIFORM)

    texts = (f"a{c}1{c} {c}\n{c}'{c}sa {c}a\u0301{c}" for c in alphabet if chosen(c))
    n = compare(calla, peer, texts)
    print(f"{n} characters beside letter, digit, space, newline")
    assert n > 10000


def test_random_unicode(calla, peer, alphabet):
    rnd = random.Random(1)
    categories = {}
    for c in alphabet:
        categories.setdefault(unicodedata.category(c), []).append(c)
    names = sorted(categories)
    assert len(names) >= 28

    def texts():
        for _ in range(60000 if SLOW else 6000):
            n = rnd.choice([2, 6, 25])
            yield "".join(rnd.choice(categories[rnd.choice(names)]) + rnd.choice(COMMON) for _ in range(n))

    print(f"{compare(calla, peer, texts())} random strings over {len(names)} categories")


def test_normalisation(calla, peer, alphabet):
    rnd = random.Random(2)
    marks = [c for c in alphabet if unicodedata.combining(c)]
    blocks = [(0xC0, 0x24F), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x900, 0x97F), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF)]
    known = set(alphabet)
    pools = [[c for c in map(chr, range(a, b + 1)) if c in known] for a, b in blocks]

    def texts():
        for _ in range(20000 if SLOW else 2000):
            pool = rnd.choice(pools)
            text = "".join(rnd.choice(marks if rnd.random() < 0.4 else pool) for _ in range(rnd.choice([3, 10, 40])))
            for t in (text, unicodedata.normalize("NFD", text), unicodedata.normalize("NFC", text)):
                if known.issuperset(t):
                    yield t
        vietnamese = "Tiếng Việt có dấu: ẩ ẫ ậ ắ ằ ẳ ẵ ặ ế ề ể ễ ệ ố ồ ổ ỗ ộ ớ ờ ở ỡ ợ ứ ừ ử ữ ự"
        # the second: what looks like a final jamo and is none (utf8proc 2.8 drops it)
        for t in (vietnamese, "\u1106\u1165\u11a7", "각 한국어 힣", "Å\u212bA\u030a", "\u0958\u2126\u1e9b\u0323"):
            yield unicodedata.normalize("NFD", t)
            yield t

    print(f"{compare(calla, peer, texts())} strings of marks, jamo and decomposed letters")


def source_files():
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60] + sorted((ROOT / "src").rglob("*.[ch]"))
    return [f.read_text(encoding="utf-8", errors="replace") for f in files]


def test_code(calla, peer):
    rnd = random.Random(3)
    files = source_files()

    def texts():
        for text in files:
            yield text[:10000]
        for _ in range(5000 if SLOW else 500):
            soup = [rnd.choice(files) for _ in range(4)]
            cuts = [rnd.randrange(len(t)) for t in soup]
            yield "".join(t[c : c + rnd.choice([1, 5, 40, 200])] + rnd.choice(["", " ", "\t", "\r\n", "\n\n\n", "->", "123456", "'LL"]) for t, c in zip(soup, cuts))

    print(f"{compare(calla, peer, texts())} pieces of source code")


def test_control_tokens(calla, peer, plain_peer):
    rnd = random.Random(4)
    added = [t.content for t in peer.get_added_tokens_decoder().values()]
    assert len(added) == 33
    parts = added + [t[:-1] for t in added] + [t[1:] for t in added] + ["<", "|", ">", " ", "\n", "x", "user", "e", "\u0301"]
    texts = added + [f"{t}{t}" for t in added] + ["".join(rnd.choice(parts) for _ in range(rnd.choice([2, 5, 15]))) for _ in range(2000)]
    compare(calla, peer, texts)
    compare(calla, plain_peer, texts, control=False)


def test_invalid_utf8(calla):
    for data, at in [(b"\xff", 0), (b"abc\xc3", 3), (b"ok \xed\xa0\x80", 3), (b"<|im_end|>\xc0\x80", 10)]:
        assert f"byte {at} " in calla.answer(data)["error"]


def mixed_text(n):
    """English, code and CJK in equal parts of bytes."""
    rnd = random.Random(5)
    english = (ROOT / "models" / "mini" / "eval.txt").read_text(encoding="utf-8")
    code = "".join(source_files())
    sentences = ["日本語のテキスト、漢字。", "机器学习是人工智能的一个分支，", "它研究计算机怎样模拟人类的学习行为。", "한국어로 쓴 문장입니다. ", "今日は良い天気ですね。", "我们在这里讨论分词器的速度。"]
    cjk = "".join(rnd.choice(sentences) for _ in range(n // 60))
    parts = [(t * (n // len(t) + 1))[: n // 3] for t in (english, code, cjk[: n // 9])]
    return "\n".join(parts)


def test_speed(calla, peer):
    text = mixed_text(3_000_000 if SLOW else 500_000)
    data = text.encode()
    fast = getattr(peer, "encode_batch_fast", peer.encode_batch)
    ours, theirs, ids = [], [], None
    for _ in range(3):
        for encode in (lambda: peer.encode(text, add_special_tokens=False), lambda: fast([text], add_special_tokens=False)[0]):
            start = time.process_time()
            ids = encode().ids
            theirs.append(time.process_time() - start)
        answer = calla.answer(data)
        assert answer["ids"] == ids
        ours.append(answer["ns"] / 1e9)
    ratio = min(theirs) / min(ours)
    print(f"{len(data) / 1e6:.1f} MB: calla {len(data) / min(ours) / 1e6:.1f} MB/s, tokenizers {len(data) / min(theirs) / 1e6:.1f} MB/s on one thread: {ratio:.1f} times as fast")
    if SLOW:
        assert ratio >= 1


HOSTILE = {
    "one letter": lambda n: "a" * n,
    "spaces": lambda n: " " * n,
    "newlines": lambda n: "\n" * n,
    "spaces then a letter": lambda n: " " * n + "x",
    "mixed white space": lambda n: " \n" * (n // 2),
    "combining marks": lambda n: "\u0301" * (n // 2),
    "marks out of order": lambda n: "\u0301" * (n // 4) + "\u0316" * (n // 4),
    "begun control tokens": lambda n: "<|im_" * (n // 5),
    "signs": lambda n: "!" * n,
    "digits": lambda n: "1" * n,
    "one Han character": lambda n: "中" * (n // 3),
    "random letters": lambda n: "".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=n)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(calla, name):
    data = [HOSTILE[name](n).encode() for n in (250_000, 500_000)]
    rounds = [[calla.answer(d)["ns"] / 1e6 for d in data] for _ in range(5)]
    half, full = (min(r[i] for r in rounds) for i in range(2))
    print(f"{name}: 250 KB in {half:.1f} ms, 500 KB in {full:.1f} ms")
    assert full < 3 * half + 10  # 10 ms: a moment's noise; quadratic time would be seconds here
    assert full < 5000
