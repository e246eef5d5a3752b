#!/usr/bin/env python3
"""Compare base/json.h with Python's json on the fuzz corpus and on random documents, valid and damaged.

    json_against_python.py JSON_ECHO [ROUNDS]

JSON_ECHO is the program json_echo: it reads length-prefixed documents and answers each with "0" or "1" and the
text that json_write_python gives. Python is told to be as strict as we are: no NaN, no repeated keys, depth at most 64,
no lone surrogates, and numbers keep their own text.
"""
import json, os, random, struct, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))


class Number(str):
    pass


def pairs(items):
    keys = [k for k, _ in items]
    if len(set(keys)) != len(keys):
        raise ValueError("repeated key")
    return dict(items)


def refuse(word):
    raise ValueError(word)


def write(v, depth=0):
    """json.dumps(v, ensure_ascii=False), but numbers by their own text."""
    if isinstance(v, Number):
        return str(v)
    if isinstance(v, (dict, list)) and depth == 64:
        raise ValueError("depth")
    if isinstance(v, list):
        return "[" + ", ".join(write(x, depth + 1) for x in v) + "]"
    if isinstance(v, dict):
        return "{" + ", ".join(json.dumps(k, ensure_ascii=False) + ": " + write(x, depth + 1) for k, x in v.items()) + "}"
    return json.dumps(v, ensure_ascii=False)


def python(document):
    try:
        text = document.decode("utf-8")
        if text.startswith("\ufeff"):
            return None
        out = write(json.loads(text, parse_int=Number, parse_float=Number, parse_constant=refuse, object_pairs_hook=pairs))
        return out.encode("utf-8")  # fails for a lone surrogate
    except (ValueError, RecursionError):
        return None


def random_value(rng, depth=0):
    kind = rng.randrange(10 if depth < 6 else 7)
    if kind < 2:
        return rng.choice(["null", "true", "false", "0", "-0", "1", "-17", "1.50", "2e5", "3E-7", "-0.0e+00", "12345678901234567890"])
    if kind < 7:
        letters = 'ab "\\/\n\t\x01\x1f\x7fé漢🙂\u2028\u0000'
        return json.dumps("".join(rng.choice(letters) for _ in range(rng.randrange(6))), ensure_ascii=rng.random() < 0.5)
    items = [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    space = lambda: " " * rng.randrange(2)
    if kind == 7:
        return "{" + ",".join(f'{space()}"{rng.randrange(9)}":{space()}{x}' for x in items) + "}"
    return "[" + ",".join(space() + x + space() for x in items) + "]"


def damage(rng, document):
    b = bytearray(document)
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(len(b) + 1)
        what = rng.randrange(4)
        if what == 0 and at < len(b):
            del b[at]
        elif what == 1:
            b.insert(at, rng.choice(b'{}[],:"\\0123456789.eE+-untf \x00\x80\xc3\xff'))
        elif what == 2 and at < len(b):
            b[at] = rng.randrange(256)
        else:
            del b[at:]
    return bytes(b)


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    rng = random.Random(1)
    documents = []
    corpus = os.path.join(HERE, "..", "..", "fuzz", "corpus", "json")
    for name in sorted(os.listdir(corpus)):
        with open(os.path.join(corpus, name), "rb") as f:
            documents.append(f.read())
    for _ in range(rounds):
        d = random_value(rng).encode("utf-8", "surrogatepass")
        documents += [d, damage(rng, d)]
    data = b"".join(struct.pack("<I", len(d)) + d for d in documents)
    out = subprocess.run([sys.argv[1]], input=data, stdout=subprocess.PIPE, check=True).stdout
    at = accepted = wrong = 0
    for d in documents:
        ok, n = struct.unpack_from("<BI", out, at)
        ours = out[at + 5:at + 5 + n] if ok else None
        at += 5 + n
        theirs = python(d)
        accepted += ok
        if ours != theirs:
            wrong += 1
            if wrong <= 10:
                print(f"differs: {d!r}\n  ours   {ours!r}\n  python {theirs!r}")
    print(f"{len(documents)} documents, {accepted} valid, {wrong} different")
    return 1 if wrong or at != len(out) or not accepted else 0


if __name__ == "__main__":
    sys.exit(main())
