#!/bin/sh
# The agents' tests by the Python of .cache/agents, which ./test --slow makes; 77 (skipped, said loudly) without it. CALLA_AGENTS_PYTHON names another.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
python=${CALLA_AGENTS_PYTHON:-$here/../../../.cache/agents/bin/python}
if ! "$python" -c 'import llm, agents, pytest' 2>/dev/null; then
    echo "SKIPPED: no llm, openai-agents and pytest in $python: agents and clients of others go untried; ./test --slow installs them" >&2
    exit 77
fi
exec "$python" -m pytest -q -p no:cacheprovider "$here"
