#!/usr/bin/env python3
"""planted_host.py SOURCE BUILD [sample] -- CC FLAGS... -- OBJC FLAGS... -- LIBRARIES... -- PROGRAM OBJECTS... [-- PROGRAM OBJECTS...]...

Faults planted in the Metal host must be caught. Each is one edit of one file of src/backend/metal. The faulty file is compiled and linked
with a test program's own objects, before the libraries, so that the archive's member is not taken (commands.m instead of its object); then
one test of that program must fail, for the reason said. Without an edit every such test must pass. sample: the first few faults."""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

SAMPLE = 4
UNORDERED = 'without a barrier'
# file, program, test, text, its replacement, words of the report; the first SAMPLE run in every tier
FAULTS = [
    # a write after a read is no conflict
    ('pass.c', 'host_routes', 'gdn_turns', '(t->writes || b->access & WRITES)', 't->writes', UNORDERED),
    # what a dispatch behind a barrier touches is forgotten
    ('pass.c', 'host_faults', 'command_buffers', '    if (d->barrier) m->n_touched = 0;\n    note(m, d);',
     '    note(m, d);\n    if (d->barrier) m->n_touched = 0;', UNORDERED),
    # a barrier that was decided is not encoded
    ('commands.m', 'host_faults', 'command_buffers', '    if (d->barrier) [v->encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];\n', '', UNORDERED),
    # every row's page table is the first sequence's
    ('attn.c', 'host_routes', 'attn', '{s->position + k, pages}', '{s->position + k, 0}', 'off by'),
    # the last buffer of a dispatch is not remembered
    ('pass.c', 'host_faults', 'command_buffers', 'static void note(struct metal *m, const struct metal_dispatch *d) {\n    for (int i = 0; i < d->n; i++)',
     'static void note(struct metal *m, const struct metal_dispatch *d) {\n    for (int i = 0; i < d->n - 1; i++)', UNORDERED),
    # a slot is used again before its pass is done: more command buffers under way than two passes have
    ('pass.c', 'host_golden', 'company', '    finish(m, m->slot);\n', '', '0x3 != 0x2'),
    # what is uploaded lies on what was
    ('pass.c', 'host_routes', 'attn', '    u->used = (u->used + n + 15) / 16 * 16;\n', '', 'off by'),
    # the other pass's ids
    ('norm.c', 'host_golden', 'tiny_short', 'd.bind[3] = metal_slice(&m->upload[m->slot]', 'd.bind[3] = metal_slice(&m->upload[0]', 'off by'),
    ('linear.c', 'host_routes', 'products', 'metal_groups(rows, c.rows)', 'metal_groups(rows - 1, c.rows)', 'off by'),
    # a group is counted for twice the outputs it makes
    ('linear.c', 'host_routes', 'products', 'METAL_TENSOR_OUT,\n', 'METAL_TENSOR_OUT * 2,\n', 'off by'),
    ('attn.c', 'host_routes', 'attn', 'left < METAL_QUERY_ROWS ? left : METAL_QUERY_ROWS', 'METAL_QUERY_ROWS', 'outside every buffer'),
    ('attn.c', 'host_routes', 'attn', '    if (segments > last->segments) last->segments = segments;\n', '', 'off by'),
    # every layer has the first one's state
    ('gdn.c', 'host_routes', 'gdn', 'g->layer * bytes', '0 * bytes', 'off by'),
    ('gdn.c', 'host_routes', 'gdn', 'c->chunk + BE_PAGE - 1) / BE_PAGE', 'c->chunk) / BE_PAGE', 'off by|nobody has written'),
    ('gdn.c', 'host_routes', 'gdn', 's->position + c->head, pieces', 's->position, pieces', 'off by'),
    # the ninth decode step and those after it get the first ones' rows
    ('gdn.c', 'host_routes', 'steps_together', '(size_t)done * sizeof', '0 * sizeof', 'difference'),
    ('moe.c', 'host_routes', 'experts', '&m->ws.choice, o->visits, 1, WRITES);\n    d.bind[2] = rows_of(&m->ws.weight',
     '&m->ws.weight, o->visits, 1, WRITES);\n    d.bind[2] = rows_of(&m->ws.choice', 'off by'),
    ('moe.c', 'host_routes', 'experts', 'const int blocks = m->dims.experts + o->visits / METAL_TILE', 'const int blocks = m->dims.experts', 'off by'),
]


class Build:
    """What is compiled and linked with what."""

    def __init__(self, argv):
        parts, part = [], []
        for word in argv + ['--']:
            if word == '--':
                parts.append(part)
                part = []
            else:
                part.append(word)
        self.source, self.build = pathlib.Path(parts[0][0]), pathlib.Path(parts[0][1])
        self.sample = 'sample' in parts[0][2:]
        self.cc, self.objc, self.libraries = parts[1:4]
        self.programs = {p[0]: p[1:] for p in parts[4:]}

    def run(self, folder, name, program, test, text, other):
        """The test's exit status and output, with the edit; name None: as it is."""
        objects = self.programs[program]
        if name:
            original = (self.source / 'src/backend/metal' / name).read_text()
            if original.count(text) < 1:
                return None, f'{name} no longer has: {text}'
            faulty, made = pathlib.Path(folder, name), str(pathlib.Path(folder, 'faulty.o'))
            faulty.write_text(original.replace(text, other, 1))
            compiler = self.objc if name.endswith('.m') else self.cc
            subprocess.run([*compiler, '-Wno-unused', '-c', faulty, '-o', made], check=True)
            own = f'metal_host_{faulty.stem}.o' if name.endswith('.m') else None
            if own and not any(o.endswith(own) for o in objects):
                return None, f'{program} has no {own}'
            objects = [o for o in objects if not (own and o.endswith(own))] + [made]
        exe = pathlib.Path(folder, 'test')
        subprocess.run([self.cc[0], '-o', exe, *objects, '-Wl,--start-group', *self.libraries, '-Wl,--end-group', '-lm'], check=True)
        done = subprocess.run([exe], cwd=self.source, env={**os.environ, 'CALLA_TEST_ONLY': test}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def fault(self, fault):
        """(whether it was caught, one line about it)"""
        name, program, test, text, other, words = fault
        with tempfile.TemporaryDirectory() as folder:
            code, report = self.run(folder, name, program, test, text, other)
        failures = [x for x in report.splitlines() if 'ERROR' in x]
        if name is None:
            return code == 0 and f'[       OK ] {test}' in report, f'{program} {test} as it is: exit status {code}'
        caught = code is not None and code > 0 and f'[  FAILED  ] {test}' in report and any(w in report for w in words.split('|'))
        return caught, f'{name}: {text.strip()!r} -> {other.strip()!r}: {(failures or [report])[0][:200]}'


def main():
    build = Build(sys.argv[1:])
    faults = FAULTS[:SAMPLE] if build.sample else FAULTS
    sound = [(None, program, test, '', '', None) for program, test in sorted({f[1:3] for f in faults})]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = 0
        for caught, line in pool.map(build.fault, sound + faults):
            print(f'{"ok" if caught else "NOT CAUGHT"}: {line}', flush=True)
            failed += not caught
    sys.exit(failed > 0)


main()
