"""Run one test file with pytest; 77 (skipped, said loudly) where pytest is missing."""
import importlib.util
import sys

if importlib.util.find_spec("pytest") is None:
    print("SKIPPED: " + sys.executable + " has no pytest; set CALLA_PYTHON to one that has, else the command line goes untested", file=sys.stderr)
    sys.exit(77)
import pytest

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
