"""Run one test file with pytest; 77 (skipped, said loudly) where a Python package is missing."""
import importlib.util
import pathlib
import re
import sys

wanted = ["pytest", "openai", "requests"] + re.findall("^import (anthropic|schemathesis|jsonschema)", pathlib.Path(sys.argv[1]).read_text(), re.M)
missing = [name for name in wanted if importlib.util.find_spec(name) is None]
if missing:
    print("SKIPPED: " + sys.executable + " has no " + ", ".join(missing) + "; set CALLA_PYTHON to one that has, else the HTTP server goes untested", file=sys.stderr)
    sys.exit(77)
import pytest

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
