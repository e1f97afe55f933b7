"""A plan answers in a second: what it loads, in a process of its own. What it costs: `make bench`."""

import os
import subprocess
import sys

import pytest

PLAN = ["plan", "--model", "GLM-5.3", "--context", "1M", "--gpus", "8"]
HEAVY = (
    "kopf",
    "kubernetes",
    "torch",
    "vllm",
    "huggingface_hub",
    "plotext",
    "structlog",
    "aiohttp",
    "hisparse_operator",
)


@pytest.mark.parametrize("words", [PLAN, [*PLAN, "--json"], ["--version"], ["plan", "--help"]], ids=" ".join)
def test_nothing_heavy_is_loaded(words: list[str]) -> None:
    program = (
        "import sys\n"
        "from hisparse_toolkit.cli import main\n"
        f"main({words!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"


def test_json_does_not_pay_for_a_terminal() -> None:
    program = (
        "import sys\nfrom hisparse_toolkit.cli import main\n"
        f"main({[*PLAN, '--json']!r})\nprint('rich' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "False"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_there(shell: str) -> None:
    environment = {**os.environ, "_HISPARSE_COMPLETE": f"source_{shell}"}
    done = subprocess.run(
        [sys.executable, "-m", "hisparse_toolkit"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "hisparse" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    command = f"{sys.executable} -m hisparse_toolkit {' '.join(PLAN)} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
