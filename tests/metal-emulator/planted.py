#!/usr/bin/env python3
"""planted.py SOURCE BUILD CLANG [options]: faults planted in the shaders must be caught. Each is one edit of one file; the faulty shader is
compiled into a library that is loaded before the emulated test, whose kernels it replaces, and the test must fail as said. Without an edit it
must pass."""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BARRIER = '    threadgroup_barrier(mem_flags::mem_threadgroup);\n'
# file edited, shader compiled, test, text, its replacement, words of the report
FAULTS = [
    ('norm.metal', 'norm', 'norm', '', '', None),
    ('shader.h', 'norm', 'norm', BARRIER, '', 'without a barrier|nobody has written'),
    ('norm.metal', 'norm', 'norm', BARRIER, BARRIER.replace('mem_threadgroup)', 'mem_device)'), 'without a barrier'),
    ('norm.metal', 'norm', 'norm', 'delta [[buffer(1)]], device const float *w [[buffer(2)]],\n                     device float *y',
     'delta [[buffer(2)]], device const float *w [[buffer(1)]],\n                     device float *y', 'buffer 2'),
    ('norm.metal', 'norm', 'norm', 'constant int &vocab [[buffer(3)]]', 'constant int &vocab [[buffer(4)]]', 'buffer 4 is not bound'),
    ('norm.metal', 'norm', 'norm', 'c < vocab', 'c <= vocab', 'which has'),
    ('norm.metal', 'norm', 'norm', 'b.id < a.id', 'b.id > a.id', 'emulated_norm.c'),
    ('linear.metal', 'linear', 'linear', 'first + r < out', 'first + r <= out', 'which has'),
    ('shader.h', 'linear', 'linear', 'c < in / 16; c += 32', 'c < in / 16 - 1; c += 32', 'emulated gemv4: off by'),
    ('linear.metal', 'linear', 'linear', '(uint)args.rows - row)', '(uint)args.rows)', 'which has|without a barrier'),
    ('tile.h', 'linear', 'linear', 'step < in / TILE_STEP', 'step <= in / TILE_STEP', 'which has'),
    ('tile.h', 'linear', 'linear', '    ' + BARRIER, '', 'without a barrier|nobody has written'),
    ('tile.h', 'linear', 'linear', 'h / 2 * 8) * TILE_LDC', 'h % 2 * 8) * TILE_LDC', 'nobody has written|off by|without a barrier'),
    ('tile.h', 'linear', 'linear', 'word[k] >> 8 & 255u', 'word[k] >> 8 & 127u', 'emulated gemm8: off by'),
    ('linear.metal', 'linear', 'linear', 'row < rows && out0', 'out0', 'which has|without a barrier'),
    ('tensor.h', 'linear_tensor_f32', 'tensor', '    ' + BARRIER + '        product', '        product', 'without a barrier|nobody has written'),
    ('tensor.h', 'linear_tensor_f32', 'tensor', 'sum);\n        ' + BARRIER.lstrip(), 'sum);\n', 'without a barrier'),
    ('tensor.h', 'linear_tensor_f32', 'tensor', 'execution_simdgroups<4>', 'execution_simdgroups<2>', 'is run by 4'),
    ('tensor.h', 'linear_tensor_f32', 'tensor', '((int32_t)outs, (int32_t)rows)', '(METAL_TENSOR_OUT, (int32_t)rows)', 'which has|without a barrier'),
    ('tensor.h', 'linear_tensor_f32', 'tensor', 'if (sum.is_valid_element(e)) sum[e] = 0.0f', 'sum[e / 2] = 0.0f', 'off by'),
    ('tensor.h', 'linear_tensor_f32', 'tensor', '(TILE_STEP, M))', '(TILE_STEP / 2, M))', 'its tail lies outside'),
    ('tensor.h', 'linear_tensor_f32', 'tensor', '.count, in', '.count + 1, in', 'off by|which has|without a barrier'),
    ('gdn.metal', 'gdn', 'gdn', 'decay * k_scale * simd_sum', 'k_scale * simd_sum', 'emulated gdn: off by'),
    ('gdn.metal', 'gdn', 'gdn', 'if (lane + 32 * i < n) row', 'row', 'which has|without a barrier'),
    ('gdn.metal', 'gdn', 'gdn', 'span == 2 ? s2 : s3', 'span == 3 ? s2 : s3', 'emulated_gdn.c|without a barrier|which has'),
    ('gdn.metal', 'gdn', 'gdn', 'b + first * heads', 'b', 'emulated_gdn.c'),
    ('gdn_chunk.metal', 'gdn_chunk', 'gdn', 'kept *= decay[t]', 'kept *= decay[i]', 'emulated gdn by chunks: off by'),
    ('gdn_chunk.metal', 'gdn_chunk', 'gdn', 's < t; s++', 's < t - 1; s++', 'emulated gdn by chunks: off by'),
    ('gdn_chunk.metal', 'gdn_chunk', 'gdn', 'for (uint r = 0; r < (simd + 1) * 16; r += 8)', 'for (uint r = 0; r < simd * 16; r += 8)', 'off by'),
    ('gdn_chunk.metal', 'gdn_chunk', 'gdn', 's[e] *= left', 's[e] *= 1.0f', 'off by'),
    ('gdn_chunk.metal', 'gdn_chunk', 'gdn', '            ' + BARRIER + '                for (uint d', '        for (uint d', 'without a barrier|nobody has written'),
    ('attn.metal', 'attn', 'attn', 'position + 1);', 'position);', 'nobody has written|off by'),
    ('attn.metal', 'attn', 'attn', 'pages + rows[group.z].pages', 'pages', 'emulated_attn.c|which has'),
    ('kv.h', 'attn', 'attn', 'METAL_PAGE * 4 + slot * n + i]', 'METAL_PAGE + slot * n + i]', 'emulated_attn.c'),
    ('kv.h', 'attn', 'attn', 'rint(x[i]', 'floor(x[i]', 'emulated_attn.c'),
    ('attn.metal', 'attn', 'attn', '* row_scale(keys, t)', '', 'off by'),
    ('attn_tile.metal', 'attn_tile', 'attn', 'start + r + 1)', 'start + r)', 'off by|emulated_attn.c'),
    ('attn_tile.metal', 'attn_tile', 'attn', 'bad ? float4(0.0f) : v[c]', 'v[c]', 'emulated_attn.c'),
    ('attn_tile.metal', 'attn_tile', 'attn', '    ' + BARRIER + '        // scores', '        // scores', 'without a barrier|nobody has written'),
    ('attn_tile.metal', 'attn_tile', 'attn', 'acc[d] * keep', 'acc[d]', 'off by'),
    ('attn.metal', 'attn', 'attn', '    simdgroup_barrier(mem_flags::mem_threadgroup);\n', '', 'without a barrier|nobody has written'),
    ('attn.metal', 'attn', 'attn', 'slot = position % METAL_PAGE;', 'slot = position % METAL_PAGE + 1;', 'off by|emulated_attn.c|which has'),
    ('moe.metal', 'moe', 'moe', 'first + b * METAL_TILE', 'first + b', 'emulated_moe.c'),
    ('moe.metal', 'moe', 'moe', BARRIER, '', 'without a barrier|nobody has written'),
    ('moe.metal', 'moe', 'moe', 'expert < a.expert', 'expert > a.expert', 'off by|emulated_moe.c'),
]


def planted(source, build, clang, options, fault):
    """(whether it was caught, one line about it)"""
    name, shader, test, text, other, words = fault
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, 'backend', 'metal')
        shutil.copytree(source / 'src/backend/metal', copy)
        edited = (copy / name).read_text()
        if text not in edited:
            return False, f'{name} no longer has: {text}'
        (copy / name).write_text(edited.replace(text, other, 1))
        flags = [f'-I{folder}', *options, '-Wno-unused']
        out = pathlib.Path(folder, 'faulty')
        subprocess.run([sys.executable, source / 'tests/metal-emulator/kernels.py', clang, copy / f'{shader}.metal', f'{out}.cpp', *flags],
                       check=True)
        subprocess.run([clang, *flags, '-shared', '-nostdlib', '-Wl,-Bsymbolic', f'{out}.cpp', '-o', f'{out}.so'], check=True)
        run = subprocess.run([build / f'metal_emulated_{test}'], env={**os.environ, 'LD_PRELOAD': f'{out}.so'}, capture_output=True, text=True)
    report = run.stdout + run.stderr
    if words is None:
        caught = run.returncode == 0
    else:
        caught = run.returncode > 0 and any(w in report for w in words.split('|'))
    line = next((x for x in report.splitlines() if 'ERROR' in x), '')
    return caught, f'{name}: {text.strip()!r} -> {other.strip()!r}: {line[:150]}'


def main():
    source, build, clang, *options = sys.argv[1:]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for a compiler and a test
        results = pool.map(lambda fault: planted(pathlib.Path(source), pathlib.Path(build), clang, options, fault), FAULTS)
        failed = 0
        for caught, line in results:
            print(f'{"ok" if caught else "NOT CAUGHT"}: {line}', flush=True)
            failed += not caught
    sys.exit(failed > 0)


main()
