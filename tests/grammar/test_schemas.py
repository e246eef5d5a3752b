"""Schemas against Python's json and jsonschema: what is drawn through the masks is valid, what is valid in canonical form is accepted, what cannot
be enforced is refused by name, and hostile schemas end quickly. The masks themselves are compared with every id alone (grammar_walk)."""
import json
import os
import pathlib
import random
import subprocess

import jsonschema
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CALLA_BIN", ROOT / "build"))


SANITIZED = "sanitize" in (BIN / "CMakeCache.txt").read_text() if (BIN / "CMakeCache.txt").exists() else False  # such a build holds on to what is freed


class Walker:
    def __init__(self):
        self.process = subprocess.Popen([str(BIN / "grammar_walk"), str(ROOT / "models" / "mini")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, **fields):
        self.process.stdin.write(json.dumps({"schema": schema, **fields}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"grammar_walk ended with {self.process.wait()} on {schema}"
        return json.loads(line)


@pytest.fixture(scope="module")
def walker():
    w = Walker()
    yield w
    w.process.stdin.close()
    assert w.process.wait() == 0


def strict_loads(text):
    def pairs(members):
        return dict(members)
    return json.loads(text, object_pairs_hook=pairs, parse_constant=lambda c: pytest.fail(f"{c} in {text}"))


def check(walker, schema, walks=6, check=1, seed=1, texts=()):
    got = walker.ask(schema, seed=seed, walks=walks, check=check, texts=list(texts))
    assert "error" not in got, (schema, got)
    ended = [t for t in got["walks"] if t is not None]
    for text in ended:
        value = strict_loads(text)
        if schema is not None and "nullable" not in json.dumps(schema):  # OpenAPI's word, not jsonschema's
            jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
        elif schema is None:
            assert isinstance(value, dict)
    return ended, got["accepted"]


PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "mail": {"type": ["string", "null"]}},
          "required": ["name", "age", "mail"], "additionalProperties": False}
TREE = {"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                                                            "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                           "required": ["value", "left", "right"], "additionalProperties": False}}, "$ref": "#/$defs/node"}
SHAPES = {"anyOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0}}, "required": ["kind", "radius"]},
                    {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number", "minimum": 1, "maximum": 9.5}}, "required": ["kind", "side"]},
                    {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2}]}

# schema, texts that must be accepted, texts that must not
CASES = [
    (None, ['{}', '{"a":[1,{"b":null}]}', '{ "a" : 1}'.replace(" :", ":")], ['[]', '1', '{"a":1,}', '{"a"}', '{"a":01}', '{"a":1} ', ' {}', '{"a":\n\n1}']),
    ({}, ['1', 'null', '"x"', '[true,false]', '-0.5', '1e5', '[ ]', '[\n  1,\n  2\n]'], ['', 'nul', '+1', '.5', '1.', "'x'", 'NaN', '[1 ,2]']),
    (True, ['{"a":1}'], ['{a:1}']),
    ({"type": "string"}, ['""', '"\\u00e9\\n\\"\\/"', '"é😀"', '"\\ud83d\\ude00"'], ['"\\ud83d"', '"\\ude00"', '"\n"', '"\\x41"', '"', 'x', '"\\ud83d\\u0041"']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"', '"é😀"', '"\\ud83d\\ude00a"'], ['""', '"a"', '"abcd"', '"\\ud83d\\ude00"']),
    ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    ({"type": "integer"}, ['0', '-1', '123456789012345678901234'], ['1.0', '01', '-0', '1e3', '']),
    ({"type": "integer", "minimum": -15, "maximum": 120}, [str(i) for i in range(-15, 121)], ['-16', '121', '-120', '1200', '00', '-0']),
    ({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 1001}, ['10', '99', '100', '999', '1000'], ['9', '1001', '1', '-10']),
    ({"type": "integer", "minimum": 1.5, "maximum": 3.5}, ['2', '3'], ['1', '4']),
    ({"type": "integer", "minimum": 98765432109876543210}, ['98765432109876543210', '98765432109876543211'], ['98765432109876543209', '9']),
    ({"type": "number"}, ['0', '0.1', '-1.5e-3', '12E+4'], ['.1', '1.', '01.5', '1e', '1e1000']),
    ({"type": "number", "minimum": 0.25, "maximum": 10}, ['0.25', '0.250', '0.3', '9.999', '10', '10.0', '2'], ['0.24', '0.2', '10.1', '0', '-1', '11', '1e0']),
    ({"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0}, ['-0.5', '-0.9999', '-0.0001'], ['-1', '0', '-1.0', '-0', '0.1', '-0.0']),
    ({"type": "number", "minimum": 1e2, "maximum": 1.5e2}, ['100', '125.5', '150'], ['99.9', '150.1']),
    ({"type": "boolean"}, ['true', 'false'], ['True', '1']),
    ({"type": "null"}, ['null'], ['None']),
    ({"type": ["integer", "null"]}, ['null', '3'], ['"3"', '3.5']),
    ({"enum": ["a", "ab", 1, None, [1, {"b": "c"}], "\u00e9\""]}, ['"a"', '"ab"', '1', 'null', '[1,{"b":"c"}]', '"é\\""'], ['"b"', '"abc"', '2', '[1]']),
    ({"const": {"x": 1}}, ['{"x":1}'], ['{}', '{"x":2}']),
    ({"type": "string", "enum": ["a", 1]}, ['"a"'], ['1']),
    (PERSON, ['{"name":"x","age":3,"mail":null}', '{"name": "x", "age": 150, "mail": "y"}', '{\n  "name": "x",\n  "age": 3,\n  "mail": null\n}'],
     ['{"age":3,"name":"x","mail":null}', '{"name":"x","age":151,"mail":null}', '{"name":"x","age":3}', '{"name":"x","age":3,"mail":null,"more":1}']),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, "required": ["b"]},
     ['{"b":1}', '{"a":1,"b":2}', '{"b":1,"c":2}', '{"a":1,"b":2,"c":3}'], ['{}', '{"a":1}', '{"c":1,"b":1}', '{"b":1,}', '{"b":1,"x":1}']),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
     ['{}', '{"a":1}', '{"b":"x"}', '{"a":1,"b":"x","ab":"y","":"z"}', '{"é":"x"}'], ['{"a":"x"}', '{"b":1}', '{"b":"x","a":1}']),
    ({"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2}, ['{"a":true}', '{"a":true,"b":false}'], ['{}', '{"a":true,"b":true,"c":true}', '{"a":1}']),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}}, ['{}', '{"ab":1}'], ['{"A":1}', '{"":1}']),
    ({"allOf": [{"propertyNames": {"pattern": "^a"}}, {"propertyNames": {"maxLength": 2}}], "type": "object", "additionalProperties": {"type": "integer"}}, ['{"ab":1}'], ['{"abc":1}', '{"b":1}']),
    ({"type": "object", "additionalProperties": False}, ['{}', '{ }'], ['{"a":1}']),
    ({"type": "object", "required": ["a"]}, ['{"a":null}', '{"a":[{}]}'], ['{}']),
    ({"type": "array", "items": {"type": "integer"}}, ['[]', '[1]', '[1, 2,\n3]'], ['[1,]', '["a"]', '[,1]']),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, ['[1,2]', '[1,2,3]', '[1,2 ]'], ['[]', '[1]', '[1,2,3,4]', '[1 ]']),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, ['[1,2,3]', '[1,2,3,4,5,6]'], ['[1,2]']),
    ({"type": "array", "maxItems": 0}, ['[]'], ['[1]']),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2}, ['[1,"a"]'], ['[1]', '["a",1]', '[1,"a",2]']),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}, ['[1]', '[1,true]', '[1,true,false]'], ['[]', '[true]', '[1,true,true,true]']),
    (TREE, ['{"value":1,"left":null,"right":{"value":2,"left":null,"right":null}}'], ['{"value":1,"left":null}', 'null']),
    (SHAPES, ['{"kind":"circle","radius":0.5}', '{"kind": "square", "side": 9.5}', '["abc",""]'], ['{"kind":"circle","side":1}', '{"kind":"square","side":0.5}', '["abcd"]', '["a","b","c"]']),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
     ['{"a":1,"b":"x"}'], ['{"a":1}', '{"b":"x"}']),
    ({"allOf": [{"type": "object", "properties": {"a": {"minimum": 3}}}, {"properties": {"a": {"type": "integer", "maximum": 5}}, "required": ["a"]}]}, ['{"a":3}', '{"a":5}'], ['{"a":2}', '{"a":6}', '{}']),
    ({"type": "object", "properties": {"kind": {"type": "string"}, "n": {"type": "integer"}}, "required": ["kind", "n"], "additionalProperties": False,
      "anyOf": [{"properties": {"kind": {"const": "small"}, "n": {"maximum": 9}}}, {"properties": {"kind": {"const": "large"}, "n": {"minimum": 10}}}]},
     ['{"kind":"small","n":9}', '{"kind":"large","n":10}'], ['{"kind":"small","n":10}', '{"kind":"large","n":9}', '{"kind":"x","n":1}']),
    ({"allOf": [{"minimum": 3}, {"maximum": 7}, {"minimum": 5}], "type": "integer"}, ['5', '7'], ['3', '8']),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'], ['{}']),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ['1', '"a"'], ['true']),
    ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "integer"}}}, ['1'], ['"a"']),
    ({"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"}, ['"AB-123"'], ['"AB-12"', '"ab-123"', '"AB-1234"']),
    ({"type": "string", "pattern": "b+"}, ['"b"', '"abbc"', '"\\nb"'], ['"a"', '""']),
    ({"type": "string", "pattern": "^(?:a|bc)*$", "minLength": 2, "maxLength": 5}, ['"aa"', '"bc"', '"abca"', '"aaaaa"', '"bcbca"'], ['"a"', '"b"', '"aaaaaa"', '""']),
    ({"type": "string", "pattern": "^[^\\s\"]+$"}, ['"é"', '"\\\\"'], ['" "', '"\\""', '"a b"']),
    ({"type": "string", "pattern": "^\\p"[:2] + "w.\\.$"}, ['"a\\"."', '"aé."'], ['"a."', '"é.."']),
    ({"type": "string", "format": "date-time"}, ['"2024-02-28T23:59:59Z"', '"1999-12-31T00:00:00.5+02:00"'], ['"2024-02-30T00:00:00Z"', '"2024-01-01"', '"2024-13-01T00:00:00Z"']),
    ({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123e4567"']),
    ({"type": "string", "format": "ipv4"}, ['"0.0.0.0"', '"255.255.255.255"'], ['"256.1.1.1"', '"1.1.1"', '"01.1.1.1"']),
    ({"type": "string", "format": "ipv6"}, ['"::"', '"::1"', '"2001:db8::ff00:42:8329"', '"1:2:3:4:5:6:7:8"'], ['"1:2"', '":::"', '"1::2::3"']),
    ({"type": "string", "format": "email"}, ['"a.b@example.com"'], ['"a@b"', '"@example.com"', '"a@@example.com"']),
    ({"type": "string", "format": "unheard-of"}, ['"x"'], ['1']),
    ({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}, ['"https://example.com/a?b=c"', '"mailto:x"'], ['""', '"no uri"']),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 100000}, ['"abc"'], ['"ab"', '"ABC"']),
    ({"required": ["b", "a", "c"], "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}, ['{"a":1,"b":2,"c":null}'], ['{"b":2,"a":1,"c":null}', '{"c":null,"a":1,"b":2}']),
    ({"required": ["b", "a"], "allOf": [{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}]}, ['{"a":1,"b":2}'], ['{"b":2,"a":1}']),
    ({"type": "string", "nullable": True}, ['null', '"x"'], ['1']),
    ({"type": "integer", "anyOf": [{"minimum": 100}, {"maximum": -100}]}, ['100', '-100'], ['0']),
    ({"title": "T", "description": "d", "default": 1, "examples": [1], "x-mine": {"not": 1}, "type": "integer"}, ['1'], ['"1"']),
]


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: json.dumps(CASES[i][0])[:60])
def test_cases(walker, case):
    schema, good, bad = CASES[case]
    _, accepted = check(walker, schema, seed=case, texts=good + bad)
    assert accepted == [True] * len(good) + [False] * len(bad), [t for t, a in zip(good + bad, accepted) if a != (t in good)]


REFUSED = [
    ({"not": {}}, "not"), ({"type": "object", "properties": {"a": {"multipleOf": 3}}}, "properties.a.multipleOf"), ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"if": {}, "then": {}}, "if"), ({"patternProperties": {"a": {}}}, "patternProperties"), ({"anyOf": [{"type": "string"}, {"contains": {}}]}, "anyOf.1.contains"),
    ({"$ref": "http://example.com/x"}, "$ref"), ({"$ref": "#/$defs/none"}, "$ref"), ({"type": "strin"}, "type"), ({"items": 3}, "items"), ({"enum": 3}, "enum"),
    ({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "properties.a.pattern"), ({"type": "string", "pattern": "(a)\\1"}, "pattern"), ({"type": "string", "pattern": "\\bx"}, None),
    ({"type": "string", "pattern": "(((((("}, None), ({"type": "string", "pattern": "*a"}, None), ({"type": "string", "pattern": "a**"}, None), ({"type": "string", "pattern": "[z-a]"}, None),
    ({"minLength": -1}, "minLength"), ({"minimum": "3"}, "minimum"),
    ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "additionalProperties": False}]}, "allOf.1.additionalProperties"),
    ({"allOf": [{"prefixItems": [{"type": "string"}]}, {"items": {"type": "integer"}}]}, "allOf.1.items"), ({"enum": [{"a": 1}], "additionalProperties": False}, "enum.0"),
    ({"enum": ["abc"], "maxLength": 2}, "enum.0"), ({"enum": ["x"], "format": "date"}, "enum.0"),
    ({"allOf": [{"items": [{"type": "string"}]}, {"items": [{"type": "integer"}]}]}, "allOf.1.items"),
    ({"allOf": [{"prefixItems": [{"type": "string"}]}, {"items": [{"type": "integer"}]}]}, "allOf.1.items"),
    ({"allOf": [{"properties": {"b": {}}, "additionalProperties": False}, {"properties": {"a": {}}}]}, "allOf.1.properties.a"),
    ({"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "integer"}}}], "required": ["a"]}, None),
    (False, None), ({"enum": []}, None), ({"type": "integer", "minimum": 3, "maximum": 2}, None), ({"$ref": "#"}, None), ({"anyOf": [{"$ref": "#"}]}, None),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, None), ({"type": "array", "items": {"enum": []}, "minItems": 1}, None),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"), ({"unevaluatedProperties": False}, "unevaluatedProperties"), ({"properties": {"a": {}}, "minProperties": 1}, None),
]


@pytest.mark.parametrize("case", range(len(REFUSED)), ids=lambda i: json.dumps(REFUSED[i][0])[:60])
def test_refused_by_name(walker, case):
    schema, param = REFUSED[case]
    got = walker.ask(schema, walks=1)
    assert got["error"], got
    if param:
        assert got["param"] == param and param in got["error"]


def hostile():
    deep = {"type": "integer"}
    for _ in range(25):
        deep = {"type": "array", "items": deep}
    yield "deep", deep, True
    yield "names", {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}, True
    yield "required", {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1500)}, "required": [f"p{i}" for i in range(1500)]}, True
    yield "values", {"enum": [f"value number {i}" for i in range(1200)]}, True
    yield "alternatives", {"anyOf": [{"type": "object", "properties": {f"k{i}": {"type": "string"}, "x": {"type": "integer"}}} for i in range(300)]}, True
    yield "cross", {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(40)]} for i in range(8)]}, False
    yield "self", {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "string"}]}, False
    yield "mutual", {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, False
    yield "ambiguous", {"$defs": {"t": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/t"}}, {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 3}, {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 4}]}},
                        "$ref": "#/$defs/t"}, True
    yield "repeats", {"type": "string", "pattern": "((((a{1000}){1000}){1000}){1000})"}, False
    yield "empty repeats", {"type": "string", "pattern": "((((a{0}){5000}){5000}){5000})"}, False
    yield "exponential", {"type": "string", "pattern": "^(?:a|b)*a(?:a|b){18}$"}, False
    yield "groups", {"type": "string", "pattern": "(" * 30 + "a" + ")" * 30}, True
    yield "too many groups", {"type": "string", "pattern": "(" * 3000 + "a" + ")" * 3000}, False
    yield "long", {"type": "string", "pattern": "^[a-z]+$", "minLength": 100000}, False
    yield "counts", {"type": "array", "items": {"type": "string", "minLength": 4000000000}, "minItems": 4000000000}, True
    yield "numbers", {"type": "object", "properties": {f"n{i}": {"type": "number", "minimum": i + 0.125, "maximum": i * 1000 + 7.5} for i in range(60)}}, True
    yield "large", {"description": "x" * 300000}, False
    yield "alternatives of true", {"enum": [], "anyOf": [True] * 40, "oneOf": [True] * 40, "allOf": [{"anyOf": [True] * 40}] * 6}, False
    yield "alternatives of nothing", {"minLength": 2, "maxLength": 1, "type": "string", "anyOf": [{}] * 40, "oneOf": [{}] * 40, "allOf": [{"anyOf": [{}] * 40}] * 6}, False
    yield "enums in common", {"allOf": [{"enum": list(range(18000))}, {"enum": list(range(20000, 38000))}]}, False
    yield "enums in common, deep", {"allOf": [{"enum": [[i] for i in range(9000)]}, {"enum": [[i] for i in range(20000, 29000)]}]}, False
    yield "enums behind alternatives", {"$defs": {"e": {"enum": list(range(5000))}}, "enum": list(range(6000, 11000)), "oneOf": [{}] * 100, "anyOf": [{"$ref": "#/$defs/e"}] * 100}, False
    yield "enums kept", {"type": "null", "$defs": {"e": {"enum": [0] * 60000}}, "oneOf": [{}] * 100, "anyOf": [{"$ref": "#/$defs/e"}] * 100}, False
    yield "far references", {"x": [0] * 119998 + [{}, {"enum": []}], "oneOf": [{"$ref": "#/x/119999"}] * 150, "anyOf": [{"$ref": "#/x/119999"}] * 150}, False
    yield "names over and over", {"$defs": {"a": {"properties": {f"p{i}": {} for i in range(2000)}}}, "allOf": [{"$ref": "#/$defs/a"}] * 8000}, False
    yield "members of others", {"$defs": {"a": {"properties": {f"p{i}": {} for i in range(1900)}, "additionalProperties": False}}, "allOf": [{"$ref": "#/$defs/a"}] * 1000}, False
    yield "unknown keywords", {"$defs": {"a": {f"x{i}": 0 for i in range(18000)} | {"enum": []}}, "oneOf": [{"$ref": "#/$defs/a"}] * 100, "anyOf": [{"$ref": "#/$defs/a"}] * 100}, False
    yield "types", {"$defs": {"a": {"type": ["null"] * 25000, "enum": []}}, "oneOf": [{"$ref": "#/$defs/a"}] * 100, "anyOf": [{"$ref": "#/$defs/a"}] * 100}, False
    yield "long names of groups", {"type": "string", "pattern": "((?<" + "x" * 200000 + ">x){5000}){4}"}, False
    yield "long counts", {"type": "string", "pattern": "((?:a{" + "0" * 100000 + "1}){5000}){4}"}, False
    yield "references to much", {"$defs": {"a": {f"x{i}": 0 for i in range(10000)}}, "properties": {f"p{i}": {"$ref": "#/$defs/a"} for i in range(1900)}}, False


HOSTILE = {name: (schema, good) for name, schema, good in hostile()}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_end_soon(walker, name):
    schema, good = HOSTILE[name]
    got = walker.ask(schema, walks=0)
    assert ("error" not in got) == good, got
    assert got["seconds"] < 3, got  # 0.6 s on one core of 2021; the rest is for sanitizers
    assert SANITIZED or got["grown"] < 200 << 10, got  # the process, in KiB; it is the largest of all schemas so far that counts


def random_schema(rng, depth=0):
    """A schema of the supported keywords that something satisfies."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "pattern"] + (["object", "array", "anyOf", "map", "tuple"] * 2 if depth < 3 else [])
    kind = rng.choice(kinds)
    if kind == "string":
        low = rng.randrange(4)
        return {"type": "string", **({"minLength": low} if rng.random() < 0.4 else {}), **({"maxLength": low + rng.randrange(12)} if rng.random() < 0.5 else {})}
    if kind in ("integer", "number"):
        low = rng.randrange(-300, 300) if kind == "integer" else round(rng.uniform(-50, 50), rng.randrange(3))
        return {"type": kind, **({"minimum": low} if rng.random() < 0.5 else {}), **({"maximum": low + rng.randrange(500)} if rng.random() < 0.5 else {})}
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", "re", 1, 2.5, None, True, [1, 2], {"a": "b"}, "grün \"x\"", ""], rng.randrange(1, 5))}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-f]{1,4}$", "^(?:ab|c)+$", "x.y", "^\\d+(?:\\.\\d)?$", "^[^a-z]{2}$", "é"])}
    if kind == "object":
        names = rng.sample(["a", "b", "ab", "name", "na", "ключ", "with space", "q\"q"], rng.randrange(1, 5))
        return {"type": "object", "properties": {n: random_schema(rng, depth + 1) for n in names}, "required": [n for n in names if rng.random() < 0.6],
                **({"additionalProperties": random_schema(rng, depth + 1)} if rng.random() < 0.2 else {"additionalProperties": False})}
    if kind == "map":
        return {"type": "object", "additionalProperties": random_schema(rng, depth + 1)}
    if kind == "array":
        low = rng.randrange(3)
        return {"type": "array", "items": random_schema(rng, depth + 1), **({"minItems": low} if rng.random() < 0.5 else {}), **({"maxItems": low + rng.randrange(1, 4)} if rng.random() < 0.6 else {})}
    if kind == "tuple":
        items = [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 3))]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randrange(2, 4))]}
    return {"type": kind}


def random_value(rng, schema):
    """A value of a random_schema, to be accepted in canonical form; None where this does not know one (`skip`)."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return random_value(rng, rng.choice(schema["anyOf"]))
    kind = schema["type"]
    if kind == "string":
        if "pattern" in schema:
            return {"^[a-f]{1,4}$": "abf", "^(?:ab|c)+$": "abcab", "x.y": "--x\"y", "^\\d+(?:\\.\\d)?$": "12.5", "^[^a-z]{2}$": "é\n", "é": "né"}[schema["pattern"]]
        low, high = schema.get("minLength", 0), schema.get("maxLength", 20)
        return "".join(rng.choice("abc \"\\\n/é漢😀\t}]{[,:0") for _ in range(rng.randrange(low, high + 1)))
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("maximum", 0) - 100)
        high = schema.get("maximum", low + 1000)
        return rng.randint(int(-(-low // 1)), int(high // 1)) if kind == "integer" or rng.random() < 0.3 else min(max(round(rng.uniform(low, high), 4), low), high)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        if "prefixItems" in schema:
            return [random_value(rng, s) for s in schema["prefixItems"]]
        low = schema.get("minItems", 0)
        return [random_value(rng, schema["items"]) for _ in range(rng.randrange(low, schema.get("maxItems", low + 3) + 1))]
    value = {n: random_value(rng, s) for n, s in schema.get("properties", {}).items() if n in schema.get("required", []) or rng.random() < 0.5}
    if isinstance(schema.get("additionalProperties"), dict):
        value |= {f"more {i}": random_value(rng, schema["additionalProperties"]) for i in range(rng.randrange(3))}
    return value


@pytest.mark.parametrize("seed", range(60))
def test_random_schemas(walker, seed):
    rng = random.Random(seed)
    schema = random_schema(rng)
    values = [random_value(rng, schema) for _ in range(12)]
    compact = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":"))
    texts = [compact(v) for v in values]
    texts += [json.dumps(v, ensure_ascii=False, indent=2) for v in values if not has_constant_container(schema)]
    _, accepted = check(walker, schema, walks=8, check=1 if seed % 4 == 0 else 0, seed=seed, texts=texts)
    assert all(accepted), (schema, [t for t, a in zip(texts, accepted) if not a])


def has_constant_container(schema):
    """Containers in enum are compact only."""
    return any(json.dumps(c) in json.dumps(schema) for c in ([1, 2], {"a": "b"}))
