"""core/math.h against numpy in float64, in units in the last place; the RNG against its definition and its moments."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from shoal.native import build


@pytest.fixture(scope="module", params=build.variants())
def shim(request, tmp_path_factory):
    """The functions over arrays, built with each variant's flags."""
    out = tmp_path_factory.mktemp("math") / "math.so"
    source = Path(__file__).parent / "native" / "math_shim.c"
    flags = [flag for flag in build.flags() if flag != "-fvisibility=hidden"]
    command = [*build.find_compiler(), "-std=c11", *flags, *build.VARIANTS[request.param], "-shared"]
    subprocess.run([*command, f"-I{build.NATIVE}", str(source), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


def each(shim, name, *inputs):
    inputs = [np.ascontiguousarray(x, np.float32) for x in inputs]
    out = np.empty_like(inputs[0])
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*inputs, out)]
    getattr(shim, f"each_{name}")(*pointers, ctypes.c_int64(out.size))
    return out


def ulps(got, exact):
    """Distance in units of the last place of the exact result rounded to float32."""
    rounded = exact.astype(np.float32)
    unit = np.spacing(np.abs(rounded)).astype(np.float64)
    return np.abs(got.astype(np.float64) - exact) / unit


def dense(lo, hi, count=400_001):
    return np.linspace(lo, hi, count).astype(np.float32)


# (function, inputs, ulps allowed)
ACCURACY = [
    ("sin", [dense(-3.2, 3.2)], 2),
    ("cos", [dense(-3.2, 3.2)], 2),
    ("sin", [dense(-100, 100)], 2),
    ("cos", [dense(-100, 100)], 2),
    ("tan", [dense(-1.57, 1.57)], 3),
    ("exp", [dense(-87, 88.7)], 2),
    ("log", [np.exp(dense(-86, 88).astype(np.float64))], 2),
    ("log", [dense(0.5, 2.0)], 2),
    ("sqrt", [dense(0, 1e6)], 0.5),
    ("floor", [dense(-1e5, 1e5)], 0),
    ("atan2", [np.sin(dense(-3.14159, 3.14159)), np.cos(dense(-3.14159, 3.14159))], 3),
    ("pow", [np.exp(dense(-8, 8)), np.resize(dense(-10, 10, 997), 400_001)], 1),
]


@pytest.mark.parametrize(("name", "inputs", "allowed"), ACCURACY, ids=[f"{a[0]}-{k}" for k, a in enumerate(ACCURACY)])
def test_accuracy_in_ulps(shim, name, inputs, allowed):
    inputs = [np.ascontiguousarray(x, np.float32) for x in inputs]
    exact = getattr(np, {"atan2": "arctan2", "pow": "power"}.get(name, name))(*(x.astype(np.float64) for x in inputs))
    error = ulps(each(shim, name, *inputs), exact)
    worst = int(np.nanargmax(error))
    assert error[worst] <= allowed, f"{name}{tuple(x[worst] for x in inputs)}: {error[worst]:.2f} ulp"


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_large_angles_stay_close(shim, name):
    """Near the zeros of sin at thousands of radians relative error grows; absolute error does not."""
    x = dense(-8192, 8192)
    assert np.abs(each(shim, name, x) - getattr(np, name)(x.astype(np.float64))).max() < 3e-7


INF, NAN = np.inf, np.nan
EDGES = [
    ("exp", (-200.0,), 0.0),
    ("exp", (200.0,), INF),
    ("exp", (0.0,), 1.0),
    ("exp", (NAN,), NAN),
    ("log", (0.0,), -INF),
    ("log", (-1.0,), NAN),
    ("log", (1.0,), 0.0),
    ("log", (INF,), INF),
    ("log", (1e-42,), np.log(np.float64(np.float32(1e-42)))),
    ("floor", (-0.5,), -1.0),
    ("floor", (1e30,), 1e30),
    ("floor", (-INF,), -INF),
    ("floor", (16777217.0,), 16777216.0),
    ("abs", (-0.0,), 0.0),
    ("atan2", (0.0, 0.0), 0.0),
    ("atan2", (0.0, -1.0), np.pi),
    ("atan2", (-0.0, -1.0), -np.pi),
    ("atan2", (1.0, 0.0), np.pi / 2),
    ("atan2", (-1.0, 0.0), -np.pi / 2),
    ("pow", (0.0, 2.0), 0.0),
    ("pow", (0.0, -1.0), INF),
    ("pow", (0.0, 0.0), 1.0),
    ("pow", (-2.0, 3.0), -8.0),
    ("pow", (-2.0, 2.0), 4.0),
    ("pow", (-2.0, 0.5), NAN),
    ("pow", (NAN, 0.0), 1.0),
    ("pow", (1.0, NAN), 1.0),
    ("pow", (10.0, 60.0), INF),
    ("pow", (10.0, -60.0), 0.0),
    ("pow", (INF, -1.0), 0.0),
]


@pytest.mark.parametrize(("name", "inputs", "expected"), EDGES)
def test_edges(shim, name, inputs, expected):
    got = each(shim, name, *([value] for value in inputs))[0]
    np.testing.assert_allclose(got, np.float32(expected), rtol=2e-7, atol=0)
    if expected == 0:
        assert np.signbit(got) == np.signbit(expected)


def draw(shim, kind, dtype, *arguments, count=400_000, seed=7):
    out = np.empty(count, dtype)
    head = [ctypes.c_uint64(seed), *(ctypes.c_int32(a) for a in arguments)]
    getattr(shim, f"draw_{kind}")(*head, ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(count))
    return out


def xoshiro128pp(seed, count):
    """The generator's definition, in plain Python integers (Blackman & Vigna 2019; SplitMix64 seeding)."""
    mask32, mask64 = 2**32 - 1, 2**64 - 1

    def mix(x):
        x &= mask64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask64
        return x ^ (x >> 31)

    a, b = mix(seed + 0x9E3779B97F4A7C15), mix(seed + 2 * 0x9E3779B97F4A7C15)
    s = [a & mask32, a >> 32, b & mask32, b >> 32]
    out = []
    for _ in range(count):
        total = (s[0] + s[3]) & mask32
        out.append((((total << 7) | (total >> 25)) + s[0]) & mask32)
        t = (s[1] << 9) & mask32
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = ((s[3] << 11) | (s[3] >> 21)) & mask32
    return out


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 5])
def test_rng_is_xoshiro128pp(shim, seed):
    assert draw(shim, "u32", np.uint32, count=200, seed=seed).tolist() == xoshiro128pp(seed, 200)


def test_uniform_fills_its_interval(shim):
    x = draw(shim, "uniform", np.float32)
    assert x.min() >= -1
    assert x.max() < 3
    assert abs(x.mean() - 1.0) < 0.01
    assert abs(x.var() - 16 / 12) < 0.02


@pytest.mark.parametrize("bound", [1, 2, 7, 1000])
def test_int_is_uniform(shim, bound):
    counts = np.bincount(draw(shim, "int", np.int32, bound), minlength=bound)
    assert len(counts) == bound
    expected = 400_000 / bound
    assert ((counts - expected) ** 2 / expected).sum() < bound + 6 * np.sqrt(2 * bound)  # chi-square


def test_normal_moments(shim):
    x = draw(shim, "normal", np.float32).astype(np.float64)
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((x**3).mean()) < 0.03
    assert abs((x**4).mean() - 3) < 0.1


def test_nearby_seeds_are_unrelated(shim):
    a, b = draw(shim, "uniform", np.float32, seed=1), draw(shim, "uniform", np.float32, seed=2)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.01
