"""The kernels are compiled when they are needed, once, and nothing breaks where they can't be."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int, c_int64, c_void_p

import pytest
import torch

from nlm_core import native
from nlm_core.errors import UserError
from nlm_core.gelu import gelu


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As in a process that has not asked for the kernels yet, with an empty cache."""
    monkeypatch.setenv("NLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NLM_NATIVE", raising=False)
    native._library.cache_clear()
    yield tmp_path / "cache"
    native._library.cache_clear()


def test_they_are_compiled_once_and_kept(fresh, monkeypatch):
    assert native.library() is not None
    before = {path.name: path.stat().st_mtime_ns for path in fresh.iterdir()}
    assert [name.partition(".")[2] for name in sorted(before)] == ["sha256", "so"]
    native._library.cache_clear()
    assert native.library() is not None
    assert {path.name: path.stat().st_mtime_ns for path in fresh.iterdir()} == before


@pytest.mark.parametrize("damage", [lambda file: b"", lambda file: file[: len(file) // 2], lambda file: file[::-1]])
def test_a_damaged_library_is_compiled_again_and_not_loaded(fresh, damage):
    whole = native._build()
    content = whole.read_bytes()
    whole.write_bytes(damage(content))
    assert native._build() == whole
    assert len(whole.read_bytes()) == len(content)
    next(fresh.glob("*.sha256")).unlink()
    assert native.library() is not None
    assert len(list(fresh.iterdir())) == 2


def test_threads_that_ask_at_once_compile_once(fresh, monkeypatch, tmp_path):
    compiler, calls = tmp_path / "cc", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {shutil.which("cc")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: native.library(), range(4)))
    assert found[0] is not None
    assert all(library is found[0] for library in found)
    assert ["-dM" in line for line in calls.read_text().splitlines()] == [True, False]


C_TYPES = {"int": c_int, "int64_t": c_int64, "*": c_void_p}


def test_the_signatures_are_those_of_the_c_files():
    """A wrong one would be a crash or worse, not an error."""
    defined = {}
    for path in native.SOURCES:
        for name, arguments in re.findall(r"^int (\w+)\(([^)]*)\)", path.read_text(), flags=re.MULTILINE):
            kinds = [argument.split()[0] if "*" not in argument else "*" for argument in arguments.split(",")]
            defined[name] = [C_TYPES[kind] for kind in kinds]
    assert defined == native.FUNCTIONS


def test_another_processor_gets_a_library_of_its_own(fresh, monkeypatch):
    first = native._build()
    monkeypatch.setattr(native, "_machine", lambda compiler: b"another")
    assert native._build() != first
    assert len(list(fresh.glob("*.so"))) == 2


def test_without_a_compiler_there_are_none(fresh, monkeypatch):
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CC", raising=False)
    assert native.library() is None
    assert not native.usable(torch.zeros(1))


@pytest.mark.parametrize("compiler", ["false", "not-there"])
def test_a_compiler_that_does_not_run_means_none(fresh, monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    assert native.library() is None


def test_a_compiler_that_fails_half_way_leaves_nothing_behind(fresh, monkeypatch, tmp_path):
    compiler = tmp_path / "cc"
    answers = 'case "$*" in *-dM*) exit 0;; esac'
    half = 'while [ "$1" != -o ]; do shift; done; echo half > "$2"; exit 1'
    compiler.write_text(f"#!/bin/sh\n{answers}\n{half}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert native.library() is None
    assert fresh.is_dir()
    assert not list(fresh.iterdir())


def test_a_compiler_with_arguments_of_its_own(fresh, monkeypatch):
    monkeypatch.setenv("CC", f"{shutil.which('env')} cc")
    assert native.library() is not None


def test_without_openmp_the_kernels_use_one_thread(fresh, monkeypatch, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1;; esac\nexec {shutil.which("cc")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert native.library() is not None
    x = torch.randn(1000)
    torch.testing.assert_close(gelu(x), torch.nn.functional.gelu(x, approximate="tanh"))


def test_a_folder_that_others_can_write_is_not_trusted(fresh, monkeypatch):
    assert native.library() is not None
    native._library.cache_clear()
    fresh.chmod(0o720)
    assert native.library() is None
    native._library.cache_clear()
    fresh.chmod(0o700)
    (kernels,) = fresh.glob("*.so")
    kernels.chmod(0o777)
    assert native.library() is None


def test_a_kernel_takes_no_tensor_that_it_would_read_wrongly():
    x = torch.zeros(4, 4)
    with pytest.raises(ValueError, match="contiguous"):
        native.run("gelu_forward", 16, x.T[:2], x, 0)


def test_a_cache_that_can_not_be_written(fresh, monkeypatch):
    fresh.write_text("a file where the folder should be")
    assert native.library() is None


def test_they_can_be_switched_off(fresh, monkeypatch):
    monkeypatch.setenv("NLM_NATIVE", "0")
    assert native.library() is None
    assert not fresh.exists()


@pytest.mark.parametrize(
    ("compiler", "why"),
    [("false", "false ended with exit status 1"), ("not-there", "CC names not-there, which is not there")],
)
def test_where_they_are_asked_for_a_failure_says_why(fresh, monkeypatch, compiler, why):
    monkeypatch.setenv("NLM_NATIVE", "1")
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(UserError, match=f"^the kernels can't be compiled here: .*{why}"):
        native.library()


def test_a_setting_that_means_nothing_is_refused(fresh, monkeypatch):
    monkeypatch.setenv("NLM_NATIVE", "yes")
    with pytest.raises(UserError, match=r"NLM_NATIVE is 0 .*, 1 .* or not set, not 'yes'"):
        native.library()


def test_what_they_are_used_for():
    assert native.usable(torch.zeros(1))
    assert native.usable(torch.zeros(1, dtype=torch.bfloat16))
    assert not native.usable(torch.zeros(1, dtype=torch.float64))
    assert not native.usable(torch.zeros(1, device="meta"))


def test_the_package_can_be_imported_without_compiling_anything(fresh):
    code = "import nlm_core, nlm_core.cli"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "CC": "false"}, timeout=120)
    assert not fresh.exists()
