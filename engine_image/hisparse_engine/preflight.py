"""What must hold before the engine starts: pure checks over one frozen Reading.

The engine itself checks late (after minutes of weight loading) and node-wide, not per container;
a pool larger than the container's limit ends in an OOM kill during pre-fault, with no message.
"""

from dataclasses import dataclass
from fnmatch import fnmatch

from hisparse_engine.plan import MemoryPlan

# What a killed engine leaves in /dev/shm (measured with vLLM 0.33: SIGKILL at any point of its life).
LEFTOVERS = ("vllm_offload_*", "psm_*", "sem.mp-*", "cuda.shm.*")
UNLIMITED_BYTES = 1 << 62
POPULATE_WRITE_KERNEL = (5, 14)


@dataclass(frozen=True)
class Reading:
    """The container as it is; None means that it could not be found out."""

    shm_free_bytes: int | None
    memory_limit_bytes: int | None
    kernel: tuple[int, int] | None


@dataclass(frozen=True)
class Finding:
    """One line for the log; `fatal` keeps the engine from being started."""

    fatal: bool
    line: str


@dataclass(frozen=True)
class Shm:
    """Shared memory as found. `mapped` is None where some process could not be looked at."""

    names: tuple[str, ...]
    mapped: frozenset[str] | None
    own: bool


@dataclass(frozen=True)
class Sweep:
    """The files to remove, and why others stay."""

    remove: tuple[str, ...]
    note: str | None = None


def check(memory: MemoryPlan, reading: Reading) -> tuple[Finding, ...]:
    """All that is wrong or doubtful; empty when the engine can be started."""
    found = (_shm(memory, reading), _limit(memory, reading), _kernel(memory, reading))
    return tuple(finding for finding in found if finding)


def sweep(shm: Shm) -> Sweep:
    """The leftovers that no process maps, so that an engine restarted in place finds its room again."""
    leftovers = tuple(name for name in shm.names if any(fnmatch(name, pattern) for pattern in LEFTOVERS))
    if not leftovers:
        return Sweep(())
    if not shm.own:
        return Sweep((), f"shared memory is the host's: {len(leftovers)} file(s) may belong to other engines and stay")
    if shm.mapped is None:
        return Sweep((), f"some process's maps cannot be read: {len(leftovers)} leftover file(s) in /dev/shm stay")
    return Sweep(tuple(name for name in leftovers if name not in shm.mapped))


def pool_ram_bytes(memory: MemoryPlan) -> int:
    """Physical bytes of the host pool: once when shared in /dev/shm, once per rank when private."""
    return memory.host_pool_bytes * (1 if memory.shared_pool else memory.tensor_parallel)


def limit_bytes(texts: tuple[str, ...]) -> int | None:
    """The tightest of some cgroup limit files (v2 `max` or v1's near-2^63 mean none)."""
    limits = [UNLIMITED_BYTES if text.strip() == "max" else int(text) for text in texts if _is_limit(text)]
    return min((*limits, UNLIMITED_BYTES)) if limits else None


def kernel_version(release: str) -> tuple[int, int] | None:
    """`5.14.0-427.el9` -> (5, 14)."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def gib(size: int) -> str:
    """A byte count for people."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


def _shm(memory: MemoryPlan, reading: Reading) -> Finding | None:
    if not memory.shm_bytes:
        return None
    need = gib(memory.shm_bytes)
    if reading.shm_free_bytes is None:
        return Finding(fatal=False, line=f"memory.shmBytes: {need} needed, but /dev/shm could not be read")
    if reading.shm_free_bytes >= memory.shm_bytes:
        return None
    return Finding(
        fatal=True,
        line=f"memory.shmBytes: the engine needs {need} in /dev/shm, {gib(reading.shm_free_bytes)} are free; "
        "mount an emptyDir with medium Memory and a larger sizeLimit at /dev/shm, or lower the host pool",
    )


def _limit(memory: MemoryPlan, reading: Reading) -> Finding | None:
    pool = pool_ram_bytes(memory)
    private_bytes = 0 if memory.shared_pool else pool
    need = max(pool, memory.shm_bytes + private_bytes)
    limit = reading.memory_limit_bytes
    if not need or limit is None:
        return None
    copies = "" if memory.shared_pool else f" ({memory.tensor_parallel} private copies)"
    if limit < pool:
        return Finding(
            fatal=True,
            line=f"memory.hostPoolBytes: the host pool takes {gib(pool)}{copies}, the container's memory "
            f"limit is {gib(limit)}; the kernel would kill the engine while it fills the pool: raise "
            "resources.limits.memory or lower the host pool",
        )
    if limit < need:
        return Finding(
            fatal=False,
            line=f"memory.shmBytes: /dev/shm and the host pool{copies} may take {gib(need)}, the container's "
            f"memory limit is {gib(limit)}; raise resources.limits.memory, since /dev/shm counts against it",
        )
    return None


def _kernel(memory: MemoryPlan, reading: Reading) -> Finding | None:
    if not (memory.shm_bytes or memory.host_pool_bytes):
        return None
    if reading.kernel is None or reading.kernel >= POPULATE_WRITE_KERNEL:
        return None
    return Finding(
        fatal=False,
        line=f"kernel {reading.kernel[0]}.{reading.kernel[1]} is older than 5.14 (no MADV_POPULATE_WRITE): "
        "filling the host pool page by page takes much longer; allow for it in startupSeconds",
    )


def _is_limit(text: str) -> bool:
    return text.strip() == "max" or text.strip().isdecimal()
