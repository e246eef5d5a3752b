"""A strict reader of Prometheus' text format 0.0.4, for the tests of /metrics."""
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:[a-zA-Z_][a-zA-Z0-9_]*=\"(?:[^\"\\\n]|\\[\\n\"])*\",?)*)\}})? (NaN|[+-]Inf|[-+0-9.eE]+)$")
LABEL = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)=\"((?:[^\"\\\n]|\\[\\n\"])*)\"")


def read(text):
    """{family: (type, {(sample name, labels as a sorted tuple): value})}. Anything that is not exactly the format fails."""
    assert text.endswith("\n") and "\r" not in text
    families, current = {}, None
    helped = set()
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped and len(line.split(" ", 3)) == 4, line
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in families and name in helped and kind in ("counter", "gauge", "histogram"), line
            current = name
            families[name] = (kind, {})
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            name, labels, value = found.groups()
            kind, samples = families[current]
            allowed = {current} if kind != "histogram" else {current + "_bucket", current + "_sum", current + "_count"}
            assert name in allowed, (current, line)
            pairs = LABEL.findall(labels or "")
            assert len({k for k, _ in pairs}) == len(pairs) and ",".join(f'{k}="{v}"' for k, v in pairs) == (labels or ""), line
            key = (name, tuple(sorted(pairs)))
            assert key not in samples, line
            samples[key] = float(value)
    for name, (kind, samples) in families.items():
        if kind == "counter":
            assert name.endswith("_total") and all(v >= 0 for v in samples.values()), name
        if kind == "histogram":
            check_histogram(name, samples)
    return families


def check_histogram(name, samples):
    series = {}
    for (sample, labels), value in samples.items():
        rest = tuple(pair for pair in labels if pair[0] != "le")
        series.setdefault(rest, {"bounds": [], "counts": []})
        if sample == name + "_bucket":
            series[rest]["bounds"].append(float(dict(labels)["le"]))
            series[rest]["counts"].append(value)
        else:
            series[rest][sample.removeprefix(name)] = value
    for labels, s in series.items():
        assert s["bounds"] == sorted(set(s["bounds"])) and s["bounds"][-1] == float("inf"), (name, labels)
        assert s["counts"] == sorted(s["counts"]) and s["counts"][-1] == s["_count"] >= 0 and s["_sum"] >= 0, (name, labels)
        assert s["_count"] > 0 or s["_sum"] == 0, (name, labels)
        assert s["_sum"] <= s["counts"][-2] * s["bounds"][-2] or s["counts"][-1] > s["counts"][-2], (name, labels)


def value(families, name, **labels):
    """One sample's value; 0 where there is none."""
    for kind, samples in families.values():
        if (name, tuple(sorted(labels.items()))) in samples:
            return samples[name, tuple(sorted(labels.items()))]
    return 0.0
