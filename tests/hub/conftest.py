"""What the tests of `calla pull` share: a stand-in hub, a cache of their own, and calla run with nothing but loopback in reach."""
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from standin import COMMIT, File, Hub  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALLA = pathlib.Path(os.environ.get("CALLA_BIN", ROOT / "build")) / "calla"
MINI = ROOT / "models" / "mini"
MIB = 1 << 20
PUBLISHED = "mlx-community/Qwen3.6-35B-A3B-4bit"


def noise(n, seed=1):
    return random.Random(seed).randbytes(n)


def some_files(n=3 * MIB):
    """A repository with what a checkpoint needs, and more that it does not."""
    return {
        ".gitattributes": File(b"*.safetensors filter=lfs\n"), "README.md": File(b"# words\n"), "config.json": File(b'{"model_type": "x"}'),
        "chat_template.jinja": File(b"{{ messages }}"), "generation_config.json": File(b"{}"), "tokenizer_config.json": File(b'{"a": 1}'),
        "tokenizer.json": File(noise(MIB // 2, 2), large=True), "model.safetensors": File(noise(n), large=True),
        "pytorch_model.bin": File(noise(1000, 3), large=True), "original/model.safetensors": File(noise(1000, 4), large=True),
    }


WANTED = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


class World:
    """A hub and a user who pulls from it into a cache of his own."""

    def __init__(self, tmp, hub):
        self.hub, self.home, self.cache = hub, tmp, tmp / "hf" / "hub"
        self.repo_dir = self.cache / ("models--" + hub.repo.replace("/", "--"))
        self.snapshot = self.repo_dir / "snapshots" / hub.commit

    def environment(self, **more):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CALLA_", "HF_", "HUGGING", "TRANSFORMERS", "XDG")) and not k.lower().endswith("_proxy")}
        return clean | {"HOME": str(self.home), "HF_HOME": str(self.home / "hf"), "HF_ENDPOINT": self.hub.url(), "CALLA_RETRY_DELAY": "0.02",
                        "CALLA_THREADS": "2"} | more

    def start(self, *words, env=None, **options):
        return subprocess.Popen([str(CALLA), *map(str, words)], env=self.environment(**(env or {})), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def calla(self, *words, rc=0, env=None, timeout=120, **options):
        process = self.start(*words, env=env, **options)
        out, self.err = (t.decode(errors="replace") for t in process.communicate(timeout=timeout))
        assert process.returncode == rc, (process.returncode, out, self.err)
        assert rc == 0 or self.err.splitlines()[-1].startswith("calla: "), self.err
        assert "==ERROR" not in self.err and "runtime error" not in self.err, self.err
        return out

    def pull(self, *words, rc=0, repo="org/name", **options):
        return self.calla("pull", *([repo] if repo else []), *words, rc=rc, **options)

    def check_whole(self, names=None):
        """The snapshot holds these files, whole, as links into the blobs; and nothing is left over."""
        names = names if names is not None else [n for n in self.hub.files if n in WANTED]
        assert sorted(p.name for p in self.snapshot.iterdir()) == sorted(names)
        for name in names:
            file = self.hub.files[name]
            assert os.readlink(self.snapshot / name) == f"../../blobs/{file.blob}"
            assert (self.snapshot / name).read_bytes() == file.data, name
        assert {p.name for p in (self.repo_dir / "blobs").iterdir()} == {self.hub.files[n].blob for n in names}

    def check_nothing_of(self, name):
        """Neither the file nor a part of it that could be taken for it."""
        assert not (self.snapshot / name).exists() and not (self.snapshot / name).is_symlink()
        assert not (self.repo_dir / "blobs" / self.hub.files[name].blob).exists()

    def partial(self, name="model.safetensors"):
        return self.repo_dir / "blobs" / (self.hub.files[name].blob + ".incomplete")

    def wait_for_bytes(self, n, process, name="model.safetensors"):
        until = time.monotonic() + 60
        while not (self.partial(name).exists() and self.partial(name).stat().st_size >= n):
            assert time.monotonic() < until and process.poll() is None, process.communicate()
            time.sleep(0.01)


@pytest.fixture
def world(tmp_path):
    hub = Hub(some_files())
    yield World(tmp_path, hub)
    hub.close()
