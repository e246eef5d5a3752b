#!/usr/bin/env python3
"""kernels.py CLANG SHADER.metal OUT.cpp [clang options]: a C++ file that includes the shader and lists its kernels with their
parameters as the [[attributes]] say, so that the emulator passes what a device would. Refuses what Metal would refuse: a parameter
without attribute, a buffer index twice or above 30, an unknown attribute."""
import re
import subprocess
import sys

POSITIONS = {  # attribute -> components of struct emu_thread
    'threadgroup_position_in_grid': 'group', 'threadgroups_per_grid': 'groups', 'thread_position_in_threadgroup': 'local',
    'threads_per_threadgroup': 'size', 'thread_position_in_grid': None,
    'thread_index_in_threadgroup': 'index', 'thread_index_in_simdgroup': 'lane', 'simdgroup_index_in_threadgroup': 'simd',
    'simdgroups_per_threadgroup': 'simds'}
SCALAR = ('index', 'lane', 'simd', 'simds')


def position(kind, name):
    field = POSITIONS[name]
    base, width = re.fullmatch(r'(uint|ushort)([23]?)', kind).groups()
    width = int(width or 1)
    if field in SCALAR:
        if width != 1:
            sys.exit(f'{name} is a scalar')
        parts = [f't->{field}']
    elif field is None:
        parts = [f't->group[{i}] * t->size[{i}] + t->local[{i}]' for i in range(width)]
    else:
        parts = [f't->{field}[{i}]' for i in range(width)]
    return f'{kind}({", ".join(parts)})' if width > 1 else f'({base})({parts[0]})'


def parameter(kernel, text, seen):
    """(C++ argument, entry of the table or None)"""
    match = re.fullmatch(r'(.*?)(\w+)\s*\[\[(.*)\]\]', text.strip(), re.S)
    if not match:
        sys.exit(f'{kernel}: parameter without attribute: {text.strip()}')
    kind, _, attribute = (' '.join(s.split()) for s in match.groups())
    buffer = re.fullmatch(r'buffer\((\d+)\)', attribute)
    if not buffer:
        if attribute not in POSITIONS:
            sys.exit(f'{kernel}: unknown attribute {attribute}')
        return position(kind, attribute), None
    index = int(buffer.group(1))
    if index in seen or index > 30:
        sys.exit(f'{kernel}: buffer {index} is used twice or above 30')
    seen.add(index)
    reference = kind.endswith('&')
    target = kind[:-1].strip()
    space = [w for w in ('device', 'constant') if w in target.split()]
    if kind[-1] not in '*&' or len(space) != 1:
        sys.exit(f'{kernel}: buffer {index} needs one address space and * or &')
    bare = ' '.join(w for w in target.split() if w not in ('device', 'constant', 'const'))
    writable = int(space[0] == 'device' and 'const' not in target.split())
    argument = f'{"*" if reference else ""}({target} *)emu_buffer({index})'
    return argument, f'{{{index}, {writable}, {int(reference)}, sizeof({bare})}}'


def main():
    clang, shader, out, *options = sys.argv[1:]
    source = subprocess.run([clang, '-x', 'c++', '-E', '-P', '-DEMU_PARSE', *options, shader], check=True, capture_output=True,
                            text=True).stdout
    found = re.findall(r'\bkernel\s+void\s+(\w+)\s*\((.*?)\)\s*\{', source, re.S)
    if not found:
        sys.exit(f'{shader}: no kernel')
    lines = [f'#include "{shader}"', 'namespace {']
    table = []
    for name, text in found:
        seen, arguments, entries = set(), [], []
        for part in re.split(r',(?![^\[]*\]\])', text):
            argument, entry = parameter(name, part, seen)
            arguments.append(argument)
            if entry:
                entries.append(entry)
        lines.append(f'void call_{name}() {{ const struct emu_thread *t = emu_self(); (void)t; {name}({", ".join(arguments)}); }}')
        lines.append(f'const struct emu_param params_{name}[] = {{{", ".join(entries)}}};')
        table.append(f'{{"{name}", call_{name}, {len(entries)}, params_{name}}},')
    lines += ['const struct emu_kernel kernels[] = {', *table, '};',
              f'__attribute__((constructor, no_sanitize("thread"))) void add() {{ emu_register(kernels, {len(table)}); }}', '} // namespace', '']
    with open(out, 'w') as file:
        file.write('\n'.join(lines))


main()
