#!/usr/bin/env python3
"""calla against two other engines on a checkpoint of the real model's kernel dimensions.

    test_peers.py LOGPROBS_DRIVER [--preset slice] [--keep DIR]

Makes a random checkpoint (tools/make_checkpoint.py), asks transformers (float32 over the de-quantised weights, tools/reference.py) and mlx-lm (all
floating-point weights raised to float32) for log probabilities, and demands of calla's float32 mode: every stored log probability within 1e-3, and the same greedy
ids wherever the reference's two best differ by more than 2e-3. Reports the default mode and mlx-lm's own bfloat16 beside them without judging: random checkpoints are chaotic.
Exit 0: agreed; 1: not; 77: mlx, mlx-lm, torch or transformers is missing (ctest reads that as skipped).
"""
import argparse, importlib.util, json, os, subprocess, sys, tempfile

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
TOLERANCE, TIE = 1e-3, 2e-3


def missing():
    try:
        import mlx.core, mlx_lm, torch, transformers  # noqa: F401
    except ImportError as e:
        return str(e)
    return None


def reference(checkpoint, out, lengths, decode):
    subprocess.run([sys.executable, os.path.join(TOOLS, "reference.py"), checkpoint, out, "--lengths", lengths, "--decode", str(decode)], check=True)
    return json.load(open(out))["cases"]


def mlx_rows(checkpoint, sequences, float32):
    """For each list of ids the log probabilities [len][vocab] after each id, by mlx-lm."""
    from pathlib import Path
    import mlx.core as mx
    import numpy as np
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model
    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(checkpoint))
    if float32:
        model.update(tree_map(lambda a: a.astype(mx.float32) if a.dtype == mx.bfloat16 else a, model.parameters()))
    rows = []
    for ids in sequences:
        x = np.array(model(mx.array([ids]))[0].astype(mx.float32)).astype(np.float64)
        x -= x.max(-1, keepdims=True)
        rows.append(x - np.log(np.exp(x).sum(-1, keepdims=True)))
    return rows


def driver(program, checkpoint, mode, cases, forced):
    """calla's own greedy continuation, or (forced) its log probabilities along the reference's."""
    steps = len(cases[0]["steps"])
    prompts = [c["prompt"] + ([s["id"] for s in c["steps"]] if forced else []) for c in cases]
    out = subprocess.run([program, checkpoint, mode], input=json.dumps({"prompts": prompts, "steps": 0 if forced else steps, "top": 16}), capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    return json.loads(out.stdout)["cases"]


def along(cases, logprob):
    """Log probabilities of the reference's prompt and greedy ids: largest difference; logprob(case, position) is of the id at position + 1."""
    worst = 0.0
    for k, c in enumerate(cases):
        expected = c["prompt_logprobs"] + [s["top"][0][1] for s in c["steps"]]
        for i, x in enumerate(expected):
            worst = max(worst, abs(logprob(k, i) - x))
    return worst


def compare_greedy(cases, found):
    """Free-running greedy: (largest difference of a best-16 log probability while the ids agree, ids that differ in spite of a clear margin)."""
    worst, wrong = 0.0, 0
    for c, f in zip(cases, found):
        for s, t in zip(c["steps"], f["steps"]):
            mine = dict(map(tuple, t["top"]))
            worst = max([worst] + [abs(mine[i] - x) for i, x in s["top"][:12] if i in mine])
            if sum(i in mine for i, _ in s["top"][:12]) < 12:
                wrong += 1
            if s["id"] != t["id"]:
                wrong += s["top"][0][1] - s["top"][1][1] > TIE
                break
    return worst, wrong


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("driver")
    ap.add_argument("--preset", default="slice")
    ap.add_argument("--lengths", default="1,7,65")
    ap.add_argument("--decode", type=int, default=6)
    ap.add_argument("--keep", help="make or reuse the checkpoint and reference in this folder")
    a = ap.parse_args()
    why = missing()
    if why:
        print("skipped:", why)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        top = a.keep or scratch
        checkpoint, stored = os.path.join(top, a.preset), os.path.join(top, a.preset + ".json")
        if not os.path.exists(os.path.join(checkpoint, "config.json")):
            subprocess.run([sys.executable, os.path.join(TOOLS, "make_checkpoint.py"), checkpoint, "--preset", a.preset, "--seed", "3"], check=True)
        cases = json.load(open(stored))["cases"] if os.path.exists(stored) else reference(checkpoint, stored, a.lengths, a.decode)

        ok = True
        for mode in ("float32", "default"):
            forced, free = driver(a.driver, checkpoint, mode, cases, True), driver(a.driver, checkpoint, mode, cases, False)
            error = along(cases, lambda k, i: forced[k]["prompt_logprobs"][i])
            step_error, wrong = compare_greedy(cases, free)
            print(f"calla {mode}: along the reference's ids {error:.2e}, best of each step {step_error:.2e}, {wrong} steps wrong by a clear margin", flush=True)
            if mode == "float32":
                ok = error < TOLERANCE and step_error < TOLERANCE and wrong == 0
        ids = [c["prompt"] + [s["id"] for s in c["steps"]] for c in cases]
        for float32 in (True, False):
            rows = mlx_rows(checkpoint, ids, float32)
            error = along(cases, lambda k, i: float(rows[k][i, ids[k][i + 1]]))
            print(f"mlx-lm {'float32' if float32 else 'bfloat16'}: along the reference's ids {error:.2e}", flush=True)
            if float32 and error >= TOLERANCE:
                print("the two references disagree: neither can judge")
                ok = False
    print("agreed" if ok else "DISAGREED")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
